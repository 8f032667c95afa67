//! Chunks that change owners: poison, the engine's answers and loss, the snapshot and the audit.

use sluice_memory::AuditError;
use sluice_policy::action::{Address, Fill, FillTarget, MapOp, Work};
use sluice_policy::event::{Failure, Outcome};
use sluice_policy::ids::{ChunkId, Generation, KvChunkId, LayerBlockId, LayerId};
use sluice_ports::conformance::SlabChunk;

use super::harness::{Harness, chunks, geometry, map_layer, remap};

const KV_CHUNK: Address = Address::Kv(KvChunkId(0));
const OTHER: Address = Address::Kv(KvChunkId(1));
const C0: ChunkId = ChunkId(0);

fn world(poison: bool) -> Harness {
    let geometry = geometry(64 << 10, 6, 2, 128 << 10);
    let mut world = Harness::with(&geometry, |options| options.poison = poison);
    world.succeed(Work::Create(chunks(0..6)));
    world
}

#[test]
fn handed_over_chunk_is_poisoned_before_mapping() {
    for poison in [false, true] {
        let mut world = world(poison);
        world.succeed(remap(vec![MapOp::Map(KV_CHUNK, C0)], vec![]));
        world.write_layer_block(LayerBlockId(0), 3);
        world.succeed(remap(vec![MapOp::Unmap(KV_CHUNK, C0), MapOp::Map(OTHER, C0)], vec![C0]));
        let bytes = world.read(OTHER).unwrap();
        assert_eq!(bytes.iter().all(|byte| *byte == 0xFF), poison);
        assert_eq!(world.layer_block(LayerBlockId(8)), (!poison).then_some(3), "kept without the option");
    }
}

#[test]
fn chunk_mapped_at_two_addresses_is_poisoned_once() {
    let activation = Address::Activation(0);
    let poisoned = |world: &Harness, at| world.read(at).map(|bytes| bytes.iter().all(|byte| *byte == 0xFF));
    for later in [false, true] {
        let mut world = world(true);
        world.succeed(remap(vec![MapOp::Map(activation, C0)], vec![]));
        let (map, unmap) = (MapOp::Map(KV_CHUNK, C0), MapOp::Unmap(activation, C0));
        let ops = if later { vec![map] } else { vec![map, unmap] };
        world.succeed(remap(ops, vec![C0]));
        assert_eq!(poisoned(&world, KV_CHUNK), Some(true));
        assert_eq!(poisoned(&world, activation), later.then_some(true));
        // The new owner's data remains when the old address is unmapped.
        world.write_layer_block(LayerBlockId(0), 3);
        if later {
            world.succeed(remap(vec![unmap], vec![]));
        }
        assert_eq!((world.layer_block(LayerBlockId(0)), poisoned(&world, activation)), (Some(3), None));
    }
}

#[test]
fn a_refused_transaction_poisons_nothing() {
    let mut world = world(true);
    world.succeed(remap(vec![MapOp::Map(KV_CHUNK, C0)], vec![]));
    world.write_layer_block(LayerBlockId(0), 3);
    let refused = world.run(remap(vec![MapOp::Unmap(OTHER, C0)], vec![C0]));
    assert_eq!((refused, world.layer_block(LayerBlockId(0))), (Outcome::Failed(Failure::Refused), Some(3)));
}

#[test]
fn fill_waits_for_transaction_with_same_chunks() {
    let mut world = world(true);
    let geometry = world.geometry.clone();
    world.hold_engine(true);
    let layer = LayerId(0);
    world.submit_work(remap(map_layer(&geometry, layer, 0), chunks(0..2)));
    let target = FillTarget::Resident(layer);
    let fill = world.submit_work(Work::Fill(Fill {
        target,
        generation: Generation(1),
        after: None,
        chunks: chunks(0..2),
    }));
    world.settle();
    assert_eq!((world.outcome(fill), world.page.ready(Some(layer))), (None, Generation(0)));
    world.hold_engine(false);
    world.wait(fill);
    let part = SlabChunk { layer: Some(layer), chunk: 1 };
    assert_eq!(world.contents(Address::Layer(layer, 1)), Some(part), "the poison came first");
}

#[test]
fn transaction_refused_by_engine_is_rolled_back() {
    let mut world = world(false);
    world.hold_engine(true);
    let order = world.submit_work(remap(vec![MapOp::Map(KV_CHUNK, C0)], vec![]));
    world.settle();
    assert_eq!(world.memory.snapshot(), [MapOp::Map(KV_CHUNK, C0)]);
    assert!(world.memory.on_acknowledge(order, false));
    assert_eq!(world.wait(order), Outcome::Failed(Failure::Refused));
    assert_eq!(world.memory.snapshot(), []);
}

#[test]
fn engine_loss_completes_unacknowledged_remap() {
    let mut world = world(false);
    world.hold_engine(true);
    let first = world.submit_work(remap(vec![MapOp::Map(KV_CHUNK, C0)], vec![]));
    let second = world.submit_work(remap(vec![MapOp::Map(OTHER, ChunkId(1))], vec![]));
    world.settle();
    assert_eq!(world.outcome(first), None);
    world.detach_engine();
    world.memory.on_engine_lost();
    for order in [first, second] {
        assert!(matches!(world.outcome(order), Some(Outcome::Done { .. })), "{order:?}");
    }
    assert!(!world.memory.on_acknowledge(first, true), "a late answer belongs to no request");
    assert_eq!(world.memory.snapshot(), [MapOp::Map(KV_CHUNK, C0), MapOp::Map(OTHER, ChunkId(1))]);
}

#[test]
fn audit_reports_first_difference() {
    let mut world = world(false);
    world.succeed(remap(vec![MapOp::Map(KV_CHUNK, C0), MapOp::Map(OTHER, ChunkId(1))], vec![]));
    let audit = |entries: &[(Address, ChunkId)]| world.memory.audit(entries.iter().copied());
    assert_eq!(audit(&[(KV_CHUNK, C0), (OTHER, ChunkId(1))]), Ok(()));
    let missing = AuditError { address: OTHER, backing: Some(ChunkId(1)), expected: None };
    assert_eq!(audit(&[(KV_CHUNK, C0)]), Err(missing));
    let wrong = AuditError { address: OTHER, backing: Some(ChunkId(1)), expected: Some(C0) };
    assert_eq!(audit(&[(KV_CHUNK, C0), (OTHER, C0)]), Err(wrong));
}
