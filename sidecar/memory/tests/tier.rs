//! The host tier: contents, pace, faults, and memory that is allocated from start to end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sluice_memory::{DeviceMemory, EngineConnection, Faults, MemoryError, MemoryOptions};
use sluice_policy::action::{Address, Fill, FillTarget, LayerBlockSwap, MapOp, Work};
use sluice_policy::event::{Failure, Outcome};
use sluice_policy::geometry::Geometry;
use sluice_policy::ids::{ActionId, ChunkId, Generation, HostBlockId, KvChunkId, LayerBlockId, LayerId};

use super::harness::{ControlPage, Harness, chunks, geometry, master, options, remap};

const CHUNK: u64 = 256 << 10;
/// A chunk has eight blocks.
const BLOCK: u64 = CHUNK / 8;

fn small() -> Geometry {
    geometry(CHUNK, 8, 2, 2 * CHUNK)
}

/// Maps KV chunks 0, 1, .. to the chunks of the same number.
fn world(geometry: &Geometry, change: impl Fn(&mut MemoryOptions)) -> Harness {
    let mut world = Harness::with(geometry, |options| {
        options.host_kv_bytes = 64 * geometry.layer_block_bytes;
        change(options);
    });
    let all = geometry.capacity_chunks;
    world.succeed(Work::Create(chunks(0..all)));
    let map = |chunk| MapOp::Map(Address::Kv(KvChunkId(chunk)), ChunkId(chunk));
    world.succeed(remap((0..all).map(map).collect(), vec![]));
    world
}

/// A swap of a block of the KV chunks above.
fn swap(layer_block: u32, host: u32, generation: u64) -> LayerBlockSwap {
    LayerBlockSwap {
        layer_block: LayerBlockId(layer_block),
        chunk: ChunkId(layer_block / 8),
        host: HostBlockId(host),
        generation: Generation(generation),
    }
}

fn duration(outcome: Outcome) -> Duration {
    let Outcome::Done { duration_ns, .. } = outcome else { panic!("the swap ended as {outcome:?}") };
    Duration::from_nanos(duration_ns)
}

/// Returns bytes of which no two parts are equal.
fn random_bytes(seed: u64, bytes: u64) -> Vec<u8> {
    let words = (0..bytes / 8).map(|at| (seed + at).wrapping_mul(0x9e37_79b9_7f4a_7c15).swap_bytes());
    words.flat_map(u64::to_ne_bytes).collect()
}

#[test]
fn swapped_layer_blocks_are_bit_identical_over_paced_link() {
    // The block size is not a multiple of the pieces of a limited link.
    let mut geometry = geometry(2 << 20, 4, 1, 2 << 20);
    geometry.layer_block_bytes = 640 << 10;
    for link_bytes_per_s in [None, Some(64 << 20)] {
        let mut world = world(&geometry, |options| options.link_bytes_per_s = link_bytes_per_s);
        let place = |layer_block: u32, host, generation| LayerBlockSwap {
            chunk: ChunkId(layer_block / 3),
            ..swap(layer_block, host, generation)
        };
        for layer_block in 0..3 {
            world.write_bytes(
                LayerBlockId(layer_block),
                random_bytes(u64::from(layer_block) << 32, geometry.layer_block_bytes),
            );
        }
        world.succeed(Work::SwapOut(vec![place(0, 9, 1), place(1, 0, 2), place(2, 63, 3)]));
        world.succeed(Work::SwapIn(vec![place(5, 9, 1), place(9, 63, 3), place(4, 0, 2)]));
        for (layer_block, seed) in [(5, 0), (4, 1), (9, 2)] {
            let found = world.layer_block_bytes(LayerBlockId(layer_block)).unwrap();
            assert!(
                found == random_bytes(seed << 32, geometry.layer_block_bytes),
                "block {layer_block}, {link_bytes_per_s:?}"
            );
        }
    }
}

#[test]
fn tier_capacity_is_rounded_down_to_layer_blocks() {
    let mut world = world(&small(), |options| options.host_kv_bytes = 3 * BLOCK - 1);
    world.succeed(Work::SwapOut(vec![swap(0, 0, 1), swap(1, 1, 2)]));
    assert_eq!(world.run(Work::SwapOut(vec![swap(2, 2, 3)])), Outcome::Failed(Failure::Refused));
}

#[test]
fn swaps_are_paced_and_only_swap_in_shares_link_with_fills() {
    let rate = 128 << 10;
    let mut world = world(&small(), |options| options.link_bytes_per_s = Some(rate));
    let taken = |layer_blocks: u64| Duration::from_secs_f64((layer_blocks * BLOCK) as f64 / rate as f64);
    // The copy of a slab's chunk, which occupies the link for two seconds.
    let (kv_chunk, layer) = (Address::Kv(KvChunkId(6)), Address::Layer(LayerId(0), 0));
    world.succeed(remap(vec![MapOp::Map(layer, ChunkId(6)), MapOp::Unmap(kv_chunk, ChunkId(6))], vec![]));
    let begun = Instant::now();
    let target = FillTarget::Resident(LayerId(0));
    let fill = Fill { target, generation: Generation(1), after: None, chunks: chunks(6..8) };
    let fill = world.submit_work(Work::Fill(fill));
    while world.contents(layer).is_none() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let out = duration(world.run(Work::SwapOut(vec![swap(0, 0, 1)])));
    assert!(out >= taken(1) && out < taken(4), "{out:?} for {:?} while a fill runs", taken(1));
    world.succeed(Work::SwapIn(vec![swap(1, 0, 1)]));
    assert!(begun.elapsed() >= taken(9), "a block came in, in {:?}, next to a chunk", begun.elapsed());
    world.memory.set_link_bandwidth(Some(16 * rate));
    world.wait(fill);
    let out = duration(world.run(Work::SwapOut(vec![swap(0, 0, 1), swap(1, 1, 2), swap(2, 2, 3)])));
    assert!(out >= taken(3) / 16 && out < taken(3), "{out:?} at sixteen times the bandwidth");
}

#[test]
fn failed_swap_out_leaves_host_block_without_generation() {
    let mut world = world(&small(), |_| ());
    world.write_layer_block(LayerBlockId(0), 10);
    world.write_layer_block(LayerBlockId(1), 11);
    let out = |generation| Work::SwapOut(vec![swap(0, 0, generation), swap(1, 1, generation + 1)]);
    world.succeed(out(1));
    world.memory.set_faults(Faults { fail_copy: Some(1), ..Faults::default() });
    assert_eq!(world.run(out(3)), Outcome::Failed(Failure::CopyFailed));
    for (host, generation) in [(0, 1), (1, 2), (0, 3), (1, 4)] {
        let swaps = vec![swap(8, host, generation)];
        assert_eq!(world.run(Work::SwapIn(swaps)), Outcome::Failed(Failure::Refused), "{host}, {generation}");
    }
    world.succeed(out(5));
    world.succeed(Work::SwapIn(vec![swap(8, 1, 6)]));
    assert_eq!(world.layer_block(LayerBlockId(8)), Some(11));
}

#[test]
fn failed_swap_in_can_be_retried() {
    let mut world = world(&small(), |_| ());
    world.write_layer_block(LayerBlockId(0), 10);
    world.succeed(Work::SwapOut(vec![swap(0, 0, 1)]));
    world.memory.set_faults(Faults { fail_copy: Some(1), ..Faults::default() });
    assert_eq!(world.run(Work::SwapIn(vec![swap(8, 0, 1)])), Outcome::Failed(Failure::CopyFailed));
    world.succeed(Work::SwapIn(vec![swap(8, 0, 1)]));
    assert_eq!(world.layer_block(LayerBlockId(8)), Some(10));
}

#[test]
fn fill_waits_for_swap_out_of_same_chunk() {
    let mut world = world(&small(), |_| ());
    world.write_layer_block(LayerBlockId(0), 10);
    world.memory.set_faults(Faults { chunk_delay: Duration::from_millis(50), ..Faults::default() });
    let target = FillTarget::Resident(LayerId(0));
    let fill = Fill { target, generation: Generation(1), after: None, chunks: chunks(0..2) };
    let orders = [Work::SwapOut(vec![swap(20, 1, 1), swap(0, 0, 1)]), Work::Fill(fill)];
    let [out, fill] = orders.map(|work| world.submit_work(work));
    world.wait(fill);
    let order: Vec<_> = world.completions().iter().map(|c| c.id).collect();
    assert_eq!(order[order.len() - 2..], [out, fill]);
    world.succeed(Work::SwapIn(vec![swap(30, 0, 1)]));
    assert_eq!(world.layer_block(LayerBlockId(30)), Some(10), "what was there before the fill");
}

#[test]
fn swaps_continue_after_engine_exit() {
    let mut world = world(&small(), |_| ());
    world.write_layer_block(LayerBlockId(0), 10);
    world.hold_engine(true);
    let mapped = MapOp::Unmap(Address::Kv(KvChunkId(7)), ChunkId(7));
    let orders =
        [remap(vec![mapped], vec![]), Work::SwapOut(vec![swap(0, 0, 1)]), Work::SwapIn(vec![swap(8, 0, 1)])];
    let ids = orders.map(|work| world.submit_work(work));
    world.detach_engine();
    world.memory.on_engine_lost();
    for id in ids {
        assert!(matches!(world.wait(id), Outcome::Done { .. }), "{id:?}");
    }
    assert_eq!(world.layer_block(LayerBlockId(8)), Some(10));
}

/// Returns the bytes of anonymous memory of this process.
fn anonymous_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("the kernel reports it");
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[test]
fn tier_memory_is_allocated_at_start_and_freed_on_drop() {
    let tier_bytes = 512 << 20;
    // Other tests change it concurrently by less than half of the tier.
    let (begin, half) = (anonymous_bytes(), tier_bytes / 2);
    let world = Harness::with(&small(), |options| options.host_kv_bytes = tier_bytes);
    let taken = anonymous_bytes();
    assert!(taken > begin + half, "{begin} bytes before, {taken} with the tier");
    drop(world);
    let end = anonymous_bytes();
    assert!(end + half < taken, "{taken} bytes with the tier, {end} without");
}

/// A connection without an engine.
struct NoEngine;

impl EngineConnection for NoEngine {
    fn remap(&mut self, _: ActionId, _: &[MapOp]) -> bool {
        false
    }
}

#[test]
fn oversized_tier_is_refused_at_start() {
    let geometry = small();
    // More than any address space.
    let options = MemoryOptions { host_kv_bytes: (1 << 60) + 1, ..options(&geometry) };
    let page = ControlPage::new(geometry.layers());
    let refused = DeviceMemory::new(options, master(&geometry), page, Box::new(NoEngine), Arc::new(|| ()))
        .err()
        .unwrap();
    assert!(matches!(refused, MemoryError::Tier { bytes, .. } if bytes == 1 << 60), "{refused:?}");
    assert_eq!(refused.to_string(), "cannot allocate 1152921504606846976 bytes of host memory for KV");
}

#[test]
fn drop_stops_swap_at_next_layer_block() {
    // One second per block, one minute for all.
    let mut world = world(&small(), |options| options.link_bytes_per_s = Some(BLOCK));
    world.submit_work(Work::SwapOut((0..60).map(|layer_block| swap(layer_block, layer_block, 1)).collect()));
    let notify = world.notify.clone();
    let begun = Instant::now();
    drop(world);
    assert!(begun.elapsed() < Duration::from_secs(45), "it went on for {:?}", begun.elapsed());
    assert_eq!(Arc::strong_count(&notify), 1, "no worker holds anything");
}
