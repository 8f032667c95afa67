use sluice_wire::state::{EngineHang, GrantState, SharingState, TimeSliceState, TokenCounts};

use super::*;

const NOW: u64 = 1_700_000_100_000;

fn state(name: &str) -> State {
    let mut state = State { phase: Phase::Active, ..State::default() };
    (state.tenant.namespace, state.tenant.name) = ("team".into(), name.into());
    state
}

fn of(states: Vec<State>) -> GpuView {
    let tenants: Vec<_> = states.into_iter().map(|state| TenantReport::State(Box::new(state))).collect();
    let reading = Reading { namespace: "team", name: "gpu", tenants: &tenants, ..Reading::default() };
    GpuView::of(&reading, NOW, |_| None, |_| None, |_| 0)
}

fn grants(mut state: State, grants: &[(&str, Direction, u64)]) -> State {
    let grant = |(name, direction, bytes): &(&str, Direction, u64)| GrantState {
        namespace: "team".into(),
        name: (*name).into(),
        direction: *direction,
        nonce: 1,
        bytes: *bytes,
        expires_in_ms: 1,
    };
    let grants = grants.iter().map(grant).collect();
    state.peers = Some(SharingState { grants, ..SharingState::default() });
    state
}

#[test]
fn loan_is_sum_of_grants_and_counted_once() {
    let loan = |from: &str, to: &str, bytes| Loan { from: from.into(), to: to.into(), bytes };
    let lends = grants(state("code"), &[("chat", Direction::Lent, 3), ("chat", Direction::Lent, 4)]);
    let borrows =
        grants(state("chat"), &[("code", Direction::Borrowed, 5), ("gone", Direction::Borrowed, 1)]);
    let loans = of(vec![lends, borrows]).loans;
    let expected = [loan("team/code", "team/chat", 7), loan("team/gone", "team/chat", 1)];
    assert_eq!(loans, expected, "the larger word, and that of one end alone");
}

#[test]
fn gpu_level_is_worst_tenant_level_with_reason() {
    let fine = of(vec![state("chat")]);
    assert_eq!((fine.level, fine.worst()), (Level::Fine, None));
    let mut waits = state("code");
    waits.phase = Phase::Loading;
    assert_eq!(of(vec![state("chat"), waits.clone()]).level, Level::Watch);
    let mut missed = state("chat");
    (missed.slo.tbt_attained_permille, missed.slo.allowed_miss_permille) = (Some(900), 10);
    missed.slo.tbt_target_ns = 50_000_000;
    let bad = of(vec![waits, missed]);
    assert_eq!(bad.level, Level::Bad);
    let worst = bad.worst().unwrap();
    assert!(worst.starts_with("team/chat: Time between tokens: MISSED, 90.0 %"), "{worst}");
    let objective = &bad.tenants[0].objectives[0];
    assert_eq!((objective.attained_permille, objective.promised_permille), (900, 990));
    assert_eq!(objective.limit_ns, 55_000_000, "a tenth above the objective is in time");
}

#[test]
fn late_holder_is_gpu_reason_and_hang_is_tenant_reason() {
    let slice = |holder_overdue_ms| {
        let holder = Some("team/code".to_owned());
        Some(SharingState {
            time_slice: Some(TimeSliceState { holder, holder_overdue_ms, ..TimeSliceState::default() }),
            ..SharingState::default()
        })
    };
    let with = |peers| State { peers, ..state("chat") };
    assert!(of(vec![with(slice(0))]).reasons.is_empty());
    let late = of(vec![with(slice(900)), State { peers: slice(1500), ..state("mail") }]);
    assert_eq!(late.reasons[0].text, "team/code holds the time slice and is 1500 ms past its deadline.");
    let mut hung = state("code");
    let hang = |alive, ago_ms| {
        let during = "step".to_owned();
        Some(EngineHang { at_unix_ms: NOW - ago_ms, during, waited_ms: 2300, limit_ms: 2250, alive })
    };
    for (last_hang, level) in
        [(hang(true, 1), Level::Bad), (hang(false, 1), Level::Watch), (hang(false, 600_000), Level::Fine)]
    {
        hung.engine.last_hang = last_hang;
        assert_eq!(of(vec![hung.clone()]).level, level);
    }
}

#[test]
fn layers_that_are_lent_or_hibernated_are_absent() {
    let mut state = state("chat");
    state.layers =
        vec![Residency::Resident, Residency::Moving { slot: 0 }, Residency::Loading, Residency::Resident];
    state.activity.lent_layers = 1;
    assert_eq!(of(vec![state.clone()]).tenants[0].layers, "rmla");
    state.phase = Phase::Hibernated;
    assert_eq!(of(vec![state]).tenants[0].layers, "aaaa");
}

#[test]
fn a_view_of_many_tenants_shows_causes_only_where_an_objective_is_missed() {
    let shown = |attained_permille| {
        let mut state = state("chat");
        (state.slo.tbt_attained_permille, state.slo.allowed_miss_permille) = (Some(attained_permille), 10);
        (state.queue.waiting, state.queue.running, state.kv.utilisation_permille) = (3, 45, 980);
        let tenant = of(vec![state]).tenants.remove(0);
        (tenant.objectives[0].missed, tenant.shown_reasons().map(|one| one.text.clone()).collect::<Vec<_>>())
    };
    assert_eq!(shown(990), (false, vec![]));
    let cause = "3 requests wait, 45 running; 98.0 % of the KV cache is used.".to_owned();
    assert_eq!(shown(989), (true, vec![cause]));
}

#[test]
fn manually_suspended_tenant_shows_wake_command_and_cause_of_misses() {
    let mut state = state("chat");
    (state.phase, state.sleep_ordered) = (Phase::Hibernated, true);
    let shown = |state: &State| {
        let tenant = of(vec![state.clone()]).tenants.remove(0);
        (tenant.phase, tenant.level, tenant.shown_reasons().map(|one| one.kind).collect::<Vec<_>>())
    };
    assert_eq!(shown(&state), ("asleep by hand", Level::Fine, vec!["sleep"]));
    (state.slo.ttft_attained_permille, state.slo.allowed_miss_permille) = (Some(666), 10);
    state.slo.ttft_window = TokenCounts { tokens: 3, given_up: 1, asleep: 1 };
    assert_eq!(shown(&state), ("asleep by hand", Level::Bad, vec!["sleep", "missed", "missed"]));
    (state.phase, state.sleep_ordered) = (Phase::Active, false);
    assert_eq!(shown(&state), ("serving", Level::Bad, vec!["missed", "missed"]), "also after it was woken");
}

#[test]
fn the_worst_objective_is_the_one_furthest_below_its_promise() {
    let worst = |first, later| {
        let mut state = state("chat");
        state.slo.allowed_miss_permille = 10;
        (state.slo.ttft_attained_permille, state.slo.tbt_attained_permille) = (first, later);
        of(vec![state]).tenants[0].worst_objective().map(|one| one.name)
    };
    assert_eq!(worst(None, None), None);
    assert_eq!(worst(Some(1000), Some(999)), Some("later token"));
    assert_eq!(worst(Some(900), Some(999)), Some("first token"));
}
