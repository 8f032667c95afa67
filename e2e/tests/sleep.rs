//! Sleeping tenants: other tenants use their memory, and their conversations continue.

use std::time::Duration;

use sluice_wire::state::Phase;

use crate::support::model::bin_folder;
use crate::support::tenant::{greedy, prompt};
use crate::support::three_tenants::tenant_index;
use crate::support::{Tenant, TestEnv, Yaml};

/// 21 MiB of weights each. A request of the load grows to 10 blocks of 16 KiB in each of 16 layers.
const MODEL: &str = "--layers 16 --hidden 256 --heads 8 --kv-heads 8 --intermediate 512";
const ASLEEP: &str = "pacing: {mode: Immediate}, memory: {hostKv: 8Mi}, \
                      idle: {afterSeconds: 1, hibernateAfterSeconds: 2}, drainSeconds: 2";
/// It never sleeps by itself.
const BY_HAND: &str =
    "pacing: {mode: Immediate}, memory: {hostKv: 8Mi}, limits: {holdSeconds: 2}, drainSeconds: 2";
const AWAKE: &str = "pacing: {mode: Immediate}, drainSeconds: 2";

async fn hibernated(tenant: &Tenant) {
    tenant.until("it hibernates", |state| state.phase == Phase::Hibernated).await;
    let state = tenant.state().await;
    assert_eq!(state.memory.owners.weights_layers_bytes + state.memory.owners.kv_bytes, 0, "{state:?}");
    assert!(state.memory.balances(), "{:?}", state.memory);
}

#[tokio::test(flavor = "multi_thread")]
async fn sleeping_tenant_lends_all_and_wakes_on_request() {
    let world = TestEnv::new();
    let mut yaml = Yaml::pool("72Mi");
    for (seed, (name, spec)) in [("sleeper", ASLEEP), ("worker", AWAKE)].into_iter().enumerate() {
        let folder = world.model(&format!("model-{name}"), &format!("{MODEL} --seed {seed}"));
        yaml = yaml.tenant(name, &folder, ", maxModelLen: 256", spec);
    }
    (yaml.link, yaml.chunk, yaml.policy) = (Some("2Gi"), Some("64Ki"), "Oneiros");
    yaml.sharing = Some("{mode: Spatial}");
    yaml.remap = Some("{minResidenceMilliseconds: 0}");
    let mut up = world.up(&yaml, &["--poison"]);
    let (sleeper, worker) = (up.ready("sleeper").await, up.ready("worker").await);
    let question = greedy(&prompt(1, 100), 40);
    let answer = sleeper.complete(&question).await.unwrap();
    hibernated(&sleeper).await;
    let floor = tenant_index(&sleeper.state().await).floor_bytes;

    // More KV than the worker's own memory: it grows into memory that the sleeping tenant does not need, beyond its
    // minimum.
    let load: Vec<_> = (0..16)
        .map(|seed| {
            let worker = worker.clone();
            tokio::spawn(async move { worker.complete(&greedy(&prompt(seed, 100), 60)).await })
        })
        .collect();
    let lent =
        |state: &sluice_wire::State| tenant_index(state).lent_bytes > tenant_index(state).share_bytes - floor;
    sleeper.until("its floor is lent, too", lent).await;
    assert_eq!(
        sleeper.complete(&question).await.unwrap(),
        answer,
        "it takes its memory back and says the same"
    );
    let state = sleeper.state().await;
    let computed = state.figures.prefill_tokens_total;
    assert!(computed < 100 + 16, "of the same prompt again only the last column is computed: {computed}");
    assert!(tenant_index(&state).held_bytes >= floor && state.figures.steps_total > 0, "{state:?}");
    let mut answers = Vec::new();
    for request in load {
        answers.push(request.await.unwrap().unwrap());
    }
    // Its memory was reclaimed during these requests: alone it gives the same answers.
    for (seed, answer) in (0..).zip(answers) {
        assert_eq!(worker.complete(&greedy(&prompt(seed, 100), 60)).await.unwrap(), answer, "request {seed}");
    }
    tokio::time::timeout(Duration::from_secs(60), hibernated(&sleeper)).await.unwrap();
    up.end_cleanly().await;
}

/// Standard output of `sluice` with these arguments, which must end with status 0.
async fn sluice(world: &TestEnv, arguments: &'static [&'static str]) -> String {
    let mut command = world.sluice(&bin_folder());
    command.args(arguments);
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn tenant_sleeps_and_wakes_on_command() {
    let world = TestEnv::new();
    let folder = world.model("model", &format!("{MODEL} --seed 3"));
    let mut yaml = Yaml::pool("72Mi").tenant("sleeper", &folder, ", maxModelLen: 256", BY_HAND);
    yaml.chunk = Some("64Ki");
    let mut up = world.up(&yaml, &["--poison"]);
    let sleeper = up.ready("sleeper").await;
    let question = greedy(&prompt(1, 100), 40);
    let answer = sleeper.complete(&question).await.unwrap();

    let line = sluice(&world, &["sleep", "sleeper"]).await;
    assert!(line.starts_with("default/sleeper is asleep: ") && line.ends_with(" MiB freed\n"), "{line}");
    let state = sleeper.state().await;
    assert_eq!((state.phase, state.sleep_ordered), (Phase::Hibernated, true));
    assert_eq!(state.memory.owners.weights_layers_bytes + state.memory.owners.kv_bytes, 0, "{state:?}");
    let (status, ..) = sleeper.refusal(&question).await;
    assert_eq!((status, sleeper.state().await.phase), (503, Phase::Hibernated), "a request does not wake it");

    let line = sluice(&world, &["wake", "default/sleeper"]).await;
    assert_eq!(line, "default/sleeper is awake\n");
    assert_ne!(sleeper.state().await.phase, Phase::Hibernated);
    assert_eq!(sleeper.complete(&question).await.unwrap(), answer);
    up.end_cleanly().await;
}
