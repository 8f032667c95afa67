//! Host memory and a GPU make the same calls for the same orders: create, map, unmap, release, copy, wait, signal.

use sluice_memory::Faults;
use sluice_policy::action::{Address, Fill, FillTarget, LayerBlockMove, LayerBlockSwap, MapOp, Work};
use sluice_policy::event::Outcome;
use sluice_policy::ids::{ChunkId, Generation, HostBlockId, KvChunkId, LayerBlockId, LayerId, SlotId};

use super::{CHUNK_BYTES, GpuMachine, is_case};
use crate::harness::{Harness, chunks, geometry, map_layer, remap};

/// Precedes each recorded call in the output.
const MARK: &str = "call: ";

fn swap(layer_block: u32, chunk: u32, host: u32) -> LayerBlockSwap {
    LayerBlockSwap {
        layer_block: LayerBlockId(layer_block),
        chunk: ChunkId(chunk),
        host: HostBlockId(host),
        generation: Generation(7),
    }
}

/// Runs orders of every kind, one after the other, and returns the calls. Faults must not change what happens.
fn calls(faults: Faults) -> Vec<String> {
    // Two layers of two and a half chunks, so that a slab is one copy of a GPU.
    let geometry = geometry(CHUNK_BYTES, 10, 2, CHUNK_BYTES * 5 / 2);
    let host_kv_bytes = 4 * geometry.layer_block_bytes;
    let mut world = Harness::with(&geometry, |options| {
        (options.host_kv_bytes, options.poison) = (host_kv_bytes, true);
    });
    world.memory.set_faults(faults);
    let [first, second] = [LayerId(0), LayerId(1)];
    world.succeed(Work::Create(chunks(0..8)));
    world.succeed(remap(map_layer(&geometry, first, 0), vec![]));
    let fill = |target, generation, after, chunks| {
        Work::Fill(Fill { target, generation: Generation(generation), after, chunks })
    };
    world.succeed(fill(FillTarget::Slot(SlotId(0), first), 1, None, chunks(0..3)));
    world.page.set_done(first, Generation(1));
    let after = Some((first, Generation(1)));
    world.succeed(fill(FillTarget::Slot(SlotId(0), second), 2, after, chunks(0..3)));
    // Chunks in another order: a GPU copies each run of consecutive ones at once.
    let scattered = [4, 5, 3].map(ChunkId).to_vec();
    world.succeed(fill(FillTarget::Resident(second), 3, None, scattered));
    let kv = |at| Address::Kv(KvChunkId(at));
    let handed_over = vec![ChunkId(6), ChunkId(7)];
    world.succeed(remap(vec![MapOp::Map(kv(0), ChunkId(6)), MapOp::Map(kv(1), ChunkId(7))], handed_over));
    let moved = LayerBlockMove {
        from: LayerBlockId(1),
        from_chunk: ChunkId(6),
        to: LayerBlockId(9),
        to_chunk: ChunkId(7),
    };
    world.succeed(Work::MoveLayerBlocks(vec![moved]));
    world.succeed(Work::SwapOut(vec![swap(0, 6, 0), swap(2, 6, 1)]));
    world.succeed(Work::SwapIn(vec![swap(8, 7, 1)]));
    world.succeed(remap(vec![MapOp::Unmap(kv(1), ChunkId(7))], vec![]));
    world.succeed(Work::Release(vec![ChunkId(7)]));
    assert!(matches!(world.run(Work::Create(chunks(7..9))), Outcome::Done { .. }));
    let calls = world.calls.calls();
    drop(world);
    calls
}

/// Returns the calls of a process on the GPU.
fn calls_on_gpu(case: &str) -> Vec<String> {
    let stdout = GpuMachine::new().run_case(case);
    stdout.lines().filter_map(|line| line.strip_prefix(MARK)).map(str::to_owned).collect()
}

/// Returns the first call that differs, or that only one of them makes.
fn first_difference<'a>(
    one: &'a [String],
    other: &'a [String],
) -> Option<(Option<&'a str>, Option<&'a str>)> {
    let call = |calls: &'a [String], at: usize| calls.get(at).map(String::as_str);
    let mut places = 0..one.len().max(other.len());
    places.find(|at| call(one, *at) != call(other, *at)).map(|at| (call(one, at), call(other, at)))
}

#[test]
fn host_memory_and_a_gpu_make_the_same_calls() {
    let (host, on_gpu) = (calls(Faults::default()), calls_on_gpu("cuda::sequence::recorded_calls"));
    assert_eq!(first_difference(&host, &on_gpu), None);
    // What the sequence must contain, by the contract of `Memory`.
    let at = |call: &str| {
        let place = host.iter().position(|made| made == call);
        place.unwrap_or_else(|| panic!("{call} in {host:#?}"))
    };
    let wait = at("wait Done(LayerId(0)) Generation(1)");
    let signal = at("signal Ready(Some(LayerId(1))) Generation(2)");
    let copies = host[wait..signal].iter().filter(|call| call.starts_with("upload")).count();
    assert_eq!((copies, signal - wait), (3, 4), "the copies of a slab are between its wait and its signal");
    assert_eq!(at("unmap ChunkId(7)") + 1, at("release ChunkId(7)"));
    assert!(at("poison ChunkId(6)") < at("download ChunkId(6) at 0 bytes 262144"));
    // Any two calls in another order are a difference.
    for place in 1..host.len() {
        let mut reordered = on_gpu.clone();
        reordered.swap(place - 1, place);
        let found = first_difference(&host, &reordered).is_some();
        assert_eq!(found, host[place - 1] != host[place], "{place} of {host:#?}");
    }
}

/// Negative control: the copies on the GPU do not wait for their reader.
#[test]
fn a_wait_that_a_gpu_drops_is_a_difference() {
    let host = calls(Faults::default());
    let on_gpu = calls_on_gpu("cuda::sequence::recorded_calls_without_waits");
    let (expected, found) = first_difference(&host, &on_gpu).expect("a call is missing");
    assert_eq!(expected, Some("wait Done(LayerId(0)) Generation(1)"));
    assert_eq!(found, Some("upload ChunkId(0) at 0 bytes 2097152"));
}

#[test]
#[ignore = "a process of the other tests, which start it"]
fn recorded_calls() {
    print_calls(Faults::default());
}

#[test]
#[ignore = "a process of the other tests, which start it"]
fn recorded_calls_without_waits() {
    print_calls(Faults { skip_after_wait: true, ..Faults::default() });
}

fn print_calls(faults: Faults) {
    if !is_case() {
        return;
    }
    // The name of the test has no end of line.
    println!();
    calls(faults).iter().for_each(|call| println!("{MARK}{call}"));
}
