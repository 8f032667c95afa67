//! Tenants on a CUDA device: `sluice up` over a stand-in for the driver, with real sidecars and engines.

use crate::support::gpu::{CHUNK, StandIn};
use crate::support::model::Stories;
use crate::support::tenant::greedy;
use crate::support::{Tenant, TestEnv, Yaml, processes};

const IMMEDIATE: &str = "pacing: {mode: Immediate}, drainSeconds: 2";
/// Tokens of an answer of the reference model: the interpreter takes some 50 ms for a step.
const GOLDEN_TOKENS: usize = 40;

/// Asks for the beginnings of all golden answers at once, and compares them.
async fn assert_golden(tenant: &Tenant, stories: &Stories) {
    let ask = |prompt: Vec<u32>| {
        let tenant = tenant.clone();
        tokio::spawn(async move { tenant.complete(&greedy(&prompt, GOLDEN_TOKENS)).await.unwrap() })
    };
    let asked: Vec<_> = stories.golden.iter().map(|golden| ask(golden.prompt_ids.clone())).collect();
    for (answer, golden) in asked.into_iter().zip(&stories.golden) {
        let expected = stories.shown(&golden.greedy_ids[..GOLDEN_TOKENS]);
        assert_eq!(answer.await.unwrap().names(), expected, "{}", golden.text);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_reference_model_answers_with_its_golden_tokens_on_a_gpu_next_to_a_pool_of_host_memory() {
    let Some(stories) = Stories::find("golden tokens on a GPU") else { return };
    let mut world = TestEnv::new();
    let gpu = StandIn::install(&mut world, 32);
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
    for (process, loading) in [(device.record.pid, "LAZY"), (engine, "EAGER")] {
        for variable in [&format!("CUDA_MODULE_LOADING={loading}"), "CUDA_DEVICE_MAX_CONNECTIONS=32"] {
            assert!(processes::has_environment(process, &format!("{variable}\0")), "{process}: {variable}");
        }
    }
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
    StandIn::install(&mut world, 4);
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
