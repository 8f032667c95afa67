//! KV copied beside steps: pace, fairness, faults, who may write a host block, and the end of it all.

use std::time::{Duration, Instant};

use sluice_memory::{Faults, HostOptions, KvCopied};
use sluice_policy::action::{Address, BlockSwap, Fetch, Fill, FillTarget, Reback, Work};
use sluice_policy::event::{Failure, Outcome};
use sluice_policy::ids::{BlockId, ChunkId, FrameId, Generation, HostBlockId, LayerId};

use super::world::{World, chunks, geometry, reback};

const CHUNK: u64 = 256 << 10;
/// Eight blocks in a chunk.
const BLOCK: u64 = CHUNK / 8;
const A: LayerId = LayerId(0);
const B: LayerId = LayerId(1);

/// Frames 0 to 5 on the chunks of the same number, and blocks 0 and 1 in host blocks 0 and 1 under names 1 and 2.
fn world(change: impl Fn(&mut HostOptions)) -> World {
    let mut world = World::with(&geometry(CHUNK, 8, 2, 2 * CHUNK), |options| {
        options.host_kv_bytes = 64 * BLOCK;
        change(options);
    });
    world.succeed(Work::Create(chunks(0..8)));
    let map = |chunk| Reback::Map(Address::Kv(FrameId(chunk)), ChunkId(chunk));
    world.succeed(reback((0..6).map(map).collect(), vec![]));
    world.write_block(BlockId(0), 10);
    world.write_block(BlockId(1), 11);
    world.succeed(Work::SwapOut(vec![swap(0, 0, 1), swap(1, 1, 2)]));
    world
}

fn swap(block: u32, host: u32, generation: u64) -> BlockSwap {
    let (block, chunk) = (BlockId(block), ChunkId(block / 8));
    BlockSwap { block, chunk, host: HostBlockId(host), generation: Generation(generation) }
}

fn fetch(layer: LayerId, buffer: u8, generation: u64, blocks: &[BlockSwap]) -> Work {
    let generation = Generation(generation);
    Work::Fetch(Fetch { layer, buffer, generation, after: None, blocks: blocks.to_vec().into() })
}

fn duration(outcome: Outcome) -> Duration {
    let Outcome::Done { duration_ns, .. } = outcome else { panic!("the copy ended as {outcome:?}") };
    Duration::from_nanos(duration_ns)
}

/// A slab of two chunks into chunks 6 and 7.
fn fill() -> Work {
    let target = FillTarget::Resident(A);
    Work::Fill(Fill { target, generation: Generation(1), after: None, chunks: chunks(6..8) })
}

#[test]
fn a_fetch_shares_the_link_with_a_slab_evenly_and_does_not_wait_for_its_end() {
    let mut world = world(|_| ());
    let rate = 512 << 10;
    world.memory.set_link_bandwidth(Some(rate));
    // A second for the slab alone, and 1/16 s for a block.
    let slab = world.order(fill());
    let fetched = duration(world.run(fetch(A, 0, 1, &[swap(8, 0, 1), swap(9, 1, 2)])));
    let alone = Duration::from_secs_f64(2.0 * BLOCK as f64 / rate as f64);
    assert!(fetched >= alone, "{fetched:?} for {alone:?}");
    assert!(fetched < 5 * alone, "{fetched:?} beside a slab, {alone:?} alone");
    assert!(duration(world.wait(slab)) > fetched);
    assert_eq!([8, 9].map(|block| world.block(BlockId(block))), [Some(10), Some(11)]);
}

#[test]
fn the_measured_time_leaves_out_the_wait_for_the_reader() {
    let mut world = world(|_| ());
    let after = Some((B, Generation(1)));
    let (generation, blocks) = (Generation(1), vec![swap(8, 0, 1)]);
    let order =
        world.order(Work::Fetch(Fetch { layer: A, buffer: 0, generation, after, blocks: blocks.into() }));
    let wait = Duration::from_secs(1);
    std::thread::sleep(wait);
    world.page.set_kv_done(B, Generation(1));
    let taken = duration(world.wait(order));
    assert!(taken < wait, "{taken:?} counts the wait");
}

#[test]
fn without_the_wait_for_the_reader_a_buffer_is_overwritten_early() {
    let mut world = world(|_| ());
    world.memory.set_faults(Faults { skip_after_wait: true, ..Faults::default() });
    world.succeed(fetch(A, 0, 1, &[swap(8, 0, 1)]));
    let (generation, blocks) = (Generation(2), vec![swap(8, 1, 2)]);
    let after = Some((A, Generation(1)));
    world.succeed(Work::Fetch(Fetch { layer: B, buffer: 0, generation, after, blocks: blocks.into() }));
    assert_eq!(world.block(BlockId(8)), Some(11), "nobody has said that layer 0 was read");
}

#[test]
fn a_fetch_that_fails_publishes_nothing_and_may_be_repeated() {
    let mut world = world(|_| ());
    let work = fetch(A, 0, 1, &[swap(8, 0, 1), swap(9, 1, 2)]);
    world.memory.set_faults(Faults { fail_copy: Some(1), ..Faults::default() });
    assert_eq!(world.run(work.clone()), Outcome::Failed(Failure::CopyFailed));
    assert_eq!(world.page.kv_ready(A), Generation(0));
    world.succeed(work);
    assert_eq!((world.page.kv_ready(A), world.block(BlockId(9))), (Generation(1), Some(11)));
    assert_eq!(world.memory.kv_copied(), KvCopied { fetched_bytes: 2 * BLOCK, written_back_bytes: 0 });
}

#[test]
fn a_write_back_that_fails_half_way_leaves_no_name_old_or_new() {
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
    assert_eq!(world.block(BlockId(8)), Some(10));
    assert_eq!(world.memory.kv_copied().written_back_bytes, BLOCK);
}

/// Until a write-back has ended, its host blocks and the blocks it reads are its own.
#[test]
fn whoever_names_a_host_block_that_is_written_back_to_is_refused_and_others_go_on() {
    let mut world = world(|_| ());
    world.memory.set_to_host_bandwidth(Some(1 << 10));
    let slow = world.order(Work::WriteBack(vec![swap(0, 0, 3)]));
    let wrong = [
        Work::WriteBack(vec![swap(1, 0, 4)]),
        Work::SwapOut(vec![swap(1, 0, 4)]),
        Work::SwapIn(vec![swap(8, 0, 1)]),
        fetch(A, 0, 1, &[swap(8, 0, 1)]),
        Work::SwapIn(vec![swap(0, 1, 2)]),
        fetch(A, 0, 1, &[swap(0, 1, 2)]),
        reback(vec![Reback::Unmap(Address::Kv(FrameId(0)), ChunkId(0))], vec![]),
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
    assert_eq!(world.block(BlockId(9)), Some(10));
}

/// A fetch that runs has its host block to the end: who is to write it waits.
#[test]
fn a_write_back_waits_for_the_fetch_that_reads_its_host_block() {
    let mut world = world(|_| ());
    world.memory.set_faults(Faults { slow_chunk: Duration::from_millis(100), ..Faults::default() });
    let reads = world.order(fetch(A, 0, 1, &[swap(8, 1, 2), swap(9, 0, 1)]));
    let writes = world.order(Work::WriteBack(vec![swap(1, 0, 3)]));
    world.wait(writes);
    let order: Vec<_> = world.ended().iter().map(|c| c.id).collect();
    let fetched = matches!(world.outcome(reads), Some(Outcome::Done { .. }));
    // Had the write-back begun first, there would be nothing of that name to fetch.
    assert!(!fetched || order[order.len() - 2..] == [reads, writes], "{order:?}");
    let found = world.block(BlockId(9));
    assert!(found == Some(10) || !fetched, "{found:?}");
}

#[test]
fn a_slow_way_to_the_host_slows_nothing_to_the_device() {
    let mut world = world(|options| options.to_host_bytes_per_s = Some(64 << 10));
    let out = duration(world.run(Work::WriteBack(vec![swap(0, 0, 3)])));
    let taken = Duration::from_secs_f64(BLOCK as f64 / f64::from(64 << 10));
    assert!(out >= taken, "{out:?} for {taken:?}");
    let fetched = duration(world.run(fetch(A, 0, 1, &[swap(8, 1, 2)])));
    assert!(fetched < taken, "{fetched:?} on a link as fast as memory");
}

#[test]
fn dropping_the_memory_waits_for_no_slow_copy() {
    let mut world = world(|_| ());
    world.memory.set_link_bandwidth(Some(1 << 10));
    // Half a minute for each block, five minutes for the slab.
    let orders = [
        Work::WriteBack(vec![swap(0, 2, 3), swap(1, 3, 4)]),
        fetch(A, 0, 1, &[swap(8, 0, 1), swap(9, 1, 2)]),
        fill(),
        Work::SwapOut(vec![swap(2, 4, 5)]),
    ];
    for work in orders {
        world.order(work);
    }
    let notify = world.notify.clone();
    let begun = Instant::now();
    drop(world);
    assert!(begun.elapsed() < Duration::from_secs(10), "it went on for {:?}", begun.elapsed());
    assert_eq!(std::sync::Arc::strong_count(&notify), 1, "no worker holds anything");
}
