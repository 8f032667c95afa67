//! Little KV memory, so that memory moves by itself, under every policy and while engines crash: the accounting is
//! always consistent and no token changes.

use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::Signal;
use sluice_wire::State;

use crate::support::load::{self, MEMORY, MODEL, Observed, poll_while};
use crate::support::three_tenants::events;
use crate::support::{Answer, Tenant, TestEnv, Up, Yaml, processes};

/// Engines killed under one load.
const KILLS: u64 = 3;
/// Maximum loads of a tenant with a host tier until it has used the required mechanisms.
const MOST_LOADS: u64 = 8;

/// Host memory for all KV of the load.
const TIER: &str = ", memory: {hostKv: 16Mi}";
/// The same without remappable layers.
const TIER_WITHOUT_REMAP: &str = ", memory: {hostKv: 16Mi, maxRemappedPercent: 0}";

/// A policy, further fields of its tenant's `spec`, and its required events while KV is short.
type Case = (&'static str, &'static str, &'static [&'static str]);

const CASES: [Case; 8] = [
    ("Recompute", "", &["preempt"]),
    ("Oneiros", "", &["remap_own"]),
    ("Ellm", "", &["inflate"]),
    ("FlexGen", TIER, &["write_back", "fetch"]),
    // Pie's controller tries one layer per load. It may correctly decline more, with no fetch, if a trial stalls on a
    // busy machine.
    ("Pie", TIER, &["write_back"]),
    ("OrbitFlow", TIER, &["plan", "write_back", "fetch"]),
    ("Unified", TIER, &["inflate", "remap_own"]),
    // Where no layer may move, KV moves.
    ("Unified", TIER_WITHOUT_REMAP, &["inflate", "write_back", "fetch"]),
];

/// Counts an event of a tenant.
fn times(state: &State, event: &str) -> u64 {
    if event == "preempt" { state.figures.preemptions_total } else { events(state, event) }
}

/// Returns the answers to the load without memory pressure: the same under every policy.
async fn baseline() -> Vec<Answer> {
    let world = TestEnv::new();
    let (up, tenant) = start(&world, "Recompute", "").await;
    let answers = load::sequential_answers(&tenant).await;
    let figures = tenant.state().await.figures;
    assert_eq!(
        (figures.preemptions_total, figures.recomputed_tokens_total),
        (0, 0),
        "nothing is short for one request at a time"
    );
    up.end_cleanly().await;
    answers
}

/// Starts a tenant that the load puts under pressure.
async fn start<'a>(world: &'a TestEnv, policy: &'static str, spec: &str) -> (Up<'a>, Tenant) {
    let model = world.model("model", MODEL);
    let mut yaml =
        Yaml::pool(MEMORY).tenant("short", &model, "", &format!("pacing: {{mode: Immediate}}{spec}"));
    yaml.policy = policy;
    let mut up = world.up(&yaml, &["--poison"]);
    let tenant = up.ready("short").await;
    (up, tenant)
}

/// Returns how often KV moved between the device and the host tier.
fn moves(state: &State) -> u64 {
    times(state, "write_back") + times(state, "fetch")
}

/// Returns the answers to the load, the observations, and the number of killed engines: `kills`, each in the middle
/// of a batch. With `kv_moves`, an engine is only killed if KV moved since the previous kill.
async fn run(tenant: &Tenant, kills: u64, kv_moves: bool) -> (Vec<Answer>, Observed, u64) {
    let on = AtomicBool::new(true);
    let load = async {
        let answers = load::load(tenant).await;
        on.store(false, Ordering::Relaxed);
        answers
    };
    let killing = async {
        let (mut before, mut killed) = (tenant.state().await, 0);
        while killed < kills {
            let further = |state: &State| {
                state.engine.pid.is_some()
                    && state.queue.running > 1
                    && state.figures.steps_total > before.figures.steps_total + 20
                    && (!kv_moves || moves(state) > moves(&before))
            };
            let over = || kv_moves && !on.load(Ordering::Relaxed);
            let state = tenant.until("a batch runs", |state| over() || further(state)).await;
            if over() {
                break;
            }
            processes::signal(state.engine.pid.unwrap(), Signal::KILL);
            (before, killed) = (state, killed + 1);
        }
        killed
    };
    let (answers, seen, killed) = tokio::join!(load, poll_while(tenant, &on), killing);
    assert!(seen.most_running > 1 && seen.polls > 20, "{seen:?}");
    (answers, seen, killed)
}

#[tokio::test(flavor = "multi_thread")]
async fn accounting_balances_while_layers_become_kv() {
    let baseline = baseline().await;
    let world = TestEnv::new();
    let (up, tenant) = start(&world, "Oneiros", "").await;
    let before = tenant.state().await;
    let (answers, seen, _) = run(&tenant, 0, false).await;
    assert_eq!(answers, baseline, "memory moved and not one token changed");
    assert!(seen.most_alpha > 0, "KV was never so short that a layer was remapped: {seen:?}");
    let returned =
        |state: &State| (state.remap.alpha, state.remap.beta, state.kv.layer_blocks_used) == (0, 0, 0);
    let after = tenant.until("everything returns", returned).await;
    Observed::default().check(&after);
    assert_eq!(after.memory.owners.weights_layers_bytes, before.memory.owners.weights_layers_bytes);
    assert_eq!((after.queue, after.streams), (before.queue, before.streams));
    assert_eq!(answers[0], tenant.complete(&load::request(0)).await.unwrap());
    up.end_cleanly().await;
}

/// Loads a tenant, and kills its engines, until it has used all required mechanisms; where KV moves, engines are
/// killed during the moves.
async fn die_under_load(tenant: &Tenant, baseline: &[Answer], case: Case) {
    let (_, spec, must) = case;
    let (kv_moves, most_loads) = (must.contains(&"write_back"), if spec.is_empty() { 1 } else { MOST_LOADS });
    let (mut most_alpha, mut deaths, mut done) = (0, 0, false);
    for _ in 0..most_loads {
        let (answers, seen, killed) = run(tenant, KILLS, kv_moves).await;
        assert_eq!(answers, baseline, "{case:?}");
        deaths += killed;
        let ended = |state: &State| {
            state.kv.layer_blocks_used == 0 && state.queue.running == 0 && state.engine.restarts >= deaths
        };
        let state = tenant.until("all ends", ended).await;
        Observed::default().check(&state);
        assert_eq!(state.engine.restarts, deaths, "{case:?}");
        assert!(kv_moves || killed == KILLS, "{case:?}: {killed} engines died");
        most_alpha = seen.most_alpha.max(most_alpha);
        done = deaths > 0 && must.iter().all(|event| times(&state, event) > 0);
        if done {
            break;
        }
        eprintln!("{case:?}: {deaths} engines died so far; {:?}", state.figures.moves_total);
    }
    assert!(done, "{case:?}: KV was never short, or nothing was done about it");
    assert_eq!(most_alpha > 0, must.contains(&"remap_own"), "{case:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn engine_crashes_during_moves_change_no_token() {
    let baseline = baseline().await;
    for case in CASES {
        let (policy, spec, _) = case;
        let world = TestEnv::new();
        let (up, tenant) = start(&world, policy, spec).await;
        die_under_load(&tenant, &baseline, case).await;
        up.end_cleanly().await;
    }
}
