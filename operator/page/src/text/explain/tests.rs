//! What is said of states that differ in one thing each.

use sluice_wire::state::{GrantState, Move, Percentiles, ReasonCount, Residency, TimeSliceState};

use super::*;

const NOW: u64 = 1_700_000_100_000;

fn state() -> State {
    let mut state = State { phase: Phase::Active, phase_since_unix_ms: NOW - 5_000, ..State::default() };
    state.tenant.namespace = "team".into();
    state.tenant.name = "chat".into();
    state.tenant.gpu = "p-a-0".into();
    state.policy = "Oneiros".into();
    state
}

#[test]
fn share_different_from_target_is_explained_both_ways() {
    let said = |share_bytes, wanted_share_bytes| {
        let own = SharingState { share_bytes, wanted_share_bytes, ..SharingState::default() };
        explain(&State { peers: Some(own), ..state() }, NOW).split_off(2)
    };
    assert_eq!(
        said(1 << 20, 3 << 20),
        ["  Its share will grow to 3 MiB (+2 MiB) as its peers release memory."]
    );
    assert_eq!(
        said(3 << 20, 1 << 20),
        ["  Its share will shrink to 1 MiB (-2 MiB) as it releases memory for its peers."]
    );
    assert_eq!([said(3 << 20, 3 << 20), said(3 << 20, 0)], [[""; 0]; 2], "as dealt, or an older sidecar");
}

#[test]
fn a_tenant_that_has_nothing_to_explain_takes_one_line() {
    assert_eq!(explain(&state(), NOW), ["team/chat on p-a-0 serves requests; since 5.0s. Policy Oneiros."]);
}

#[test]
fn a_tenant_without_a_request_is_ready_and_serves_none() {
    let said = explain(&State { idle_since_unix_ms: Some(NOW - 2_000), ..state() }, NOW);
    assert_eq!(said, ["team/chat on p-a-0 is ready and has no requests; since 2.0s. Policy Oneiros."]);
}

#[test]
fn missed_objective_names_target() {
    let mut state = state();
    state.slo.window_seconds = 300;
    state.slo.ttft_target_ns = 155_000_000_000;
    state.slo.tbt_target_ns = 50_000_000;
    state.slo.allowed_miss_permille = 10;
    state.slo.tbt_attained_permille = Some(921);
    state.slo.ttft_attained_permille = Some(995);
    state.figures.delivered_tbt = Percentiles { samples: 9, p50_ns: 1, p99_ns: 80_000_000 };
    let said = explain(&state, NOW);
    assert_eq!(
        said[1..],
        [
            "  First token: met, 99.5 % within 155 s over the last 300 s (99.0 % promised).",
            "  Time between tokens: MISSED, 92.1 % within 50 ms + 10 % over the last 300 s (99.0 % promised); P99 of the last \
             minute 80 ms.",
        ],
        "no first token came in the last minute"
    );
}

#[test]
fn an_engine_that_is_slower_than_the_objective_is_the_reason() {
    let mut state = state();
    (state.slo.tbt_target_ns, state.slo.allowed_miss_permille) = (2_000_000, 10);
    (state.slo.tbt_attained_permille, state.queue.running) = (Some(0), 16);
    state.figures.engine_tbt = Percentiles { samples: 9, p50_ns: 6_600_000, p99_ns: 28_000_000 };
    let said = explain(&state, NOW)[2..].join("\n");
    assert_eq!(
        said,
        "  Its engine makes a token every 6.6 ms (median) with 16 requests at once; the objective is 2.0 ms.\n  \
         0 requests wait, 16 running; 0.0 % of the KV cache is used."
    );
    state.slo.tbt_attained_permille = Some(1000);
    assert_eq!(explain(&state, NOW).len(), 2, "a slow engine that is in time is none");
}

#[test]
fn suspended_tenant_names_wake_command() {
    let mut state = state();
    (state.phase, state.sleep_ordered) = (Phase::Hibernated, true);
    let said = explain(&state, NOW);
    assert!(said[0].starts_with("team/chat on p-a-0 was put to sleep by hand and holds no device memory;"));
    assert!(said[1].contains("On this machine: `sluice wake team/chat`;"), "{said:?}");
    state.sleep_ordered = false;
    assert!(headline(&state, NOW).contains("the next request wakes it"));
}

#[test]
fn overdue_tokens_are_reported_while_overdue() {
    let mut state = state();
    (state.slo.ttft_target_ns, state.slo.window_seconds) = (2_000_000_000, 60);
    (state.slo.ttft_attained_permille, state.slo.allowed_miss_permille) = (Some(0), 10);
    (state.slo.ttft_overdue, state.slo.tbt_overdue) = (1, 3);
    assert_eq!(
        explain(&state, NOW)[1..],
        [
            "  First token: MISSED, 0.0 % within 2000 ms over the last 60 s (99.0 % promised).",
            "  Overdue now: the first token of 1 answer. It counts as missed.",
            "  Overdue now: the next tokens of 3 answers. They count as missed.",
        ]
    );
}

#[test]
fn absent_layers_name_borrowers() {
    let mut state = state();
    state.layers = vec![Residency::Resident; 12];
    state.remap.alpha = 3;
    state.remap.beta = 1;
    state.remap.moving_layers = vec![0, 3, 6, 9];
    state.remap.cap_layers = 7;
    let lent = |name: &str| GrantState {
        namespace: "team".into(),
        name: name.into(),
        direction: Direction::Lent,
        nonce: 1,
        bytes: 4 << 20,
        expires_in_ms: 900,
    };
    state.peers = Some(SharingState {
        lent_bytes: 12 << 20,
        grants: vec![lent("code"), lent("code"), lent("art")],
        ..SharingState::default()
    });
    let said = explain(&state, NOW).join("\n");
    assert!(
        said.contains(
            "3 of 12 layers gave their memory to KV (at most 7); 4 layers are copied through 1 slot for"
        ),
        "{said}"
    );
    assert!(said.contains("Lent: 12 MiB to art, code."), "{said}");
}

#[test]
fn declined_remap_is_explained() {
    let mut state = state();
    (state.figures.t_transfer_ns, state.figures.t_compute_ns) = (Some(140_000_000), Some(2_000_000));
    assert_eq!(explain(&state, NOW).len(), 1);
    state.figures.moves_total = vec![ReasonCount { reason: DECLINED_STALL.into(), count: 7 }];
    assert_eq!(
        explain(&state, NOW)[1..],
        ["  Although KV was short, no layer and no KV was moved 7 times since the start, because steps \
          would have waited for copies. A layer now takes 140 ms to copy and 2.0 ms to compute."]
    );
    state.figures.moves_total[0].count = 1;
    assert!(
        explain(&state, NOW)[1]
            .starts_with("  Although KV was short, no layer and no KV was moved 1 time since")
    );
    state.activity.lent_layers = 3;
    assert_eq!(explain(&state, NOW).len(), 1, "lent ones have another story");
}

#[test]
fn kv_that_ran_short_is_counted_in_the_known_window_else_since_the_start() {
    let mut state = state();
    (state.figures.preemptions_total, state.figures.recomputed_tokens_total) = (654, 9000);
    let texts = |shortage| -> Vec<String> {
        reasons(&state, NOW, shortage).into_iter().map(|reason| reason.text).collect()
    };
    let none = Shortage { window_ms: 900_000, preemptions: 0, recomputed_tokens: 0 };
    assert_eq!(texts(None), ["KV ran short 654 times since the start: 9000 tokens were computed again."]);
    assert_eq!(texts(Some(none)), [""; 0], "what passed long ago explains nothing");
    let one = Shortage { preemptions: 1, recomputed_tokens: 30, ..none };
    assert_eq!(texts(Some(one)), ["KV ran short 1 time in the last 15 min: 30 tokens were computed again."]);
    let none_yet = Shortage { recomputed_tokens: 0, ..one };
    assert_eq!(texts(Some(none_yet)), ["KV ran short 1 time in the last 15 min."]);
    let two = Shortage { window_ms: 90_500, preemptions: 2, ..one };
    assert_eq!(texts(Some(two)), ["KV ran short 2 times in the last 90 s: 30 tokens were computed again."]);
}

#[test]
fn used_host_tier_is_described() {
    let mut state = state();
    (state.kv.layer_block_bytes, state.kv.host_layer_blocks_limit) = (1 << 20, 64);
    assert_eq!(explain(&state, NOW).len(), 1);
    (state.kv.host_layer_blocks_used, state.figures.pauses_total) = (3, 5);
    state.figures.kv_stall_ns_total = 1_500_000_000;
    assert_eq!(
        explain(&state, NOW)[1..],
        ["  KV in host memory: 3 MiB of 64 MiB; since the start 5 requests were paused with their KV, \
          and steps waited 1500 ms for KV."]
    );
}

#[test]
fn failure_and_lost_engine_are_reported() {
    let mut state = state();
    state.phase = Phase::Failed;
    state.engine.failure = Some("no such model".into());
    state.engine.restarts = 2;
    let said = explain(&state, NOW);
    assert!(said[0].contains("cannot serve: no such model"), "{said:?}");
    assert_eq!(said[1], "  The engine was lost 2 times since the start.");
}

#[test]
fn waiting_tenant_names_late_holder_and_slice_cost() {
    let slice = TimeSliceState { holder: Some("team/code".into()), ..TimeSliceState::default() };
    let with = |slice: TimeSliceState, running| {
        let mut state = State { phase: Phase::Active, ..hangs::tests::with_time_slice("chat", slice) };
        state.queue.running = running;
        explain(&state, NOW)
    };
    let said = |slice: &TimeSliceState| with(slice.clone(), 1)[1..].to_vec();
    assert!(said(&slice).contains(&"  It waits for the time slice, which team/code holds.".into()));
    let idle = with(slice.clone(), 0);
    assert!(!idle.iter().any(|line| line.contains("waits for the time slice")), "without requests: {idle:?}");
    let late = TimeSliceState { holder_overdue_ms: 1_500, ..slice.clone() };
    let waits = "  It waits for the time slice, which team/code holds and is 1500 ms past its deadline.";
    assert_eq!(said(&late)[0], waits);
    let wait = Percentiles { samples: 9, p50_ns: 40_000_000, p99_ns: 101_000_000 };
    let cost = "  Since the start it waited 40 ms for a time slice in the median, P99 101 ms.";
    assert_eq!(said(&TimeSliceState { wait, ..late })[1], cost);
    let taken = TimeSliceState {
        last_takeover: hangs::tests::takeover(),
        takeovers_total: 1,
        ..TimeSliceState::default()
    };
    assert_eq!(
        said(&taken)[0],
        "  It took over the time slice of team/code 30s ago, 260 ms past its deadline."
    );
}

#[test]
fn hung_tenant_names_operation_and_action() {
    let slice = TimeSliceState { lost_total: 2, ..TimeSliceState::default() };
    let mut state = hangs::tests::with_time_slice("code", slice);
    (state.engine.last_hang, state.engine.hangs) = (Some(hangs::tests::hang(true)), 1);
    let said = explain(&state, NOW);
    let hung = "  Its engine hung 12s ago: 2300 ms without progress (step; the limit is 2250 ms); its \
                process has not ended after SIGKILL.";
    let lost = "  It lost the time slice to peers 2 times since the start, past its deadline.";
    assert_eq!(said[1..3], [hung, lost]);
}

#[test]
fn only_last_moves_are_shown() {
    let mut state = state();
    let moved = |n: u64| Move {
        at_unix_ms: NOW - 1000 * (10 - n),
        reason: "remap_own".into(),
        detail: format!("n {n}"),
        bytes: 1 << 20,
        ..Move::default()
    };
    state.moves = (0..7).map(moved).collect();
    let decided = (0..9).map(|n| Move { reason: "plan".into(), bytes: 0, ..moved(n) });
    state.moves.extend(decided);
    let said = explain(&state, NOW);
    assert_eq!(said.len(), 2 + SHOWN_MOVES);
    assert_eq!(said[2], "    8.0s ago: remap_own n 2, 1 MiB");
    assert_eq!(said[6], "    4.0s ago: remap_own n 6, 1 MiB", "what moved no byte is none of them");
    state.moves.push(Move { reason: "borrow".into(), detail: "3 times".into(), bytes: 0, ..moved(9) });
    let last = |state: &State| explain(state, NOW).pop().unwrap();
    assert_eq!(last(&state), "    1.0s ago: borrow in 3 moves", "its memory has not moved yet");
    state.moves.last_mut().unwrap().bytes = 3 << 20;
    assert_eq!(last(&state), "    1.0s ago: borrow in 3 moves, 3 MiB");
    state.moves.pop();
    state.moves.retain(|moved| moved.bytes == 0);
    assert_eq!(explain(&state, NOW).len(), 1);
}
