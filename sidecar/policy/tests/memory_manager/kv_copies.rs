//! Tests the test device: its execution of KV copies in parallel with steps.

use sluice_policy::action::{Action, Address, Fetch, LayerBlockSwap, MapOp, Transaction, Work};
use sluice_policy::event::{Failure, Outcome};
use sluice_policy::geometry::{ActivationCost, Geometry};
use sluice_policy::ids::{ActionId, ChunkId, Generation, HostBlockId, KvChunkId, LayerBlockId, LayerId};
use sluice_policy::reason::Reason;

use super::device::{Device, Faults};

/// Returns a device with a KV chunk on chunk 0. Blocks 0 and 1 hold 10 and 11 at their first token and are in the host
/// tier as 1 and 2.
fn device(seed: u64) -> Device {
    let geometry = Geometry {
        chunk_bytes: 1024,
        capacity_chunks: 1,
        global_bytes: 0,
        slab_bytes: vec![1024; 2],
        layer_block_bytes: 128,
        activation: ActivationCost::default(),
        staging_chunks: 0,
    };
    let mut device = Device::new(geometry, seed, Faults::default());
    let map = MapOp::Map(Address::Kv(KvChunkId(0)), ChunkId(0));
    order(&mut device, 1, Work::Create(vec![ChunkId(0)]));
    order(&mut device, 2, Work::Transaction(Transaction { ops: vec![map], handed_over: vec![] }));
    run(&mut device);
    device.write_token(LayerBlockId(0), 0, 10);
    device.write_token(LayerBlockId(1), 0, 11);
    order(&mut device, 3, Work::WriteBack(vec![swap(0, 0, 1), swap(1, 1, 2)]));
    run(&mut device);
    device
}

fn swap(layer_block: u32, host: u32, generation: u64) -> LayerBlockSwap {
    let (layer_block, host) = (LayerBlockId(layer_block), HostBlockId(host));
    LayerBlockSwap { layer_block, chunk: ChunkId(0), host, generation: Generation(generation) }
}

fn fetch(layer: u16, after: Option<(LayerId, Generation)>, swap: LayerBlockSwap) -> Work {
    let (layer, generation) = (LayerId(layer), Generation(5 + u64::from(layer)));
    Work::Fetch(Fetch { layer, buffer: 0, generation, after, layer_blocks: vec![swap].into() })
}

fn order(device: &mut Device, id: u64, work: Work) {
    device.submit(Action { id: ActionId(id), work, reason: Reason::Load, due: None });
}

/// Returns the completions, in order.
fn run(device: &mut Device) -> Vec<(u64, Outcome)> {
    let mut ended = Vec::new();
    for _ in 0..100 {
        ended.extend(device.poll().map(|completion| (completion.id.0, completion.outcome)));
    }
    ended
}

#[test]
fn fetch_waits_for_buffer_reader_and_loads_written_data() {
    for seed in 0..20 {
        let mut device = device(seed);
        order(&mut device, 4, fetch(0, None, swap(6, 0, 1)));
        order(&mut device, 5, fetch(1, Some((LayerId(0), Generation(5))), swap(6, 1, 2)));
        assert_eq!(run(&mut device).len(), 1);
        assert_eq!((device.kv_ready[0], device.read_token(LayerBlockId(6), 0)), (Generation(5), 10));
        device.kv_done[0] = Generation(5);
        assert_eq!(run(&mut device).len(), 1);
        assert_eq!((device.kv_ready[1], device.read_token(LayerBlockId(6), 0)), (Generation(6), 11));
        assert!(device.idle());
    }
}

#[test]
fn reused_host_blocks_are_refused() {
    for seed in 0..20 {
        let mut device = device(seed);
        let never = Some((LayerId(1), Generation(9)));
        order(&mut device, 4, fetch(0, None, swap(6, 0, 7)));
        assert_eq!(run(&mut device), [(4, Outcome::Failed(Failure::Refused))]);
        order(&mut device, 5, fetch(0, never, swap(6, 0, 1)));
        order(&mut device, 6, Work::WriteBack(vec![swap(0, 2, 3)]));
        order(&mut device, 7, Work::DropFills);
        let ended = run(&mut device);
        assert!(ended.contains(&(5, Outcome::Failed(Failure::Dropped))), "{ended:?}");
        let done = |id| ended.iter().any(|(i, o)| *i == id && matches!(o, Outcome::Done { .. }));
        assert!(done(6) && done(7), "{ended:?}");
        assert_eq!((device.kv_ready[0], device.refused_fetches), (Generation(0), 1));
    }
}

#[test]
#[should_panic(expected = "is read while it is fetched")]
fn moving_a_fetched_layer_block_is_detected() {
    let mut device = device(1);
    order(&mut device, 4, fetch(0, Some((LayerId(1), Generation(9))), swap(6, 0, 1)));
    order(&mut device, 5, Work::SwapOut(vec![swap(6, 3, 8)]));
    run(&mut device);
}
