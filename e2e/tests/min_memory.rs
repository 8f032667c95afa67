//! No share is below the minimum memory of its tenant, for every start order and after restarts.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::time::Duration;

use rustix::process::Signal;

use crate::support::tenant::{greedy, prompt};
use crate::support::three_tenants::tenant_index;
use crate::support::{Tenant, TestEnv, Up, Yaml, eventually, model, processes};

/// 21.3 MiB of weights.
const MODEL: &str = "--layers 16 --hidden 256 --heads 8 --kv-heads 4 --intermediate 640";
/// Half of it is less than one minimum, and both minimums fit.
const MEMORY: &str = "52Mi";
const GPU: u64 = 52 << 20;
/// Time within which a tenant would take free memory.
const WHILE: Duration = Duration::from_secs(2);

/// Two tenants with equal weights: one lends no layer and has more guaranteed KV.
fn yaml(world: &TestEnv, memory: &'static str) -> Yaml {
    let folder = world.model("model", MODEL);
    let mut yaml = Yaml::pool(memory);
    for (name, memory) in
        [("larger", "guaranteedKv: 8Mi, maxRemappedPercent: 0"), ("smaller", "guaranteedKv: 2Mi")]
    {
        let spec = format!("pacing: {{mode: Immediate}}, drainSeconds: 2, memory: {{{memory}}}");
        yaml = yaml.tenant(name, &folder, ", maxModelLen: 256", &spec);
    }
    yaml.chunk = Some("64Ki");
    yaml
}

/// Creates a folder of binaries in which the sidecar of the tenant `late` waits for the file `go`.
fn binaries(world: &TestEnv, late: &str) -> PathBuf {
    let folder = world.path("bin");
    std::fs::create_dir(&folder).unwrap();
    symlink(model::binary("sluice-engine"), folder.join("sluice-engine")).unwrap();
    let (sidecar, go) = (model::binary("sluice-sidecar"), world.path("go"));
    let script = format!(
        "#!/bin/sh\ncase \"$*\" in *.{late}/*) while [ ! -e '{}' ]; do sleep 0.05; done;; esac\nexec '{}' \"$@\"\n",
        go.display(),
        sidecar.display()
    );
    let path = folder.join("sluice-sidecar");
    std::fs::write(&path, script).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

/// Starts both tenants, `late` once the other serves. The first of the result is the larger.
async fn start<'a>(world: &'a TestEnv, late: &str) -> (Up<'a>, [Tenant; 2]) {
    let mut up = world.up_of(&binaries(world, late), &yaml(world, MEMORY).text(), &[]);
    let early = if late == "larger" { "smaller" } else { "larger" };
    up.ready(early).await;
    world.write("go", "");
    let tenants = [up.ready("larger").await, up.ready("smaller").await];
    (up, tenants)
}

/// Waits until each has its assigned share: the larger gets its minimum, the smaller the rest. Returns both shares.
async fn settled(tenants: &[Tenant; 2]) -> [u64; 2] {
    eventually("each has what it was dealt", async || {
        let states = [tenants[0].state().await, tenants[1].state().await];
        let [larger, smaller] = states.each_ref().map(tenant_index);
        let dealt = larger.share_bytes == larger.floor_bytes
            && smaller.share_bytes + larger.share_bytes == GPU
            && [larger, smaller].iter().all(|one| one.share_bytes == one.wanted_share_bytes);
        (dealt && larger.floor_bytes > GPU / 2 && smaller.floor_bytes < GPU - larger.floor_bytes)
            .then_some([larger.share_bytes, smaller.share_bytes])
    })
    .await
}

async fn all_answer(tenants: &[Tenant; 2]) {
    for tenant in tenants {
        let answer = tenant.complete(&greedy(&prompt(1, 100), 48)).await.unwrap();
        assert_eq!(answer.tokens.len(), 48);
    }
}

/// Both serve, and the larger again after it was killed; the other does not take its memory.
async fn serve(late: &str) {
    let world = TestEnv::new();
    let (mut up, mut tenants) = start(&world, late).await;
    let shares = settled(&tenants).await;
    all_answer(&tenants).await;
    // `sluice up` must not restart it before the other had its time.
    up.signal(Signal::STOP);
    processes::signal(tenants[0].record.pid, Signal::KILL);
    tokio::time::sleep(WHILE).await;
    assert_eq!(
        tenant_index(&tenants[1].state().await).share_bytes,
        shares[1],
        "it takes no more than it was dealt"
    );
    up.signal(Signal::CONT);
    tenants[0] = up.ready_again("larger", 2).await;
    assert_eq!(settled(&tenants).await, shares);
    all_answer(&tenants).await;
    up.end_cleanly().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn floor_above_share_is_served_when_started_last() {
    serve("larger").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn floor_above_share_is_served_when_started_first() {
    serve("smaller").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn floors_that_do_not_fit_together_are_refused_by_line_before_anything_starts() {
    let world = TestEnv::new();
    let outcome = world.up(&yaml(&world, "40Mi"), &[]).ended().await;
    world.assert_no_leftovers().await;
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(78), ""), "{}", outcome.stderr);
    // The larger one is placed first, by its name.
    for words in [
        "default/smaller: cannot be served",
        "up.yaml:6: GpuPool/box spec.device.host.memory: no room on 1 GPU; the nearest is box-one-0: the floors of \
         its tenants leave too little device memory: ",
        ": ModelTenant/smaller spec.model.maxModelLen: ",
    ] {
        assert!(outcome.stderr.contains(words), "{words}: {}", outcome.stderr);
    }
    assert!(!outcome.stderr.contains("sidecar"), "no sidecar has started: {}", outcome.stderr);
}
