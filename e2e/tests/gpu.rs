//! Tenants on a CUDA device: `sluice up` over a stand-in for the driver, with real sidecars and engines.

use rustix::process::Signal;
use sluice_wire::State;

use crate::support::gpu::{CHUNK, StandIn};
use crate::support::model::Stories;
use crate::support::tenant::{greedy, prompt};
use crate::support::three_tenants::{
    self, OpenLoad, RETURN_AFTER_CRASHES, ThreeTenants, reported_events, tenant_index,
};
use crate::support::{Answer, Tenant, TestEnv, Yaml, eventually, processes};

const IMMEDIATE: &str = "pacing: {mode: Immediate}, drainSeconds: 2";
/// Asks for all golden answers at once, and compares every token.
async fn assert_golden(tenant: &Tenant, stories: &Stories) {
    let ask = |prompt: Vec<u32>, tokens: usize| {
        let tenant = tenant.clone();
        tokio::spawn(async move { tenant.complete(&greedy(&prompt, tokens)).await.unwrap() })
    };
    let all = stories.golden.iter();
    let asked: Vec<_> = all.map(|golden| ask(golden.prompt_ids.clone(), golden.greedy_ids.len())).collect();
    for (answer, golden) in asked.into_iter().zip(&stories.golden) {
        let expected = stories.shown(&golden.greedy_ids);
        assert_eq!(answer.await.unwrap().names(), expected, "{}", golden.text);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_reference_model_answers_with_its_golden_tokens_on_a_gpu_next_to_a_pool_of_host_memory() {
    let Some(stories) = Stories::find("golden tokens on a GPU") else { return };
    let mut world = TestEnv::new();
    let gpu = StandIn::install(&mut world, 32, 1);
    let cuda = Yaml::cuda_pool().tenant("device", &stories.folder, "", IMMEDIATE).text();
    let host = Yaml::pool("16Mi").tenant("host", &stories.folder, "", IMMEDIATE).text();
    let both = format!("{}---\n{host}", cuda.replace("box", "gpu"));
    let mut up = world.up_text(&both, &["--poison"]);
    let (device, host) = (up.ready("device").await, up.ready("host").await);
    assert_golden(&device, &stories).await;
    assert_golden(&host, &stories).await;
    let state = device.state().await;
    // All memory is the device's, and its chunks are those of CUDA.
    assert_eq!((state.memory.capacity_bytes, state.memory.chunk_bytes), (32 * CHUNK, CHUNK));
    assert!(state.memory.balances(), "{:?}", state.memory);
    let engine = state.engine.pid.unwrap();
    let queues = "CUDA_DEVICE_MAX_CONNECTIONS=32\0";
    assert!(processes::has_environment(device.record.pid, "CUDA_MODULE_LOADING=LAZY\0"));
    assert!([device.record.pid, engine].iter().all(|pid| processes::has_environment(*pid, queues)));
    assert!(world.stderr().contains("gpu-one-0 is "), "the device is named: {}", world.stderr());
    up.end_cleanly().await;
    gpu.assert_nothing_held(&world);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_with_too_few_devices_is_refused_at_the_field() {
    let mut world = TestEnv::new();
    StandIn::library(&mut world);
    let model = world.model("model", "--layers 2 --hidden 64");
    let mut yaml = Yaml::cuda_pool().tenant("one", &model, "", IMMEDIATE);
    let none = world.up(&yaml, &[]).ended().await;
    assert_eq!(none.code, Some(78), "{none:?}");
    let expected =
        "up.yaml:5:3: spec.deviceClassName: `gpu.nvidia.com` needs a CUDA device, and there is none: ";
    assert!(none.stderr.contains(expected) && none.stderr.contains("cuInit"), "{}", none.stderr);
    let mut world = TestEnv::new();
    StandIn::install(&mut world, 4, 1);
    yaml.gpus = 2;
    let two = world.up(&yaml, &[]).ended().await;
    let expected = "spec.gpus[0].count: the group needs 2 CUDA devices, and 1 is left: the driver has ";
    assert!(two.stderr.contains(expected), "{}", two.stderr);
    yaml.gpus = 1;
    let small = world.up(&yaml, &[]).ended().await;
    let expected = "spec.deviceClassName: the tenant's floor of ";
    assert!(
        small.stderr.contains(expected) && small.stderr.contains("128 MiB free of 160 MiB"),
        "{}",
        small.stderr
    );
    world.set("SLUICE_STANDIN_FAULTS", "cuCtxCreate_v2=46");
    let busy = world.up(&yaml, &[]).ended().await;
    let expected = "needs a CUDA device, and there is none: the driver has ";
    let problem = ", 160 MiB: the driver gives no context: ";
    assert!(busy.stderr.contains(expected) && busy.stderr.contains(problem), "{}", busy.stderr);
}

/// Few weights, of which each layer takes a chunk, and much KV: a sequence of five blocks takes 5 MiB, so three of them
/// fill a chunk, and the interpreter computes few positions.
const MODEL: &str =
    "--layers 8 --hidden 64 --heads 8 --kv-heads 8 --head-dim 256 --intermediate 64 --vocab 300";
/// Chunks of a tenant with all layers: 8, one of other weights, 3 of activations, one of KV.
const WHOLE: u64 = 13;
/// Sequences of a load: three chunks of KV, of which a share has one. The others are in place of layers.
const LOAD: u32 = 9;
/// Sequences of the load whose KV a share holds.
const SMALL_LOAD: u32 = 3;
const NAMES: [&str; 3] = ["alpha", "beta", "gamma"];

fn begin(tenant: &Tenant, seeds: std::ops::Range<u32>) -> OpenLoad {
    let request = |seed| {
        let tenant = tenant.clone();
        tokio::spawn(async move { tenant.complete(&greedy(&prompt(seed, 60), 5)).await })
    };
    seeds.map(request).collect()
}

async fn start(world: &TestEnv) -> ThreeTenants<'_> {
    let mut yaml = Yaml::cuda_pool();
    for (seed, name) in NAMES.into_iter().enumerate() {
        let folder = world.model(&format!("model-{name}"), &format!("{MODEL} --seed {seed}"));
        yaml = yaml.tenant(name, &folder, ", maxModelLen: 256", IMMEDIATE);
    }
    yaml.sharing = Some("{mode: Temporal, temporal: {order: RoundRobin}}");
    yaml.remap = Some("{minResidenceMilliseconds: 0}");
    let mut up = world.up(&yaml, &["--poison"]);
    let tenants = [up.ready(NAMES[0]).await, up.ready(NAMES[1]).await, up.ready(NAMES[2]).await];
    ThreeTenants { up, tenants }
}

/// Returns the answers of each tenant while it needs no memory of the others.
async fn baseline(trio: &ThreeTenants<'_>) -> Vec<Vec<Answer>> {
    let mut all = Vec::new();
    for tenant in &trio.tenants {
        let mut answers = Vec::new();
        for first in (0..LOAD).step_by(SMALL_LOAD as usize) {
            let load = begin(tenant, first..LOAD.min(first + SMALL_LOAD));
            answers.extend(three_tenants::ended(load).await.into_iter().map(Result::unwrap));
        }
        all.push(answers);
    }
    let states = trio.states().await;
    let lent = |state: &State| tenant_index(state).lent_bytes;
    assert!(states.iter().all(|state| lent(state) == 0), "{:?}", reported_events(&states));
    all
}

/// Loads one tenant until another has lent it memory. Returns the load and the lender.
async fn until_lent(trio: &ThreeTenants<'_>, borrower: usize) -> (OpenLoad, usize) {
    let mut load = begin(&trio.tenants[borrower], 0..LOAD);
    let lender = eventually("a peer lends", async || {
        if load.iter().all(tokio::task::JoinHandle::is_finished) {
            load = begin(&trio.tenants[borrower], 0..LOAD);
        }
        let mut states = trio.states().await.into_iter().enumerate();
        states.find(|(at, state)| *at != borrower && tenant_index(state).lent_bytes > 0).map(|(at, _)| at)
    });
    let lender = lender.await;
    (load, lender)
}

fn assert_same(answers: three_tenants::Answers, expected: &[Answer]) {
    for (at, answer) in answers.into_iter().enumerate() {
        // A request that the kill cut has no answer.
        if let Ok(answer) = answer {
            assert_eq!(answer, expected[at], "request {at}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "cargo xtask nightly: the interpreter takes minutes"]
async fn three_tenants_lend_memory_of_a_gpu_while_an_engine_and_a_sidecar_are_killed() {
    let mut world = TestEnv::new();
    let gpu = StandIn::install(&mut world, 3 * WHOLE, 3);
    let mut trio = start(&world).await;
    let expected = baseline(&trio).await;
    // An engine of a lender, then the sidecar of the borrower.
    let (load, lender) = until_lent(&trio, 0).await;
    let engine = trio.tenants[lender].engine().await;
    processes::signal(engine, Signal::KILL);
    let replaced = |state: &State| state.engine.restarts > 0 && state.engine.pid.is_some();
    trio.tenants[lender].until("its engine is replaced", replaced).await;
    let answers = three_tenants::ended(load).await;
    assert!(answers.iter().all(Result::is_ok), "the borrower goes on");
    assert_same(answers, &expected[0]);
    let (load, _) = until_lent(&trio, 1).await;
    processes::signal(trio.tenants[1].record.pid, Signal::KILL);
    assert_same(three_tenants::ended(load).await, &expected[1]);
    trio.tenants[1] = trio.up.ready_again(NAMES[1], 2).await;
    // All at once, each with a load that exceeds its share.
    let loads = trio.tenants.each_ref().map(|tenant| begin(tenant, 0..LOAD));
    for (load, expected) in loads.into_iter().zip(&expected) {
        let answers = three_tenants::ended(load).await;
        assert!(answers.iter().all(Result::is_ok), "{:?}", reported_events(&trio.states().await));
        assert_same(answers, expected);
    }
    trio.are_all_loans_returned(RETURN_AFTER_CRASHES).await;
    trio.up.end_cleanly().await;
    gpu.assert_nothing_held(&world);
}
