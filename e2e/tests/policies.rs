//! Every named policy on a real sidecar and a real engine, with far too little KV memory: each uses its mechanism,
//! and no token changes, under each policy, during a change of policy, and with a very slow link to the host.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sluice_wire::State;
use sluice_wire::config::SidecarConfig;

use crate::support::load::Observed;
use crate::support::model::Golden;
use crate::support::model::Stories;
use crate::support::sidecar::{CHUNK, Metrics, config};
use crate::support::tenant::greedy;
use crate::support::{Answer, Sidecar, Tenant, TestEnv};

/// KV on the device: enough for two requests of the load.
const KV_BYTES: u64 = 8 * CHUNK;
/// Maximum number of tenants to try: a tenant may correctly decline after timings on a busy machine.
const MOST_TENANTS: usize = 6;
/// Maximum loads per tenant.
const MOST_LOADS: usize = 4;
/// Steps of each policy under load before the next one.
const STEPS: u64 = 40;
/// Limit of a load with a very slow link to the host. Without one it takes some seconds, on two busy cores about
/// ten; a tenant that waits for its blocks never finishes.
const SLOW: Duration = Duration::from_secs(120);
/// Bandwidth of such a link, bytes per second: a block takes four seconds.
const HARDLY: u64 = 1 << 10;

/// A mechanism of a policy, by the sidecar's metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mechanism {
    /// Recomputes requests.
    Preempts,
    /// KV resides in the host tier while its request runs.
    MovesKv,
    /// The tenant's own layers become KV.
    MovesLayers,
    /// Idle activations become KV.
    LendsActivations,
    /// Prompts are computed with their KV in the host tier.
    OffloadsPrompts,
}
use Mechanism::{LendsActivations, MovesKv, MovesLayers, OffloadsPrompts, Preempts};

impl Mechanism {
    const ALL: [Mechanism; 5] = [Preempts, MovesKv, MovesLayers, LendsActivations, OffloadsPrompts];

    fn is_seen(self, metrics: &Metrics) -> bool {
        let moves = |reason| metrics.sum("sluice_moves_total", &[("reason", reason)]);
        let total = |name| metrics.sum(name, &[]);
        match self {
            Preempts => total("vllm:num_preemptions_total") > 0.0,
            MovesKv => {
                total("sluice_kv_writeback_bytes_total") > 0.0 && total("sluice_kv_fetch_bytes_total") > 0.0
            }
            MovesLayers => moves("remap_own") > 0.0,
            LendsActivations => moves("inflate") > 0.0,
            OffloadsPrompts => total("sluice_offloaded_prompts_total") > 0.0,
        }
    }
}

/// A policy, the share of layers that may be remapped, and the required mechanisms. All others except preemption
/// are forbidden.
type Case = (&'static str, u32, &'static [Mechanism]);

const CASES: [Case; 8] = [
    ("Recompute", 60, &[Preempts]),
    ("Oneiros", 60, &[MovesLayers]),
    ("Ellm", 60, &[LendsActivations]),
    ("FlexGen", 60, &[MovesKv]),
    ("Pie", 60, &[MovesKv]),
    ("OrbitFlow", 60, &[MovesKv]),
    ("Unified", 60, &[LendsActivations, MovesLayers]),
    // Where no layer may move, KV moves.
    ("Unified", 0, &[LendsActivations, MovesKv]),
];

/// Returns a tenant of the reference model with host memory for all KV, and little device memory.
async fn short(world: &TestEnv, stories: &Stories) -> SidecarConfig {
    let mut config = config(world, &stories.folder, "Recompute");
    config.max_model_len = Some(192);
    config.memory.host_kv_bytes = 16 << 20;
    Sidecar::fitting(world, &config, KV_BYTES).await
}

fn of_case(short: &SidecarConfig, (policy, percent, _): Case) -> SidecarConfig {
    let mut config = short.clone();
    (config.policy, config.memory.max_remapped_percent) = (policy.into(), percent);
    config
}

async fn ask(tenant: &Tenant, golden: &Golden) -> Answer {
    tenant.complete(&greedy(&golden.prompt_ids, golden.greedy_ids.len())).await.unwrap()
}

/// Sends every golden request twice, all at once: more than three times the KV memory. Returns whether each answer
/// was right.
async fn load(tenant: &Tenant, stories: &Stories) -> bool {
    let twice = stories.golden.iter().chain(&stories.golden).cloned();
    let asked: Vec<_> = twice
        .map(|golden| {
            let tenant = tenant.clone();
            tokio::spawn(async move { (ask(&tenant, &golden).await, golden) })
        })
        .collect();
    let mut right = true;
    for one in asked {
        let (answer, golden) = one.await.unwrap();
        right &= answer.names() == stories.shown(&golden.greedy_ids);
    }
    right
}

/// Checks that all memory is free again and the accounting is consistent.
async fn is_everything_released(tenant: &Tenant) {
    let ended =
        |state: &State| (state.kv.layer_blocks_used, state.queue.running, state.queue.waiting) == (0, 0, 0);
    Observed::default().check(&tenant.until("all ends", ended).await);
}

/// Whether a policy may use a mechanism: plans of OrbitFlow admit prompts without capacity if they find a placement
/// for all.
fn can_use(policy: &str, mechanism: Mechanism) -> bool {
    mechanism == Preempts || (policy == "OrbitFlow" && mechanism == OffloadsPrompts)
}

/// Loads one tenant until it has used all required mechanisms; `false` if it has not.
async fn uses(world: &TestEnv, stories: &Stories, config: &SidecarConfig, case: Case) -> bool {
    let (policy, _, must) = case;
    let sidecar = Sidecar::start(world, config).await;
    let mut done = false;
    for _ in 0..MOST_LOADS {
        assert!(load(&sidecar.tenant, stories).await, "{case:?}: other tokens");
        let metrics = sidecar.metrics().await;
        let seen: Vec<_> = Mechanism::ALL.into_iter().filter(|it| it.is_seen(&metrics)).collect();
        let wrong = seen.iter().find(|it| !can_use(policy, **it) && !must.contains(it));
        assert_eq!(wrong, None, "{policy} does what is another policy's");
        done = must.iter().all(|it| seen.contains(it));
        if done {
            break;
        }
    }
    is_everything_released(&sidecar.tenant).await;
    sidecar.end_cleanly().await;
    done
}

#[tokio::test(flavor = "multi_thread")]
async fn each_policy_does_what_it_is_named_for_and_no_token_changes() {
    let Some(stories) = Stories::find("each_policy_does_what_it_is_named_for_and_no_token_changes") else {
        return;
    };
    let world = TestEnv::new();
    let short = short(&world, &stories).await;
    for case in CASES {
        let (config, mut done) = (of_case(&short, case), false);
        for _ in 0..MOST_TENANTS {
            done = done || uses(&world, &stories, &config, case).await;
        }
        assert!(done, "{case:?}: {MOST_TENANTS} tenants did not");
    }
}

/// Streams golden requests one after another while `on`; returns their number.
async fn stream_while(tenant: &Tenant, stories: &Stories, on: &AtomicBool, first: usize) -> usize {
    let mut asked = 0;
    while on.load(Ordering::Relaxed) {
        let golden = &stories.golden[(first + asked) % stories.golden.len()];
        let stream = tenant.stream(&greedy(&golden.prompt_ids, golden.greedy_ids.len())).await;
        let answer = stream.finish().await.unwrap();
        assert_eq!(answer.names(), stories.shown(&golden.greedy_ids), "stream {first}, request {asked}");
        asked += 1;
    }
    asked
}

/// Sets every policy while streams are open, in order and back, each for some steps.
async fn switch_under_load(sidecar: &Sidecar<'_>, stories: &Stories, percent: u32) {
    let (tenant, on) = (&sidecar.tenant, AtomicBool::new(true));
    let names: Vec<_> = CASES[..7].iter().map(|(policy, ..)| *policy).collect();
    let there_and_back = names.iter().chain(names.iter().rev().skip(1)).chain(&names[2..5]);
    let switch = async {
        let mut seen = Observed::default();
        for (number, policy) in (1..).zip(there_and_back) {
            let before = tenant.state().await.figures.steps_total;
            sidecar.order(number, policy, percent).await;
            let in_force =
                |state: &State| state.policy == *policy && state.figures.steps_total >= before + STEPS;
            seen.check(&tenant.until(&format!("{policy} is in force"), in_force).await);
        }
        assert!(seen.most_running > 1, "there was a load: {seen:?}");
        on.store(false, Ordering::Relaxed);
    };
    let streams =
        futures_util::future::join_all((0..12).map(|first| stream_while(tenant, stories, &on, first)));
    let ((), asked) = tokio::join!(switch, streams);
    eprintln!("streams while policies changed: {asked:?}");
    is_everything_released(tenant).await;
}

/// Returns a configuration whose plans admit the first request, with part of its KV offloaded or its prompt in the
/// host tier.
fn of_first_come(short: &SidecarConfig) -> SidecarConfig {
    let mut config = short.clone();
    config.tunables = [("plan_first_come".to_owned(), 1)].into();
    config.slo.tbt_milliseconds = 10;
    config
}

#[tokio::test(flavor = "multi_thread")]
async fn policies_follow_each_other_under_load_and_no_token_changes() {
    let Some(stories) = Stories::find("policies_follow_each_other_under_load_and_no_token_changes") else {
        return;
    };
    let world = TestEnv::new();
    let short = short(&world, &stories).await;
    for config in [of_first_come(&short), short] {
        let sidecar = Sidecar::start(&world, &config).await;
        switch_under_load(&sidecar, &stories, config.memory.max_remapped_percent).await;
        let metrics = sidecar.metrics().await;
        for mechanism in [Preempts, MovesKv, LendsActivations] {
            assert!(mechanism.is_seen(&metrics), "{mechanism:?}, {:?}: {metrics:#?}", config.tunables);
        }
        sidecar.end_cleanly().await;
    }
}

/// Sends every golden request twice as a stream, all at once. Each client reads slowly, so that most of its tokens
/// are buffered.
async fn streams_in_store(tenant: &Tenant, stories: &Stories) {
    let twice = stories.golden.iter().chain(&stories.golden);
    let streams = twice.map(|golden| async move {
        let stream = tenant.stream(&greedy(&golden.prompt_ids, golden.greedy_ids.len())).await;
        let answer = stream.finish().await.unwrap();
        assert_eq!(answer.names(), stories.shown(&golden.greedy_ids));
    });
    futures_util::future::join_all(streams).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn buffered_streams_are_paused_for_waiting_ones_and_no_token_changes() {
    let name = "buffered_streams_are_paused_for_waiting_ones_and_no_token_changes";
    let Some(stories) = Stories::find(name) else { return };
    let world = TestEnv::new();
    // No layer may move as a whole, so that no other mechanism frees memory.
    let mut config = of_case(&short(&world, &stories).await, ("Unified", 1, &[]));
    (config.pacing, config.slo.tbt_milliseconds) = ("TokenDeposit".into(), 100);
    config.slo.ttft_milliseconds = 2000;
    let sidecar = Sidecar::start(&world, &config).await;
    let mut paused = 0.0;
    for _ in 0..MOST_LOADS {
        streams_in_store(&sidecar.tenant, &stories).await;
        paused = sidecar.metrics().await.sum("sluice_moves_total", &[("reason", "pause")]);
        if paused > 0.0 {
            break;
        }
    }
    assert!(paused > 0.0, "no request was paused");
    is_everything_released(&sidecar.tenant).await;
    sidecar.end_cleanly().await;
}

/// Sends every golden story four times, all at once, with half of its known text as prompt: long prompts, and the
/// rest as answers.
async fn halves(tenant: &Tenant, stories: &Stories) -> bool {
    let asked: Vec<_> = (0..4 * stories.golden.len())
        .map(|at| {
            let (tenant, golden) = (tenant.clone(), stories.golden[at % stories.golden.len()].clone());
            let (head, rest) = golden.greedy_ids.split_at(golden.greedy_ids.len() / 2);
            let (prompt, rest) = ([&golden.prompt_ids[..], head].concat(), rest.to_vec());
            tokio::spawn(async move { (tenant.complete(&greedy(&prompt, rest.len())).await.unwrap(), rest) })
        })
        .collect();
    let mut right = true;
    for one in asked {
        let (answer, rest) = one.await.unwrap();
        right &= answer.names() == stories.shown(&rest);
    }
    right
}

/// Returns a configuration with late first tokens, so that all of the host tier is soon for prompts.
fn of_impatient(short: &SidecarConfig) -> SidecarConfig {
    let mut config = of_case(short, ("Ellm", 60, &[]));
    config.slo.ttft_milliseconds = 1;
    config.debug.no_prefix_cache = true;
    config
}

#[tokio::test(flavor = "multi_thread")]
async fn prompts_without_free_blocks_are_computed_in_host_tier_and_no_token_changes() {
    let name = "prompts_without_free_blocks_are_computed_in_host_tier_and_no_token_changes";
    let Some(stories) = Stories::find(name) else { return };
    let world = TestEnv::new();
    let sidecar = Sidecar::start(&world, &of_impatient(&short(&world, &stories).await)).await;
    let mut out = false;
    for _ in 0..MOST_LOADS * MOST_TENANTS {
        assert!(halves(&sidecar.tenant, &stories).await, "other tokens");
        out = OffloadsPrompts.is_seen(&sidecar.metrics().await);
        if out {
            break;
        }
    }
    let metrics = sidecar.metrics().await;
    assert!(out, "every prompt waited for free blocks: {metrics:#?}");
    let written = metrics.sum("sluice_kv_writeback_bytes_total", &[]);
    assert!(written > 0.0, "{written} bytes went to the host");
    assert!(!MovesLayers.is_seen(&metrics), "no layer moved");
    is_everything_released(&sidecar.tenant).await;
    sidecar.end_cleanly().await;
}

/// Loads until layers have given up their memory.
async fn until_layers_are_away(sidecar: &Sidecar<'_>, stories: &Stories) {
    for _ in 0..MOST_TENANTS * MOST_LOADS {
        assert!(load(&sidecar.tenant, stories).await, "other tokens");
        if MovesLayers.is_seen(&sidecar.metrics().await) {
            return;
        }
    }
    panic!("no layer has gone");
}

#[tokio::test(flavor = "multi_thread")]
async fn on_a_gpu_of_its_own_a_tenant_follows_the_cap_of_a_directive() {
    let Some(stories) = Stories::find("on_a_gpu_of_its_own_a_tenant_follows_the_cap_of_a_directive") else {
        return;
    };
    let world = TestEnv::new();
    let config = of_case(&short(&world, &stories).await, ("Oneiros", 0, &[]));
    assert_eq!(config.gpu_ledger, None);
    let sidecar = Sidecar::start(&world, &config).await;
    let tenant = &sidecar.tenant;
    assert!(load(tenant, &stories).await, "other tokens");
    assert!(!MovesLayers.is_seen(&sidecar.metrics().await), "the configuration allows none");
    sidecar.order(1, "Oneiros", 60).await;
    tenant.until("it may move layers", |state: &State| state.remap.cap_layers > 0).await;
    until_layers_are_away(&sidecar, &stories).await;
    sidecar.order(2, "Oneiros", 0).await;
    let home = |state: &State| (state.remap.cap_layers, state.remap.alpha) == (0, 0);
    tenant.until("all layers are at home for good", home).await;
    assert!(load(tenant, &stories).await, "other tokens");
    let state = tenant.state().await;
    assert!(home(&state), "{:?}", state.remap);
    is_everything_released(tenant).await;
    sidecar.end_cleanly().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn behind_a_link_to_the_host_that_hardly_moves_all_ends_in_time_with_the_same_tokens() {
    let name = "behind_a_link_to_the_host_that_hardly_moves_all_ends_in_time_with_the_same_tokens";
    let Some(stories) = Stories::find(name) else { return };
    let world = TestEnv::new();
    let mut short = short(&world, &stories).await;
    short.gpu.link_to_host_bytes_per_second = Some(HARDLY);
    for case in CASES.into_iter().filter(|(_, _, must)| must.contains(&MovesKv)) {
        let sidecar = Sidecar::start(&world, &of_case(&short, case)).await;
        let begun = Instant::now();
        assert!(load(&sidecar.tenant, &stories).await, "{case:?}: other tokens");
        assert!(begun.elapsed() < SLOW, "{case:?} took {:?}", begun.elapsed());
        let tries = sidecar.metrics().await.sum("sluice_moves_total", &[("reason", "write_back")]);
        assert!(tries > 0.0, "{case:?}: nothing was on its way to the host");
        is_everything_released(&sidecar.tenant).await;
        sidecar.end_cleanly().await;
    }
    let sidecar = Sidecar::start(&world, &of_impatient(&short)).await;
    let begun = Instant::now();
    assert!(halves(&sidecar.tenant, &stories).await, "Ellm: other tokens");
    assert!(begun.elapsed() < SLOW, "Ellm took {:?}", begun.elapsed());
    assert!(!OffloadsPrompts.is_seen(&sidecar.metrics().await), "a prompt would take minutes to leave");
    is_everything_released(&sidecar.tenant).await;
    sidecar.end_cleanly().await;
    let sidecar = Sidecar::start(&world, &of_first_come(&short)).await;
    let begun = Instant::now();
    switch_under_load(&sidecar, &stories, short.memory.max_remapped_percent).await;
    assert!(begun.elapsed() < SLOW, "switching took {:?}", begun.elapsed());
    sidecar.end_cleanly().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_spoilt_block_that_moved_changes_tokens() {
    let Some(stories) = Stories::find("one_spoilt_block_that_moved_changes_tokens") else { return };
    let world = TestEnv::new();
    let config = of_case(&short(&world, &stories).await, ("FlexGen", 60, &[MovesKv]));
    let (program, fault) = ("examples/faulty-sidecar", ["--fault", "spoilt-block"]);
    let sidecar = Sidecar::start_as(&world, &config, program, &fault).await;
    let mut loads = 0;
    // The corrupted block depends on the order of requests, and some blocks have no effect.
    while load(&sidecar.tenant, &stories).await {
        loads += 1;
        assert!(loads < MOST_LOADS, "it went unnoticed");
    }
    is_everything_released(&sidecar.tenant).await;
    sidecar.end_cleanly().await;
}
