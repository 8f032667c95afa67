//! Devices and contexts that do not fit each other: reported with numbers at the start.

use crate::support::tenant::{greedy, prompt};
use crate::support::{Outcome, TestEnv, Yaml};

/// About 2.2 MiB of weights; a block of KV is 4 KiB, a sequence of 4096 tokens 4 MiB.
const MODEL: &str =
    "--layers 4 --hidden 128 --intermediate 384 --vocab 300 --max-positions 4096 --kv-heads 2 --heads 4";

async fn up(memory: &'static str, model: &str) -> Outcome {
    let world = TestEnv::new();
    let folder = world.model("model", MODEL);
    let outcome = world.up(&Yaml::pool(memory).tenant("large", &folder, model, ""), &[]).ended().await;
    world.assert_no_leftovers().await;
    outcome
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_that_is_too_small_for_the_weights_is_refused() {
    let outcome = up("1Mi", ", maxModelLen: 64").await;
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(78), ""), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("default/large"), "{}", outcome.stderr);
    let size = "exceeds its largest usable GPU, which has 1 MiB";
    assert!(outcome.stderr.contains(size), "{}", outcome.stderr);
    for line in [
        "up.yaml:6: GpuPool/box spec.device.host.memory: the tenant's floor of ",
        ": ModelTenant/large spec.model.maxModelLen: ",
    ] {
        assert!(outcome.stderr.contains(line), "{line}: {}", outcome.stderr);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_context_that_does_not_fit_is_refused_and_a_shorter_one_is_served() {
    let outcome = up("6Mi", "").await;
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(78), ""), "{}", outcome.stderr);
    let words = "GpuPool/box spec.device.host.memory: the tenant's floor of 7 MiB exceeds its largest usable GPU, \
                 which has 6 MiB";
    assert_eq!(outcome.stderr.matches(words).count(), 1, "{}", outcome.stderr);

    let world = TestEnv::new();
    let folder = world.model("model", MODEL);
    let mut up = world.up(
        &Yaml::pool("6Mi").tenant("large", &folder, ", maxModelLen: 256", "pacing: {mode: Immediate}"),
        &[],
    );
    let tenant = up.ready("large").await;
    let answer = tenant.complete(&greedy(&prompt(1, 100), 156)).await.unwrap();
    assert_eq!(answer.tokens.len(), 156);
    let (status, error, _) = tenant.refusal(&greedy(&prompt(1, 100), 157)).await;
    assert_eq!((status, error["code"].as_str()), (400, Some("context_length_exceeded")), "{error}");
    up.end_cleanly().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_context_beyond_the_models_own_is_refused_by_field() {
    let outcome = up("64Mi", ", maxModelLen: 5000").await;
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(78), ""), "{}", outcome.stderr);
    let words = "ModelTenant/large spec.model.maxModelLen: 5000 exceeds the 4096 positions of the model";
    assert_eq!(outcome.stderr.matches(words).count(), 1, "{}", outcome.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn guaranteed_kv_below_one_request_of_full_length_is_refused_with_both_numbers() {
    let world = TestEnv::new();
    let folder = world.model("model", MODEL);
    let yaml = Yaml::pool("64Mi").tenant("large", &folder, "", "memory: {guaranteedKv: 1Mi}");
    let outcome = world.up(&yaml, &[]).ended().await;
    world.assert_no_leftovers().await;
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(78), ""), "{}", outcome.stderr);
    // 4096 tokens are 256 blocks in each of 4 layers; a block is 16 tokens x (K and V) x 2 heads x 32 x 2 bytes.
    let words = [&(256 * 4 * 16 * 2 * 2 * 32 * 2).to_string(), "1048576", "spec.memory.guaranteedKv: "];
    assert!(words.iter().all(|words| outcome.stderr.contains(*words)), "{}", outcome.stderr);
}
