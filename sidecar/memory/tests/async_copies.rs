//! KV copies concurrent with steps: pace, fairness, faults, exclusive access to host blocks, and shutdown.

use std::time::{Duration, Instant};

use sluice_memory::{Faults, KvCopyStats, MemoryOptions};
use sluice_policy::action::{Address, Fetch, Fill, FillTarget, LayerBlockSwap, MapOp, Work};
use sluice_policy::event::{Failure, Outcome};
use sluice_policy::ids::{ChunkId, Generation, HostBlockId, KvChunkId, LayerBlockId, LayerId, Nanos, SlotId};

use super::harness::{Harness, chunks, geometry, remap};

const CHUNK: u64 = 256 << 10;
/// A chunk has eight blocks.
const BLOCK: u64 = CHUNK / 8;
/// A slab takes one second, and a block a sixteenth of one.
const RATE: u64 = 512 << 10;
/// A slab takes half a minute, longer than a busy machine delays a thread, and a block two seconds.
const SLOW_RATE: u64 = RATE / 32;
const A: LayerId = LayerId(0);
const B: LayerId = LayerId(1);

/// Maps KV chunks 0 to 5 to the chunks of the same number, and swaps blocks 0 and 1 out to host blocks 0 and 1
/// with generations 1 and 2.
fn world(change: impl Fn(&mut MemoryOptions)) -> Harness {
    let mut world = Harness::with(&geometry(CHUNK, 8, 2, 2 * CHUNK), |options| {
        options.host_kv_bytes = 64 * BLOCK;
        change(options);
    });
    world.succeed(Work::Create(chunks(0..8)));
    let map = |chunk| MapOp::Map(Address::Kv(KvChunkId(chunk)), ChunkId(chunk));
    world.succeed(remap((0..6).map(map).collect(), vec![]));
    world.write_layer_block(LayerBlockId(0), 10);
    world.write_layer_block(LayerBlockId(1), 11);
    world.succeed(Work::SwapOut(vec![swap(0, 0, 1), swap(1, 1, 2)]));
    world
}

fn swap(layer_block: u32, host: u32, generation: u64) -> LayerBlockSwap {
    let (layer_block, chunk) = (LayerBlockId(layer_block), ChunkId(layer_block / 8));
    LayerBlockSwap { layer_block, chunk, host: HostBlockId(host), generation: Generation(generation) }
}

fn swap_from_tuple((layer_block, host, generation): (u32, u32, u64)) -> LayerBlockSwap {
    swap(layer_block, host, generation)
}

fn fetch(layer: LayerId, buffer: u8, generation: u64, layer_blocks: &[LayerBlockSwap]) -> Work {
    let generation = Generation(generation);
    Work::Fetch(Fetch { layer, buffer, generation, after: None, layer_blocks: layer_blocks.to_vec().into() })
}

fn duration(outcome: Outcome) -> Duration {
    let Outcome::Done { duration_ns, .. } = outcome else { panic!("the copy ended as {outcome:?}") };
    Duration::from_nanos(duration_ns)
}

/// A fill of a slab of two chunks into chunks 6 and 7.
fn fill() -> Work {
    let target = FillTarget::Resident(A);
    Work::Fill(Fill { target, generation: Generation(1), after: None, chunks: chunks(6..8) })
}

/// Submits a slab copy of one second and then a fetch of two blocks with deadline `due`. Returns how long the
/// fetch took, and whether it ended before the slab.
fn fetch_during_slab_fill(due: Option<Nanos>) -> (Duration, bool) {
    let mut world = world(|_| ());
    world.memory.set_link_bandwidth(Some(RATE));
    let slab = world.submit_to_link(None, fill());
    let fetched = world.submit_with_deadline(due, fetch(A, 0, 1, &[swap(8, 0, 1), swap(9, 1, 2)]));
    let taken = duration(world.wait(fetched));
    let ahead = world.outcome(slab).is_none();
    world.wait(slab);
    assert_eq!([8, 9].map(|layer_block| world.layer_block(LayerBlockId(layer_block))), [Some(10), Some(11)]);
    (taken, ahead)
}

#[test]
fn urgent_fetch_overtakes_slab_and_fetch_without_deadline_waits() {
    let fetch_time = Duration::from_secs_f64(2.0 * BLOCK as f64 / RATE as f64);
    for (due, passes) in [(Some(Nanos(0)), true), (None, false)] {
        let (taken, ahead) = fetch_during_slab_fill(due);
        assert_eq!(ahead, passes, "{due:?}");
        // The fetch waits for the current quantum, but the wait for its turn does not count as copy time.
        assert!(
            taken >= fetch_time / 2 && taken < 5 * fetch_time,
            "{taken:?} next to a slab, {fetch_time:?} alone"
        );
    }
}

/// Submits two swap-ins behind a change of mappings, and behind them a change with deadline `behind`.
/// Releases the first change once a slab with deadline `needed` is on the link. Returns whether the slab ends
/// before both swap-ins.
fn slab_ends_first(rate: u64, needed: Option<Nanos>, behind: Option<Nanos>) -> bool {
    let mut world = world(|_| ());
    world.memory.set_link_bandwidth(Some(rate));
    world.hold_engine(true);
    world.submit_work(remap(vec![MapOp::Unmap(Address::Kv(KvChunkId(5)), ChunkId(5))], vec![]));
    world.wait_for_held_answer();
    let home = [(8, 0, 1), (9, 1, 2)].map(|one| world.submit_work(Work::SwapIn(vec![swap_from_tuple(one)])));
    world.submit_with_deadline(behind, remap(vec![], vec![]));
    let slab = world.submit_to_link(needed, fill());
    world.hold_engine(false);
    world.wait_for_first(&[home[0], home[1], slab]) == slab
}

#[test]
fn swap_in_yields_to_slab_unless_later_work_is_due() {
    assert!(slab_ends_first(RATE, Some(Nanos(0)), None), "it takes a second and passes the pieces");
    assert!(!slab_ends_first(SLOW_RATE, None, None), "without deadlines they came first");
    assert!(
        !slab_ends_first(SLOW_RATE, Some(Nanos(1)), Some(Nanos(0))),
        "a change that is needed sooner waits for them"
    );
}

/// Submits slabs of two slots while the only copy thread copies another slab. Returns whether they end in
/// submission order.
fn slots_end_in_order(needed: [Option<Nanos>; 2]) -> bool {
    let mut world = world(|_| ());
    // The first slab is on the link until both slots wait for its thread.
    world.memory.set_link_bandwidth(Some(SLOW_RATE));
    let slot = |slot: u8, layer, first: u32| {
        let (target, generation) = (FillTarget::Slot(SlotId(slot), layer), Generation(2));
        Work::Fill(Fill { target, generation, after: None, chunks: chunks(first..first + 2) })
    };
    let first = world.submit_with_deadline(Some(Nanos(0)), fill());
    let slots = [
        world.submit_with_deadline(needed[0], slot(0, A, 2)),
        world.submit_with_deadline(needed[1], slot(1, B, 4)),
    ];
    world.memory.set_link_bandwidth(Some(8 * RATE));
    slots.into_iter().chain([first]).for_each(|order| _ = world.wait(order));
    let ends: Vec<_> =
        world.completions().iter().map(|done| done.id).filter(|id| slots.contains(id)).collect();
    ends == slots
}

#[test]
fn earliest_deadline_slab_gets_next_thread() {
    assert!(!slots_end_in_order([Some(Nanos(2)), Some(Nanos(1))]));
    assert!(slots_end_in_order([Some(Nanos(1)), Some(Nanos(2))]));
    assert!(slots_end_in_order([None, None]), "without deadlines they go as they came");
}

#[test]
fn measured_time_excludes_reader_wait() {
    let mut world = world(|_| ());
    let after = Some((B, Generation(1)));
    let (generation, layer_blocks) = (Generation(1), vec![swap(8, 0, 1)]);
    let order = world.submit_work(Work::Fetch(Fetch {
        layer: A,
        buffer: 0,
        generation,
        after,
        layer_blocks: layer_blocks.into(),
    }));
    let wait = Duration::from_secs(1);
    std::thread::sleep(wait);
    world.page.set_kv_done(B, Generation(1));
    let taken = duration(world.wait(order));
    assert!(taken < wait, "{taken:?} counts the wait");
}

#[test]
fn skipping_reader_wait_overwrites_buffer_early() {
    let mut world = world(|_| ());
    world.memory.set_faults(Faults { skip_after_wait: true, ..Faults::default() });
    world.succeed(fetch(A, 0, 1, &[swap(8, 0, 1)]));
    let (generation, layer_blocks) = (Generation(2), vec![swap(8, 1, 2)]);
    let after = Some((A, Generation(1)));
    world.succeed(Work::Fetch(Fetch {
        layer: B,
        buffer: 0,
        generation,
        after,
        layer_blocks: layer_blocks.into(),
    }));
    assert_eq!(world.layer_block(LayerBlockId(8)), Some(11), "no step has read layer 0 yet");
}

#[test]
fn failed_fetch_publishes_nothing_and_can_be_retried() {
    let mut world = world(|_| ());
    let work = fetch(A, 0, 1, &[swap(8, 0, 1), swap(9, 1, 2)]);
    world.memory.set_faults(Faults { fail_copy: Some(1), ..Faults::default() });
    assert_eq!(world.run(work.clone()), Outcome::Failed(Failure::CopyFailed));
    assert_eq!(world.page.kv_ready(A), Generation(0));
    world.succeed(work);
    assert_eq!((world.page.kv_ready(A), world.layer_block(LayerBlockId(9))), (Generation(1), Some(11)));
    assert_eq!(world.memory.kv_copy_stats(), KvCopyStats { fetched_bytes: 2 * BLOCK, written_back_bytes: 0 });
}

#[test]
fn failed_write_back_leaves_host_block_without_generation() {
    let mut world = world(|_| ());
    world.memory.set_faults(Faults { fail_copy: Some(1), ..Faults::default() });
    let failed = world.run(Work::WriteBack(vec![swap(0, 0, 3), swap(1, 1, 4)]));
    assert_eq!(failed, Outcome::Failed(Failure::CopyFailed));
    for (host, generation) in [(0, 1), (1, 2), (0, 3), (1, 4)] {
        let refused = world.run(fetch(A, 0, 1, &[swap(8, host, generation)]));
        assert_eq!(refused, Outcome::Failed(Failure::Refused), "{host}, {generation}");
    }
    world.succeed(Work::WriteBack(vec![swap(0, 0, 5)]));
    world.succeed(fetch(A, 0, 1, &[swap(8, 0, 5)]));
    assert_eq!(world.layer_block(LayerBlockId(8)), Some(10));
    assert_eq!(world.memory.kv_copy_stats().written_back_bytes, BLOCK);
}

/// Until a write-back has ended, no other order may use its host blocks or write the blocks that it reads.
#[test]
fn use_of_host_block_under_write_back_is_refused() {
    let mut world = world(|_| ());
    world.memory.set_to_host_bandwidth(Some(1 << 10));
    let slow = world.submit_work(Work::WriteBack(vec![swap(0, 0, 3)]));
    let wrong = [
        Work::WriteBack(vec![swap(1, 0, 4)]),
        Work::SwapOut(vec![swap(1, 0, 4)]),
        Work::SwapIn(vec![swap(8, 0, 1)]),
        fetch(A, 0, 1, &[swap(8, 0, 1)]),
        Work::SwapIn(vec![swap(0, 1, 2)]),
        fetch(A, 0, 1, &[swap(0, 1, 2)]),
        remap(vec![MapOp::Unmap(Address::Kv(KvChunkId(0)), ChunkId(0))], vec![]),
    ];
    for work in wrong {
        let shown = format!("{work:?}");
        assert_eq!(world.run(work), Outcome::Failed(Failure::Refused), "{shown}");
    }
    world.succeed(fetch(A, 0, 1, &[swap(8, 1, 2)]));
    world.succeed(fill());
    world.succeed(Work::DropFills);
    assert_eq!(world.outcome(slow), None, "half a minute is not over");
    world.memory.set_to_host_bandwidth(None);
    assert!(matches!(world.wait(slow), Outcome::Done { .. }), "the new pace holds for it too");
    world.succeed(fetch(A, 0, 2, &[swap(9, 0, 3)]));
    assert_eq!(world.layer_block(LayerBlockId(9)), Some(10));
}

/// A running fetch keeps its host block until it ends; a writer of the block waits.
#[test]
fn a_write_back_waits_for_the_fetch_that_reads_its_host_block() {
    let mut world = world(|_| ());
    world.memory.set_faults(Faults { chunk_delay: Duration::from_millis(100), ..Faults::default() });
    let reads = world.submit_work(fetch(A, 0, 1, &[swap(8, 1, 2), swap(9, 0, 1)]));
    let writes = world.submit_work(Work::WriteBack(vec![swap(1, 0, 3)]));
    world.wait(writes);
    let order: Vec<_> = world.completions().iter().map(|c| c.id).collect();
    let fetched = matches!(world.outcome(reads), Some(Outcome::Done { .. }));
    // If the write-back had started first, the fetch would have been refused.
    assert!(!fetched || order[order.len() - 2..] == [reads, writes], "{order:?}");
    let found = world.layer_block(LayerBlockId(9));
    assert!(found == Some(10) || !fetched, "{found:?}");
}

#[test]
fn slow_link_to_host_does_not_slow_link_to_device() {
    let mut world = world(|options| options.to_host_bytes_per_s = Some(64 << 10));
    let out = duration(world.run(Work::WriteBack(vec![swap(0, 0, 3)])));
    let taken = Duration::from_secs_f64(BLOCK as f64 / f64::from(64 << 10));
    assert!(out >= taken, "{out:?} for {taken:?}");
    let fetched = duration(world.run(fetch(A, 0, 1, &[swap(8, 1, 2)])));
    assert!(fetched < taken, "{fetched:?} on a link as fast as memory");
}

#[test]
fn drop_does_not_wait_for_slow_copy() {
    let mut world = world(|_| ());
    world.memory.set_link_bandwidth(Some(1 << 10));
    // Half a minute per block, five minutes for the slab.
    let orders = [
        Work::WriteBack(vec![swap(0, 2, 3), swap(1, 3, 4)]),
        fetch(A, 0, 1, &[swap(8, 0, 1), swap(9, 1, 2)]),
        fill(),
        Work::SwapOut(vec![swap(2, 4, 5)]),
    ];
    for work in orders {
        world.submit_work(work);
    }
    let notify = world.notify.clone();
    let begun = Instant::now();
    drop(world);
    assert!(begun.elapsed() < Duration::from_secs(10), "it went on for {:?}", begun.elapsed());
    assert_eq!(std::sync::Arc::strong_count(&notify), 1, "no worker holds anything");
}
