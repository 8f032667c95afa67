//! Fills: pacing, measured time, drops of running copies, faults, and the end of the threads.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sluice_memory::Faults;
use sluice_policy::action::{Address, Fill, FillTarget, Work};
use sluice_policy::event::{Failure, Outcome};
use sluice_policy::ids::{ChunkId, Generation, LayerId, SlotId};
use sluice_ports::conformance::SlabChunk;

use super::harness::{Harness, chunks, geometry, layer_chunk_bytes, map_layer, remap};

const CHUNK: u64 = 256 << 10;
/// Four layers of four chunks; two slots fit.
const SLAB: u64 = 4 * CHUNK;
const A: LayerId = LayerId(1);
const B: LayerId = LayerId(2);

fn world(change: impl Fn(&mut sluice_memory::MemoryOptions)) -> Harness {
    let mut world = Harness::with(&geometry(CHUNK, 8, 4, SLAB), change);
    world.succeed(Work::Create(chunks(0..8)));
    world
}

fn fill(slot: u8, layer: LayerId, generation: u64, after: Option<(LayerId, Generation)>) -> Work {
    let first = u32::from(slot) * 4;
    Work::Fill(Fill {
        target: FillTarget::Slot(SlotId(slot), layer),
        generation: Generation(generation),
        after,
        chunks: chunks(first..first + 4),
    })
}

fn duration(outcome: Outcome) -> Duration {
    let Outcome::Done { duration_ns, .. } = outcome else { panic!("the copy ended as {outcome:?}") };
    Duration::from_nanos(duration_ns)
}

#[test]
fn a_paced_copy_takes_at_least_the_time_of_the_link() {
    let mut world = world(|options| options.link_bytes_per_s = Some(32 << 20));
    let least = Duration::from_secs_f64(SLAB as f64 / f64::from(32 << 20));
    let taken = duration(world.run(fill(0, A, 1, None)));
    assert!(taken >= least, "{taken:?} for {least:?}");
    world.memory.set_link_bandwidth(Some(16 << 20));
    let halved = duration(world.run(fill(0, B, 2, None)));
    assert!(halved >= 2 * least, "{halved:?} for {:?} at half the bandwidth", 2 * least);
}

#[test]
fn transfers_share_the_link() {
    let mut world = world(|options| {
        options.link_bytes_per_s = Some(32 << 20);
        options.copy_threads = 2;
    });
    let begun = Instant::now();
    let orders = [fill(0, A, 1, None), fill(1, B, 2, None)].map(|work| world.submit_work(work));
    for id in orders {
        world.wait(id);
    }
    let least = Duration::from_secs_f64(2.0 * SLAB as f64 / f64::from(32 << 20));
    assert!(begun.elapsed() >= least, "two slabs passed a link for {least:?} in {:?}", begun.elapsed());
}

#[test]
fn measured_time_excludes_reader_wait() {
    let mut world = world(|_| ());
    let order = world.submit_work(fill(0, A, 1, Some((B, Generation(1)))));
    let wait = Duration::from_secs(1);
    std::thread::sleep(wait);
    world.page.set_done(B, Generation(1));
    let taken = duration(world.wait(order));
    assert!(taken < wait, "{taken:?} counts the wait");
}

#[test]
fn drop_fills_waits_for_running_copy() {
    let mut world = world(|_| ());
    let geometry = world.geometry.clone();
    world.succeed(remap(map_layer(&geometry, A, 0), vec![]));
    world.memory.set_faults(Faults { chunk_delay: Duration::from_millis(200), ..Faults::default() });
    let running = world.submit_work(fill(0, A, 1, None));
    while world.contents(Address::Layer(A, 0)).is_none() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let queued = world.submit_work(fill(0, B, 2, None));
    let drop = world.submit_work(Work::DropFills);
    assert_eq!(world.outcome(queued), Some(Outcome::Failed(Failure::Dropped)));
    assert_eq!((world.outcome(running), world.outcome(drop)), (None, None), "the copy is still running");
    world.wait(drop);
    let order: Vec<_> = world.completions().iter().map(|c| c.id).collect();
    assert_eq!(order[order.len() - 3..], [queued, running, drop]);
    assert!(duration(world.wait(running)) >= Duration::from_millis(800), "four slow chunks");
    assert_eq!([world.page.ready(Some(A)), world.page.ready(Some(B))], [Generation(1), Generation(0)]);
}

#[test]
fn a_failed_copy_publishes_nothing_and_the_next_one_runs() {
    let mut world = world(|_| ());
    world.memory.set_faults(Faults { fail_copy: Some(2), ..Faults::default() });
    let orders =
        [fill(0, A, 1, None), fill(0, B, 2, None), fill(0, A, 3, None)].map(|work| world.submit_work(work));
    let failed = orders.map(|id| world.wait(id) == Outcome::Failed(Failure::CopyFailed));
    assert_eq!(failed, [false, true, false]);
    assert_eq!([world.page.ready(Some(A)), world.page.ready(Some(B))], [Generation(3), Generation(0)]);
}

#[test]
fn a_flipped_byte_in_a_slot_is_seen_by_the_reader() {
    let mut world = world(|_| ());
    let geometry = world.geometry.clone();
    world.succeed(remap(map_layer(&geometry, A, 0), vec![]));
    world.succeed(fill(0, A, 1, None));
    let slab = world.contents(Address::Layer(A, 0));
    assert_eq!(slab, Some(SlabChunk { layer: Some(A), chunk: 0 }));
    world.memory.set_faults(Faults { flip_slot_byte: true, ..Faults::default() });
    world.succeed(fill(0, A, 2, None));
    assert_eq!(world.contents(Address::Layer(A, 0)), None);
}

#[test]
fn filling_chunk_cannot_be_released_or_handed_over() {
    let mut world = world(|_| ());
    let waits = world.submit_work(fill(0, A, 1, Some((B, Generation(1)))));
    let refused = Outcome::Failed(Failure::Refused);
    assert_eq!(world.run(Work::Release(chunks(3..4))), refused);
    assert_eq!(world.run(remap(vec![], chunks(0..1))), refused);
    world.page.set_done(B, Generation(1));
    world.wait(waits);
    world.succeed(remap(vec![], chunks(0..1)));
    world.succeed(Work::Release(chunks(3..4)));
}

#[test]
fn fills_that_share_a_chunk_keep_their_order_across_slots() {
    let mut world = world(|options| options.copy_threads = 2);
    let first = world.submit_work(fill(0, A, 1, Some((B, Generation(1)))));
    let target = FillTarget::Resident(LayerId(3));
    let second = world.submit_work(Work::Fill(Fill {
        target,
        generation: Generation(2),
        after: None,
        chunks: chunks(3..7),
    }));
    world.settle();
    assert_eq!((world.outcome(first), world.outcome(second)), (None, None));
    world.page.set_done(B, Generation(1));
    world.wait(second);
    let order: Vec<_> = world.completions().iter().map(|c| c.id).collect();
    assert_eq!(order[order.len() - 2..], [first, second]);
}

#[test]
fn dropping_the_memory_ends_its_threads() {
    let mut world = world(|_| ());
    world.memory.set_faults(Faults { chunk_delay: Duration::from_millis(50), ..Faults::default() });
    world.submit_work(fill(0, A, 1, None));
    world.submit_work(fill(1, B, 2, Some((A, Generation(9)))));
    let (page, notify) = (world.page.clone(), world.notify.clone());
    assert!(Arc::strong_count(&page) > 2, "the workers hold the page");
    drop(world);
    assert_eq!((Arc::strong_count(&page), Arc::strong_count(&notify)), (1, 1), "no worker holds anything");
}

#[test]
fn streaming_slab_copy_is_exact() {
    let geometry = geometry(2 << 20, 25, 1, (48 << 20) + 4096);
    let mut world = Harness::new(&geometry);
    let layer = LayerId(0);
    world.succeed(Work::Create(chunks(0..25)));
    world.succeed(remap(map_layer(&geometry, layer, 0), vec![]));
    let target = FillTarget::Resident(layer);
    let fill = Fill { target, generation: Generation(1), after: None, chunks: chunks(0..25) };
    world.succeed(Work::Fill(fill));
    for part in 0..25 {
        let found = world.contents(Address::Layer(layer, part));
        assert_eq!(found.map(|found| (found.layer, found.chunk)), Some((Some(layer), part)));
    }
}

/// A memory whose engine has loaded layer A into chunks 0 to 3.
fn loaded_by_engine() -> Harness {
    let mut world = Harness::uncaptured(&geometry(CHUNK, 8, 4, SLAB));
    world.succeed(Work::Create(chunks(0..8)));
    for part in 0..4 {
        let bytes = layer_chunk_bytes(&world.geometry, A, part);
        world.memory.pool().write(ChunkId(part as u32), 0, &bytes).unwrap();
    }
    world
}

fn resident(layer: LayerId, generation: u64) -> Work {
    let (target, generation) = (FillTarget::Resident(layer), Generation(generation));
    Work::Fill(Fill { target, generation, after: None, chunks: chunks(0..4) })
}

#[test]
fn first_copy_of_a_slab_that_an_engine_loaded_reads_it_and_later_ones_write_it() {
    let mut world = loaded_by_engine();
    assert_eq!(duration(world.run(resident(A, 1))), Duration::ZERO, "it says nothing about the link");
    assert_eq!(world.page.ready(Some(A)), Generation(1));
    // The chunks of the layer are another's now.
    (0..4).for_each(|chunk| world.memory.pool().poison(ChunkId(chunk)).unwrap());
    world.succeed(fill(1, A, 2, None));
    let geometry = world.geometry.clone();
    world.succeed(remap(map_layer(&geometry, A, 4), vec![]));
    for part in 0..4 {
        let found = world.contents(Address::Layer(A, part));
        assert_eq!(found, Some(SlabChunk { layer: Some(A), chunk: part }));
    }
    world.succeed(resident(A, 3));
    let mut byte = [0];
    world.memory.pool().read(ChunkId(0), 0, &mut byte).unwrap();
    assert_eq!(byte[0], layer_chunk_bytes(&geometry, A, 0)[0], "a layer that returns is written again");
}

#[test]
fn slot_gets_no_layer_that_was_not_read_yet() {
    let mut world = loaded_by_engine();
    assert_eq!(world.run(fill(1, A, 1, None)), Outcome::Failed(Failure::Refused));
    world.succeed(resident(A, 2));
    assert_eq!(world.run(fill(1, B, 3, None)), Outcome::Failed(Failure::Refused), "another layer");
    world.succeed(fill(1, A, 4, None));
}
