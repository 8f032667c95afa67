//! Shares and caps of tenants that run: a GPU is dealt out anew while it serves, and no token changes.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use sluice_wire::State;
use sluice_wire::config::SidecarRecord;
use sluice_wire::state::Phase;

use crate::support::dealer::{Dealer, Part, share};
use crate::support::trio::{self, Trio, place, same, told};
use crate::support::{Tenant, World, eventually, processes};

const GPU: u64 = 88 << 20;
const HALF: u64 = GPU / 2;
/// In whole chunks.
const THIRD: u64 = GPU / 3 / CHUNK * CHUNK;
const CHUNK: u64 = 64 << 10;
/// Words of a record of the ledger, and of its header.
const PAGE_WORDS: usize = 512;
/// A tenant that would not wait shows it within this time.
const WHILE: Duration = Duration::from_secs(2);

/// Shares of all lives, as the ledger file has them at one moment.
fn shares(world: &World) -> Vec<(u64, u64)> {
    let file = world.path("run/gpu.default.box-one-0/ledger");
    let read = || {
        let bytes = std::fs::read(&file).unwrap();
        let words: Vec<u64> =
            bytes.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap())).collect();
        let records = words.chunks_exact(PAGE_WORDS).skip(1);
        records.map(|record| (record[0], record[2])).collect::<Vec<_>>()
    };
    // It may change while it is read: what two reads in a row say was so between them.
    let mut before = read();
    loop {
        let now = read();
        if now == before {
            return now;
        }
        before = now;
    }
}

fn life(state: &State) -> u64 {
    place(state).instance
}

/// Looks at the ledger while `on`: shares of these lives sum to no more than the GPU. Returns how often they changed while
/// requests were `open`.
async fn audited(world: &World, lives: &[u64], on: &AtomicBool, open: impl Fn() -> bool) -> u32 {
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

/// Looks at the ledger while `on`: the most that anybody else than these lives is granted at once.
async fn most_of_others(world: &World, lives: &[u64], on: &AtomicBool) -> u64 {
    let mut most = 0;
    while on.load(Ordering::Relaxed) {
        let others = shares(world).into_iter().filter(|(life, _)| !lives.contains(life));
        most = others.map(|(_, share)| share).max().unwrap_or(0).max(most);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    most
}

/// The tenant of `folder` as of another process than `before`, whether or not it serves.
async fn next_life(folder: &Path, before: u32) -> Tenant {
    let file = folder.join("sidecar.json");
    let record = eventually("another sidecar listens", async || {
        let record: SidecarRecord = serde_json::from_slice(&std::fs::read(&file).ok()?).ok()?;
        (record.pid != before).then_some(record)
    });
    let record = record.await;
    Tenant { address: record.serve.to_string(), record, folder: folder.to_owned() }
}

/// Ends the third tenant, which nobody starts again before `sluice up` goes on; the others grow into what it had.
async fn third_leaves(trio: &Trio<'_>, dealer: &mut Dealer) {
    dealer.deal(&trio.tenants, &[share(HALF), share(HALF), share(0)]).await;
    trio.up.signal(Signal::STOP);
    processes::signal(trio.tenants[2].record.pid, Signal::KILL);
    for tenant in &trio.tenants[..2] {
        let grown = tenant.until("it has half of the GPU", |state| place(state).share_bytes == HALF).await;
        assert_eq!((place(&grown).wanted_share_bytes, &place(&grown).waits_for), (HALF, &None));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_comes_to_a_full_gpu_waits_until_the_others_make_room_and_no_token_changes() {
    let world = World::new();
    let mut trio = Trio::start(&world, "Oneiros").await;
    let alone = trio.alone().await;
    let mut dealer = Dealer::of(&trio.tenants).await;
    third_leaves(&trio, &mut dealer).await;
    let [alpha, beta, gone] = trio.tenants.clone();
    trio.up.signal(Signal::CONT);
    let late = next_life(&gone.folder, gone.record.pid).await;
    let waits = |state: &State| {
        let place = state.neighbourhood.as_ref();
        state.phase == Phase::Loading
            && place.and_then(|place| place.waits_for.as_ref()).is_some_and(|words| words.contains("floor"))
    };
    let waiting = late.until("it waits for its floor", waits).await;
    assert_eq!((place(&waiting).share_bytes, place(&waiting).held_bytes), (0, 0), "{waiting:?}");
    assert!(place(&waiting).balances() && waiting.engine.pid.is_some(), "{waiting:?}");
    assert_eq!(late.readiness().await, Some(503));
    tokio::time::sleep(WHILE).await;
    let still = late.state().await;
    assert!(waits(&still) && still.engine.pid == waiting.engine.pid, "nobody has made room: {still:?}");

    let lives = [life(&alpha.state().await), life(&beta.state().await), life(&still)];
    let loads = [&alpha, &beta].map(trio::begin);
    let open = || loads.iter().flatten().any(|request| !request.is_finished());
    let on = AtomicBool::new(true);
    let comes = async {
        trio.tenants[2] = late;
        dealer.deal(&trio.tenants, &[share(THIRD); 3]).await;
        trio.tenants[2] = trio.up.ready_again("gamma", 2).await;
        for tenant in &trio.tenants {
            tenant.until("it has a third", |state| place(state).share_bytes == THIRD).await;
        }
        on.store(false, Ordering::Relaxed);
    };
    let ((), changes) = tokio::join!(comes, audited(&world, &lives, &on, open));
    assert!(changes > 1, "shares fell and rose under load: {changes}");
    for (index, load) in loads.into_iter().enumerate() {
        same(index, trio::ended(load).await, &alone[index].0);
    }
    let (again, _) = trio.watched(&[0, 1, 2]).await;
    for (index, answers) in again.into_iter().enumerate() {
        same(index, answers, &alone[index].0);
    }
    let states = trio.states().await;
    assert_eq!(states.each_ref().map(life), lives, "nobody was started again: {:?}", told(&states));

    // One leaves, and the others have its part; the next that comes waits, and can be told to end.
    third_leaves(&trio, &mut dealer).await;
    let (folder, pid) = (trio.tenants[2].folder.clone(), trio.tenants[2].record.pid);
    trio.up.signal(Signal::CONT);
    next_life(&folder, pid).await.until("it waits for its floor", waits).await;
    assert_eq!(world.stdout().lines().count(), 4, "three, and the third once more: {}", world.stderr());
    trio.up.end_cleanly().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cap_that_falls_brings_layers_back_in_the_same_process() {
    let world = World::new();
    let trio = Trio::start(&world, "Oneiros").await;
    let (expected, _) = trio.alone().await.swap_remove(0);
    let mut dealer = Dealer::of(&trio.tenants).await;
    let alpha = &trio.tenants[0];
    let small = [Part { share_bytes: 18 << 20, cap: 60 }, share(THIRD), share(THIRD)];
    dealer.deal(&trio.tenants, &small).await;
    let moving = |state: &State| place(state).share_bytes <= 18 << 20 && state.remap.alpha > 0;
    let before = alpha.until("layers make room for the rest", moving).await;
    let (answers, _) = trio.watched(&[0]).await;
    answers.into_iter().for_each(|answers| same(0, answers, &expected));
    dealer.deal(&trio.tenants, &[Part { share_bytes: 18 << 20, cap: 0 }, share(THIRD), share(THIRD)]).await;
    let home = |state: &State| state.remap.alpha == 0 && state.remap.cap_layers == 0;
    let after = alpha.until("all layers are home", home).await;
    let (floor, share) = (place(&after).floor_bytes, place(&after).share_bytes);
    assert!(floor > place(&before).floor_bytes, "{:?}", place(&after));
    assert!(
        share >= floor && share > 18 << 20,
        "its floor is its own, though less was dealt: {:?}",
        place(&after)
    );
    assert_eq!((after.engine.pid, life(&after)), (before.engine.pid, life(&before)), "the same processes");
    let (answers, _) = trio.watched(&[0]).await;
    answers.into_iter().for_each(|answers| same(0, answers, &expected));
    assert_eq!(alpha.state().await.remap.alpha, 0, "and stay there");
    trio.up.end_cleanly().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_sidecar_comes_back_with_the_share_of_its_directive() {
    const DEALT: u64 = 26 << 20;
    let world = World::new();
    let mut trio = Trio::start(&world, "Oneiros").await;
    let configured = place(&trio.tenants[0].state().await).share_bytes;
    assert_ne!(configured, DEALT);
    let mut dealer = Dealer::of(&trio.tenants).await;
    dealer.deal(&trio.tenants, &[share(DEALT), share(HALF), share(0)]).await;
    trio.tenants[0].until("it gives up a part", |state| place(state).share_bytes == DEALT).await;
    processes::signal(trio.tenants[0].record.pid, Signal::KILL);
    let others = [life(&trio.tenants[1].state().await), life(&trio.tenants[2].state().await)];
    let on = AtomicBool::new(true);
    let comes = async {
        trio.tenants[0] = trio.up.ready_again("alpha", 2).await;
        on.store(false, Ordering::Relaxed);
    };
    let ((), most) = tokio::join!(comes, most_of_others(&world, &others, &on));
    assert_eq!(most, DEALT, "from its first moment, not what it was configured with");
    let again = trio.tenants[0].state().await;
    assert_eq!((place(&again).share_bytes, place(&again).wanted_share_bytes), (DEALT, DEALT), "{again:?}");
    trio.up.end_cleanly().await;
}
