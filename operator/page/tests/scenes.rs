//! States of GPUs that the page is looked at with, each with the quarter of an hour before it.

use std::sync::Arc;
use std::time::Duration;

use sluice_page::hub::{Hub, HubConfig};
use sluice_page::view::Reading;
use sluice_wire::State;
use sluice_wire::state::{
    Direction, EngineHang, EngineWork, GrantState, KvState, Move, OwnerBytes, Percentiles, Phase, Residency,
    SharingState, SloState, TenantReport, TimeSliceState,
};

use crate::served::PageServer;

/// When the last reading is.
pub const NOW: u64 = 1_790_000_000_000;
const MIB: u64 = 1 << 20;
const GPU: u64 = 96 * MIB;

/// Names of all scenes.
pub const ALL: [&str; 6] = ["quiet", "lending", "late-holder", "missed", "hibernated", "pool"];

/// The hub of the scene `name`, as it is at [`NOW`].
pub fn hub(name: &str) -> Arc<Hub> {
    let hub = empty();
    match name {
        "pool" => pool(&hub),
        name => (0..=900).for_each(|second| one_gpu(&hub, name, second)),
    }
    hub
}

/// A hub that has been given nothing.
pub fn empty() -> Arc<Hub> {
    let note = "Nothing was read yet.".to_owned();
    Hub::new(HubConfig { source: "sluice up".into(), interval: Duration::from_secs(1), moves: 256, note })
}

/// Gives `hub` the scene `name` as it is at its `second` of 900.
pub fn one_gpu(hub: &Hub, name: &str, second: u64) {
    let at = NOW - 900_000 + second * 1000;
    let tenants = match name {
        "quiet" => quiet(at),
        "lending" => lending(at, second),
        "late-holder" => late_holder(at, second),
        "missed" => missed(at, second),
        "hibernated" => hibernated(at, second),
        other => panic!("there is no scene {other}"),
    };
    let tenants: Vec<_> = tenants.into_iter().map(|state| TenantReport::State(Box::new(state))).collect();
    let reading = Reading {
        namespace: "team",
        pool: "box",
        name: "box-one-0",
        capacity_bytes: Some(GPU),
        read_unix_ms: Some(at),
        tenants: &tenants,
        ..Reading::default()
    };
    hub.update(at, |update| update.gpu(&reading));
}

/// A tenant that is ready, with `kv` MiB of KV cache.
fn tenant(name: &str, at: u64, kv: u64) -> State {
    let mut state =
        State { phase: Phase::Active, policy: "Unified".into(), at_unix_ms: at, ..State::default() };
    (state.tenant.namespace, state.tenant.name) = ("team".into(), name.into());
    state.tenant.gpu = "box-one-0".into();
    state.phase_since_unix_ms = NOW - 1_800_000;
    state.layers = vec![Residency::Resident; 16];
    state.memory.owners = OwnerBytes {
        weights_global_bytes: 2 * MIB,
        weights_layers_bytes: 16 * MIB,
        kv_bytes: kv * MIB,
        activation_bytes: 2 * MIB,
        free_bytes: (12 - kv.min(12)) * MIB,
        ..OwnerBytes::default()
    };
    state.memory.capacity_bytes = state.memory.owners.total().unwrap();
    let block_bytes = 32 << 10;
    let layer_blocks_total = kv * MIB / block_bytes;
    state.kv = KvState {
        layer_blocks_total,
        layer_block_bytes: block_bytes,
        layer_blocks_free: layer_blocks_total,
        ..KvState::default()
    };
    state.peers =
        Some(SharingState { share_bytes: 32 * MIB, floor_bytes: 8 * MIB, ..SharingState::default() });
    state
}

fn idle(mut state: State) -> State {
    state.idle_since_unix_ms = Some(NOW - 1_200_000);
    state
}

/// Serves `per_second` tokens, of which `attained` permille come in time.
fn busy(mut state: State, second: u64, per_second: u64, attained: u32) -> State {
    state.figures.decode_tokens_total = 1000 + (0..second).map(|at| per_second + at % 7).sum::<u64>();
    let wave = (second % 60) * 100_000;
    state.figures.delivered_tbt = Percentiles { samples: 500, p50_ns: 21_000_000, p99_ns: 34_000_000 + wave };
    state.figures.ttft = Percentiles { samples: 40, p50_ns: 120_000_000, p99_ns: 410_000_000 + wave * 10 };
    state.slo = SloState {
        ttft_target_ns: 2_000_000_000,
        tbt_target_ns: 50_000_000,
        window_seconds: 300,
        allowed_miss_permille: 10,
        ttft_attained_permille: Some(998),
        tbt_attained_permille: Some(attained),
        ..SloState::default()
    };
    (state.queue.running, state.queue.waiting) = (6, 2);
    state.kv.layer_blocks_used = state.kv.layer_blocks_total * (700 + second % 200) / 1000;
    state.kv.layer_blocks_free = state.kv.layer_blocks_total - state.kv.layer_blocks_used;
    state.kv.utilisation_permille = 850;
    state
}

fn quiet(at: u64) -> Vec<State> {
    ["chat", "code", "summary"].map(|name| idle(tenant(name, at, 10))).into()
}

fn grant(name: &str, direction: Direction, bytes: u64) -> GrantState {
    GrantState { namespace: "team".into(), name: name.into(), direction, nonce: 1, bytes, expires_in_ms: 900 }
}

/// A move in the `step`-th ten seconds of the load.
fn moved(step: u64, reason: &str, detail: String, bytes: u64) -> Move {
    let at_unix_ms = NOW - 600_000 + step * 10_000;
    Move { at_unix_ms, reason: reason.into(), detail, bytes, layers: vec![] }
}

/// From the fifth minute on `chat` has a load; `code` lends layers and KV to it, `summary` KV.
fn lending(at: u64, second: u64) -> Vec<State> {
    let lent = second.saturating_sub(300).min(120) / 10;
    let (of_code, of_summary) = (lent.min(8), lent / 2);
    let mut chat = tenant("chat", at, 10 + of_code + of_summary);
    chat.figures.decode_tokens_total = 1000;
    if second > 290 {
        chat = busy(chat, second - 290, 180, 995);
    }
    let mut code = idle(tenant("code", at, 10));
    let mut summary = idle(tenant("summary", at, 10 - of_summary));
    code.phase = Phase::Idle;
    code.memory.owners.weights_layers_bytes -= of_code * MIB;
    code.activity.lent_layers = of_code as u16;
    summary.remap.alpha = (lent / 4) as u16;
    for layer in 0..summary.remap.alpha {
        summary.layers[usize::from(layer * 4)] = Residency::Moving { slot: 0 };
    }
    if lent > 0 {
        let taken = [("code", of_code), ("summary", of_summary)];
        let taken = taken.map(|(name, mib)| grant(name, Direction::Borrowed, mib * MIB));
        for (state, mib) in [(&mut code, of_code), (&mut summary, of_summary)] {
            let own = state.peers.as_mut().unwrap();
            (own.lent_bytes, own.grants) = (mib * MIB, vec![grant("chat", Direction::Lent, mib * MIB)]);
        }
        let own = chat.peers.as_mut().unwrap();
        (own.borrowed_bytes, own.grants) = ((of_code + of_summary) * MIB, taken.into());
    }
    code.moves =
        (1..=of_code).map(|n| moved(n, "lend", format!("layer {} to team/chat", 16 - n), MIB)).collect();
    chat.moves = (1..=of_code).map(|n| moved(n, "borrow", "8 chunks of team/code".into(), MIB)).collect();
    summary.moves =
        (1..=of_summary).map(|n| moved(2 * n, "remap_own", format!("layer {}", 2 * n), 2 * MIB)).collect();
    vec![chat, code, summary]
}

/// `code` holds the time slice with a hung engine; the others wait for it.
fn late_holder(at: u64, second: u64) -> Vec<State> {
    let mut states =
        ["chat", "code", "summary"].map(|name| busy(tenant(name, at, 10), second.min(880), 60, 990));
    let overdue_ms = (second.saturating_sub(890)) * 1000;
    for state in &mut states {
        let slice = TimeSliceState {
            holds: state.tenant.name == "code",
            holder: Some("team/code".into()),
            holder_overdue_ms: overdue_ms,
            waiting: 2,
            ..TimeSliceState::default()
        };
        state.peers.as_mut().unwrap().time_slice = Some(slice);
    }
    if second > 880 {
        let waited_ms = (second - 880) * 1000;
        states[1].engine.work = Some(EngineWork { during: "step".into(), waited_ms, limit_ms: 2_250 });
    }
    if second > 890 {
        let at_unix_ms = NOW - 8_000;
        states[1].engine.last_hang = Some(EngineHang {
            at_unix_ms,
            during: "step".into(),
            waited_ms: 2_300,
            limit_ms: 2_250,
            alive: true,
        });
        states[1].engine.hangs = 1;
    }
    states.into()
}

/// `chat` misses its objective between tokens because its KV cache is full.
fn missed(at: u64, second: u64) -> Vec<State> {
    let mut chat = busy(tenant("chat", at, 12), second, 90, 921);
    chat.figures.delivered_tbt.p99_ns += second * 60_000;
    (chat.queue.running, chat.queue.waiting, chat.slo.tbt_overdue) = (9, 14, 3);
    (chat.figures.preemptions_total, chat.figures.recomputed_tokens_total) = (second / 30, second * 40);
    chat.kv.utilisation_permille = 1000;
    chat.kv.layer_blocks_used = chat.kv.layer_blocks_total;
    vec![chat, busy(tenant("code", at, 10), second, 40, 999)]
}

/// `code` hibernated five minutes ago; `summary` is loading and waits for memory.
fn hibernated(at: u64, second: u64) -> Vec<State> {
    let mut code = idle(tenant("code", at, 10));
    let mut summary = tenant("summary", at, 0);
    if second > 600 {
        code.phase = Phase::Hibernated;
        code.phase_since_unix_ms = NOW - 300_000;
        code.memory.owners = OwnerBytes { free_bytes: 0, ..OwnerBytes::default() };
        code.memory.capacity_bytes = 0;
        (code.kv.host_layer_blocks_used, code.kv.host_layer_blocks_limit) = (96, 512);
    }
    summary.phase = Phase::Loading;
    summary.phase_since_unix_ms = NOW - 40_000;
    summary.layers = vec![Residency::Loading; 16];
    summary.layers[..5].fill(Residency::Resident);
    summary.memory.owners.weights_layers_bytes = 5 * MIB;
    summary.peers.as_mut().unwrap().waits_for = Some("4 MiB of its share, which team/chat holds".into());
    vec![busy(tenant("chat", at, 12), second, 110, 998), code, summary]
}

/// Gives `hub` a GPU of whose tenants the first moved something `ago_ms[0]` milliseconds before [`NOW`], the second
/// `ago_ms[1]`.
pub fn two_moves(hub: &Hub, ago_ms: [u64; 2]) {
    let of = |(name, ago_ms)| {
        let mut state = tenant(name, NOW, 4);
        let (at_unix_ms, reason) = (NOW - ago_ms, "free_chunks".to_owned());
        state.moves = vec![Move { at_unix_ms, reason, detail: "once".into(), bytes: MIB, ..Move::default() }];
        TenantReport::State(Box::new(state))
    };
    let tenants = [("chat", ago_ms[0]), ("code", ago_ms[1])].map(of);
    let read_unix_ms = Some(NOW);
    let reading =
        Reading { namespace: "team", name: "a", read_unix_ms, tenants: &tenants, ..Reading::default() };
    hub.update(NOW, |update| update.gpu(&reading));
}

/// Gives `hub` a GPU whose one tenant decided to lend at [`NOW`] and has lent `bytes` when it is read `seconds` later.
pub fn one_loan(hub: &Hub, seconds: u64, bytes: u64) {
    let at = NOW + seconds * 1000;
    let mut state = tenant("chat", at, 4);
    let (reason, detail) = ("lend".to_owned(), "once".to_owned());
    state.moves = vec![Move { at_unix_ms: NOW, reason, detail, bytes, ..Move::default() }];
    let tenants = [TenantReport::State(Box::new(state))];
    let read_unix_ms = Some(at);
    let reading =
        Reading { namespace: "team", name: "a", read_unix_ms, tenants: &tenants, ..Reading::default() };
    hub.update(at, |update| update.gpu(&reading));
}

/// 300 GPUs, read every 30 s; some have trouble.
fn pool(hub: &Hub) {
    (0..=30).for_each(|step| pool_at(hub, step));
}

/// Gives the pool once more as it is at [`NOW`], as a server does that has read nothing new.
pub fn pool_again(hub: &Hub) {
    pool_at(hub, 30);
}

fn pool_at(hub: &Hub, step: u64) {
    let at = NOW - 900_000 + step * 30_000;
    hub.update(at, |update| {
        (0..300).for_each(|gpu| pool_gpu(gpu, step, at, |reading| update.gpu(reading)));
    });
}

/// The scene `name`, served.
pub fn served(name: &str) -> PageServer {
    let hub = hub(name);
    let served = PageServer::new(hub.clone());
    if name == "pool" { served.with_updates(hub, pool_again) } else { served }
}

fn pool_gpu(gpu: u64, step: u64, at: u64, give: impl FnOnce(&Reading<'_>)) {
    let name = format!("fleet-a-{gpu}");
    let name_of_gpu = name.clone();
    let of = |slot: u64| {
        let name = format!("t{}", (gpu * 3 + slot) % 450);
        let state = tenant(&name, at, 4 + (gpu * 7 + slot * 3) % 9);
        let attained = if gpu % 61 == 7 && slot == 0 { 940 } else { 997 };
        let mut state = state;
        state.tenant.gpu.clone_from(&name_of_gpu);
        if (gpu + slot).is_multiple_of(3) {
            idle(state)
        } else {
            busy(state, step * 30, 20 + gpu % 90, attained)
        }
    };
    let mut states: Vec<State> = (0..1 + gpu % 3).map(of).collect();
    if gpu % 97 == 20 {
        states[0].phase = Phase::EngineLost;
    }
    if gpu % 41 == 11 {
        states[0].slo.tbt_overdue = 2;
    }
    let node = format!("node-{}", gpu / 8);
    let mut tenants: Vec<_> = states.into_iter().map(|state| TenantReport::State(Box::new(state))).collect();
    if gpu == 133 {
        let (namespace, name) = ("team".to_owned(), "t12".to_owned());
        tenants.push(TenantReport::Unreachable { namespace, name, reason: "no answer in 2 s".into() });
    }
    give(&Reading {
        namespace: "team",
        pool: "fleet",
        name: &name,
        node: Some(&node),
        read_unix_ms: Some(at),
        tenants: &tenants,
        ..Reading::default()
    });
}
