//! Shares and caps of running tenants: the memory of a GPU is assigned again while it serves, and no token changes.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use sluice_wire::State;
use sluice_wire::config::SidecarRecord;
use sluice_wire::state::Phase;

use crate::support::share_driver::{ShareDriver, TenantShare, share};
use crate::support::three_tenants::{self, ThreeTenants, reported_events, same, tenant_index};
use crate::support::{Tenant, TestEnv, eventually, processes};

const GPU: u64 = 88 << 20;
const HALF: u64 = GPU / 2;
/// In whole chunks.
const THIRD: u64 = GPU / 3 / CHUNK * CHUNK;
const CHUNK: u64 = 64 << 10;
/// Words of a record of the ledger, and of its header.
const PAGE_WORDS: usize = 512;
/// Time within which a tenant that does not wait would show it.
const WHILE: Duration = Duration::from_secs(2);

/// Returns the shares of all instances in the ledger file at one moment.
fn shares(world: &TestEnv) -> Vec<(u64, u64)> {
    let file = world.path("run/gpu.default.box-one-0/ledger");
    let read = || {
        let bytes = std::fs::read(&file).unwrap();
        let words: Vec<u64> =
            bytes.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap())).collect();
        let records = words.chunks_exact(PAGE_WORDS).skip(1);
        records.map(|record| (record[0], record[2])).collect::<Vec<_>>()
    };
    // The file may change during a read: two equal reads in a row are consistent.
    let mut before = read();
    loop {
        let now = read();
        if now == before {
            return now;
        }
        before = now;
    }
}

fn instance_of(state: &State) -> u64 {
    tenant_index(state).instance
}

/// Audits the ledger while `on`: the shares of these instances sum to at most the GPU. Returns the number of
/// changes while requests were `open`.
async fn audited(world: &TestEnv, lives: &[u64], on: &AtomicBool, open: impl Fn() -> bool) -> u32 {
    let (mut changes, mut before) = (0, None);
    while on.load(Ordering::Relaxed) {
        let all = shares(world).into_iter().filter(|(life, _)| lives.contains(life));
        let now: Vec<u64> = all.map(|(_, share)| share).collect();
        assert!(now.iter().sum::<u64>() <= GPU, "{now:?} are dealt out of {GPU}");
        changes += u32::from(before.is_some_and(|before| before != now) && open());
        before = Some(now);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    changes
}

/// Audits the ledger while `on`. Returns the most bytes that other instances were granted at once.
async fn most_of_others(world: &TestEnv, lives: &[u64], on: &AtomicBool) -> u64 {
    let mut most = 0;
    while on.load(Ordering::Relaxed) {
        let others = shares(world).into_iter().filter(|(life, _)| !lives.contains(life));
        most = others.map(|(_, share)| share).max().unwrap_or(0).max(most);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    most
}

/// Returns the tenant of `folder` as of another process than `before`, serving or not.
async fn next_instance(folder: &Path, before: u32) -> Tenant {
    let file = folder.join("sidecar.json");
    let record = eventually("another sidecar listens", async || {
        let record: SidecarRecord = serde_json::from_slice(&std::fs::read(&file).ok()?).ok()?;
        (record.pid != before).then_some(record)
    });
    let record = record.await;
    Tenant { address: record.serve.to_string(), record, folder: folder.to_owned() }
}

/// Ends the third tenant, which is not restarted before `sluice up` continues; the others grow into its memory.
async fn third_leaves(trio: &ThreeTenants<'_>, driver: &mut ShareDriver) {
    driver.assign_shares(&trio.tenants, &[share(HALF), share(HALF), share(0)]).await;
    trio.up.signal(Signal::STOP);
    processes::signal(trio.tenants[2].record.pid, Signal::KILL);
    for tenant in &trio.tenants[..2] {
        let grown =
            tenant.until("it has half of the GPU", |state| tenant_index(state).share_bytes == HALF).await;
        assert_eq!((tenant_index(&grown).wanted_share_bytes, &tenant_index(&grown).waits_for), (HALF, &None));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn new_tenant_on_full_gpu_waits_for_shares() {
    let world = TestEnv::new();
    let mut trio = ThreeTenants::start(&world, "Oneiros").await;
    let baseline = trio.baseline().await;
    let mut driver = ShareDriver::of(&trio.tenants).await;
    third_leaves(&trio, &mut driver).await;
    let [alpha, beta, gone] = trio.tenants.clone();
    trio.up.signal(Signal::CONT);
    let late = next_instance(&gone.folder, gone.record.pid).await;
    let waits = |state: &State| {
        let place = state.peers.as_ref();
        state.phase == Phase::Loading
            && place.and_then(|place| place.waits_for.as_ref()).is_some_and(|words| words.contains("floor"))
    };
    let waiting = late.until("it waits for its floor", waits).await;
    assert_eq!(
        (tenant_index(&waiting).share_bytes, tenant_index(&waiting).held_bytes),
        (0, 0),
        "{waiting:?}"
    );
    assert!(tenant_index(&waiting).balances() && waiting.engine.pid.is_some(), "{waiting:?}");
    assert_eq!(late.readiness().await, Some(503));
    tokio::time::sleep(WHILE).await;
    let still = late.state().await;
    assert!(waits(&still) && still.engine.pid == waiting.engine.pid, "no tenant has made room: {still:?}");

    let lives = [instance_of(&alpha.state().await), instance_of(&beta.state().await), instance_of(&still)];
    let loads = [&alpha, &beta].map(three_tenants::begin);
    let open = || loads.iter().flatten().any(|request| !request.is_finished());
    let on = AtomicBool::new(true);
    let comes = async {
        trio.tenants[2] = late;
        driver.assign_shares(&trio.tenants, &[share(THIRD); 3]).await;
        trio.tenants[2] = trio.up.ready_again("gamma", 2).await;
        for tenant in &trio.tenants {
            tenant.until("it has a third", |state| tenant_index(state).share_bytes == THIRD).await;
        }
        on.store(false, Ordering::Relaxed);
    };
    let ((), changes) = tokio::join!(comes, audited(&world, &lives, &on, open));
    assert!(changes > 1, "shares fell and rose under load: {changes}");
    for (index, load) in loads.into_iter().enumerate() {
        same(index, three_tenants::ended(load).await, &baseline[index].0);
    }
    let (again, _) = trio.watched(&[0, 1, 2]).await;
    for (index, answers) in again.into_iter().enumerate() {
        same(index, answers, &baseline[index].0);
    }
    let states = trio.states().await;
    assert_eq!(
        states.each_ref().map(instance_of),
        lives,
        "no process was started again: {:?}",
        reported_events(&states)
    );

    // One tenant ends, and the others get its memory; its successor waits, and can be ended.
    third_leaves(&trio, &mut driver).await;
    let (folder, pid) = (trio.tenants[2].folder.clone(), trio.tenants[2].record.pid);
    trio.up.signal(Signal::CONT);
    next_instance(&folder, pid).await.until("it waits for its floor", waits).await;
    assert_eq!(world.stdout().lines().count(), 4, "three, and the third once more: {}", world.stderr());
    trio.up.end_cleanly().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cap_that_falls_brings_layers_back_in_the_same_process() {
    let world = TestEnv::new();
    let trio = ThreeTenants::start(&world, "Oneiros").await;
    let (expected, _) = trio.baseline().await.swap_remove(0);
    let mut driver = ShareDriver::of(&trio.tenants).await;
    let alpha = &trio.tenants[0];
    let small = [TenantShare { share_bytes: 18 << 20, cap: 60 }, share(THIRD), share(THIRD)];
    driver.assign_shares(&trio.tenants, &small).await;
    let moving = |state: &State| tenant_index(state).share_bytes <= 18 << 20 && state.remap.alpha > 0;
    let before = alpha.until("layers make room for the rest", moving).await;
    let (answers, _) = trio.watched(&[0]).await;
    answers.into_iter().for_each(|answers| same(0, answers, &expected));
    driver
        .assign_shares(
            &trio.tenants,
            &[TenantShare { share_bytes: 18 << 20, cap: 0 }, share(THIRD), share(THIRD)],
        )
        .await;
    let home = |state: &State| state.remap.alpha == 0 && state.remap.cap_layers == 0;
    let after = alpha.until("all layers are home", home).await;
    let (floor, share) = (tenant_index(&after).floor_bytes, tenant_index(&after).share_bytes);
    assert!(floor > tenant_index(&before).floor_bytes, "{:?}", tenant_index(&after));
    assert!(
        share >= floor && share > 18 << 20,
        "its floor is its own, though less was dealt: {:?}",
        tenant_index(&after)
    );
    assert_eq!(
        (after.engine.pid, instance_of(&after)),
        (before.engine.pid, instance_of(&before)),
        "the same processes"
    );
    let (answers, _) = trio.watched(&[0]).await;
    answers.into_iter().for_each(|answers| same(0, answers, &expected));
    assert_eq!(alpha.state().await.remap.alpha, 0, "and stay there");
    trio.up.end_cleanly().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_sidecar_restarts_with_directive_share() {
    const ASSIGNED_SHARE: u64 = 26 << 20;
    let world = TestEnv::new();
    let mut trio = ThreeTenants::start(&world, "Oneiros").await;
    let configured = tenant_index(&trio.tenants[0].state().await).share_bytes;
    assert_ne!(configured, ASSIGNED_SHARE);
    let mut driver = ShareDriver::of(&trio.tenants).await;
    driver.assign_shares(&trio.tenants, &[share(ASSIGNED_SHARE), share(HALF), share(0)]).await;
    trio.tenants[0]
        .until("it gives up a part", |state| tenant_index(state).share_bytes == ASSIGNED_SHARE)
        .await;
    processes::signal(trio.tenants[0].record.pid, Signal::KILL);
    let others = [instance_of(&trio.tenants[1].state().await), instance_of(&trio.tenants[2].state().await)];
    let on = AtomicBool::new(true);
    let comes = async {
        trio.tenants[0] = trio.up.ready_again("alpha", 2).await;
        on.store(false, Ordering::Relaxed);
    };
    let ((), most) = tokio::join!(comes, most_of_others(&world, &others, &on));
    assert_eq!(most, ASSIGNED_SHARE, "from its first moment, not what it was configured with");
    let again = trio.tenants[0].state().await;
    assert_eq!(
        (tenant_index(&again).share_bytes, tenant_index(&again).wanted_share_bytes),
        (ASSIGNED_SHARE, ASSIGNED_SHARE),
        "{again:?}"
    );
    trio.up.end_cleanly().await;
}
