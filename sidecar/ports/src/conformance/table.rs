//! Rules of chunks and of address backing.

use sluice_policy::action::{Address, FillTarget, LayerBlockMove, Transaction, Work};
use sluice_policy::event::{Failure, Outcome};
use sluice_policy::ids::{ChunkId, KvChunkId, LayerBlockId, LayerId, SlotId};

use super::backend::{Backend, SlabChunk};
use super::harness::{
    BackendTest, CAPACITY, chunks, fill, map, map_layer, remap, swap, swap_in, swap_out, unmap,
};
use crate::Memory;

const KV_CHUNK: Address = Address::Kv(KvChunkId(0));
const OTHER: Address = Address::Kv(KvChunkId(1));
const ACTIVATION: Address = Address::Activation(0);

/// Orders that succeed and orders that fail complete once each, including empty ones.
pub fn every_action_completes_exactly_once<B: Backend>() {
    let mut trial = BackendTest::<B>::new("every action completes exactly once");
    let orders = [
        Work::Create(chunks(0..2)),
        Work::Create(chunks(0..2)),
        remap(vec![map(KV_CHUNK, 0)]),
        remap(vec![map(KV_CHUNK, 1)]),
        remap(vec![]),
        Work::MoveLayerBlocks(vec![]),
        swap_in(&[swap(0, 0, 0, 1)]),
        swap_out(&[swap(0, 0, 0, 1)]),
        swap_in(&[swap(0, 0, 0, 1)]),
        swap_out(&[]),
        Work::Release(chunks(0..1)),
        Work::Release(chunks(1..2)),
        Work::DropFills,
    ];
    let ids = orders.map(|work| trial.submit(work));
    trial.settle_after(&ids);
    let failed = |id| matches!(trial.outcome(id), Some(Outcome::Failed(_)));
    assert_eq!(trial.completed_count(), ids.len(), "every action completes exactly once");
    let expected = [false, true, false, true, false, false, true, false, false, false, true, false, false];
    assert_eq!(ids.map(failed), expected);
}

/// A creation that exceeds the capacity by one chunk fails as a whole.
pub fn create_beyond_capacity_creates_no_chunk<B: Backend>() {
    let rule = "creation beyond the capacity leaves nothing";
    let mut trial = BackendTest::<B>::with_chunks(rule, CAPACITY - 2);
    trial.fail(Work::Create(chunks(CAPACITY - 2..CAPACITY + 1)), Failure::OutOfMemory);
    assert_eq!(trial.backend.memory().used_bytes(), u64::from(CAPACITY - 2) * B::chunk_bytes(), "{rule}");
    trial.fail(remap(vec![map(KV_CHUNK, CAPACITY - 2)]), Failure::Refused);
    trial.succeed(Work::Create(chunks(CAPACITY - 2..CAPACITY)));
    assert_eq!(trial.backend.memory().used_bytes(), u64::from(CAPACITY) * B::chunk_bytes(), "{rule}");
}

/// Released chunks no longer count, do not exist, and can be created again.
pub fn released_chunks_can_be_recreated<B: Backend>() {
    let rule = "created chunks come back";
    let mut trial = BackendTest::<B>::with_chunks(rule, CAPACITY);
    trial.succeed(Work::Release(chunks(3..CAPACITY)));
    assert_eq!(trial.backend.memory().used_bytes(), 3 * B::chunk_bytes(), "{rule}");
    trial.fail(Work::Release(chunks(3..4)), Failure::Refused);
    trial.fail(remap(vec![map(KV_CHUNK, 5)]), Failure::Refused);
    trial.succeed(Work::Create(chunks(3..CAPACITY)));
    trial.succeed(remap(vec![map(KV_CHUNK, 5)]));
}

/// Map over a mapping, unmap of a chunk that is not there, chunks that do not exist.
pub fn inconsistent_operation_is_refused<B: Backend>() {
    let mut trial = BackendTest::<B>::with_chunks("what contradicts the table is refused", 2);
    trial.succeed(remap(vec![map(KV_CHUNK, 0)]));
    for ops in [
        vec![map(KV_CHUNK, 1)],
        vec![map(KV_CHUNK, 0)],
        vec![unmap(KV_CHUNK, 1)],
        vec![unmap(OTHER, 0)],
        vec![map(OTHER, 7)],
        vec![map(OTHER, CAPACITY + 3)],
    ] {
        trial.fail(remap(ops), Failure::Refused);
    }
    let move_away = LayerBlockMove {
        from: LayerBlockId(0),
        from_chunk: ChunkId(0),
        to: LayerBlockId(8),
        to_chunk: ChunkId(9),
    };
    trial.fail(Work::MoveLayerBlocks(vec![move_away]), Failure::Refused);
    trial.fail(Work::Create(chunks(1..2)), Failure::Refused);
    trial.succeed(remap(vec![unmap(KV_CHUNK, 0)]));
}

/// A transaction whose last change is impossible reverts its first ones.
pub fn a_refused_transaction_changes_nothing<B: Backend>() {
    let mut trial = BackendTest::<B>::with_chunks("a refused transaction changes nothing", 3);
    trial.succeed(remap(vec![map(KV_CHUNK, 0)]));
    trial.backend.write_layer_block(LayerBlockId(0), 7);
    let ops = vec![unmap(KV_CHUNK, 0), map(KV_CHUNK, 1), map(OTHER, 2), unmap(OTHER, 0)];
    let contradiction = Transaction { ops, handed_over: chunks(0..1) };
    trial.fail(Work::Transaction(contradiction), Failure::Refused);
    assert_eq!(trial.backend.layer_block(LayerBlockId(0)), Some(7), "a refused transaction changes nothing");
    assert_eq!(trial.backend.layer_block(LayerBlockId(8)), None, "a refused transaction changes nothing");
    trial.succeed(remap(vec![unmap(KV_CHUNK, 0), map(OTHER, 0)]));
    assert_eq!(
        trial.backend.layer_block(LayerBlockId(8)),
        Some(7),
        "the chunk keeps its contents where it goes"
    );
}

/// Data written through one address is visible through all.
pub fn a_chunk_backs_many_addresses<B: Backend>() {
    let rule = "a chunk backs many addresses";
    let mut trial = BackendTest::<B>::with_chunks(rule, 2);
    let layers = || (0..3).map(LayerId);
    trial.succeed(remap(layers().flat_map(|layer| map_layer(layer, 0)).collect()));
    trial.succeed(fill(FillTarget::Slot(SlotId(0), LayerId(1)), 1, 0, None));
    let part = |layer, part| Address::Layer(layer, part);
    let written = |at| Some(SlabChunk { layer: Some(LayerId(1)), chunk: at });
    for layer in layers() {
        assert_eq!([0, 1].map(|at| trial.backend.contents(part(layer, at))), [0, 1].map(written), "{rule}");
    }
    assert_eq!(trial.backend.memory().used_bytes(), 2 * B::chunk_bytes(), "{rule}: it counts once");
    trial.succeed(remap(vec![unmap(part(LayerId(0), 1), 1)]));
    let read = [0, 1].map(|layer| trial.backend.contents(part(LayerId(layer), 1)));
    assert_eq!(read, [None, written(1)], "{rule}");
}

/// While a chunk is remapped it backs both addresses, counts once and keeps its contents.
pub fn chunk_is_remapped_before_old_address_is_unmapped<B: Backend>() {
    let rule = "a chunk is mapped anew before its old address goes";
    let mut trial = BackendTest::<B>::with_chunks(rule, CAPACITY);
    trial.succeed(remap(vec![map(KV_CHUNK, 0), map(OTHER, 1), map(ACTIVATION, 2)]));
    trial.backend.write_layer_block(LayerBlockId(1), 5);
    // KV chunk 1 gets the chunk of KV chunk 0, and its own becomes staging.
    let last = CAPACITY - 1;
    let ops = vec![unmap(OTHER, 1), map(OTHER, 0), map(Address::Staging(0), 1), unmap(KV_CHUNK, 0)];
    trial.succeed(remap(ops));
    assert_eq!([1, 9].map(|b| trial.backend.layer_block(LayerBlockId(b))), [None, Some(5)], "{rule}");
    assert_eq!(
        trial.backend.memory().used_bytes(),
        u64::from(CAPACITY) * B::chunk_bytes(),
        "{rule}: it counts once"
    );
    // A transaction that ends in a contradiction leaves no change.
    trial.fail(remap(vec![map(KV_CHUNK, 0), unmap(OTHER, 0), unmap(OTHER, last)]), Failure::Refused);
    assert_eq!([1, 9].map(|b| trial.backend.layer_block(LayerBlockId(b))), [None, Some(5)], "{rule}");
    // An inflation may defer the unmapping of the old address, where the contents are those of the new owner.
    trial.succeed(remap(vec![map(KV_CHUNK, 2)]));
    trial.backend.write_layer_block(LayerBlockId(3), 7);
    trial.succeed(remap(vec![unmap(ACTIVATION, 2), map(ACTIVATION, last)]));
    assert_eq!(trial.backend.layer_block(LayerBlockId(3)), Some(7), "{rule}");
}

/// After a transaction a chunk has one owner. Layers that share a slot count as one, and KV may still be
/// mapped at its former activation address.
pub fn chunk_with_two_owners_is_refused<B: Backend>() {
    let rule = "a chunk of two owners is refused";
    let mut trial = BackendTest::<B>::with_chunks(rule, 2);
    let layer = |layer, part| Address::Layer(LayerId(layer), part);
    for (one, other) in [
        (KV_CHUNK, OTHER),
        (KV_CHUNK, layer(0, 0)),
        (layer(0, 0), layer(1, 1)),
        (layer(0, 0), layer(0, 1)),
        (Address::Global(0), layer(0, 0)),
        (ACTIVATION, Address::Activation(1)),
        (ACTIVATION, layer(0, 0)),
        (Address::Staging(0), KV_CHUNK),
        (Address::Staging(0), ACTIVATION),
    ] {
        trial.fail(remap(vec![map(one, 0), map(other, 0)]), Failure::Refused);
        trial.succeed(remap(vec![map(one, 0)]));
        // The old address of a move is no longer mapped.
        trial.fail(remap(vec![map(other, 0)]), Failure::Refused);
        trial.succeed(remap(vec![map(other, 0), unmap(one, 0)]));
        trial.succeed(remap(vec![map(one, 1), unmap(other, 0)]));
        trial.succeed(remap(vec![unmap(one, 1)]));
    }
    for (one, other) in [(layer(0, 1), layer(3, 1)), (KV_CHUNK, ACTIVATION)] {
        trial.succeed(remap(vec![map(one, 0), map(other, 0)]));
        trial.fail(remap(vec![map(OTHER, 0)]), Failure::Refused);
        trial.succeed(remap(vec![unmap(one, 0), unmap(other, 0)]));
    }
    trial.succeed(Work::Release(chunks(0..2)));
}

/// A release requires that no address maps the chunk.
pub fn mapped_chunk_cannot_be_released<B: Backend>() {
    let mut trial = BackendTest::<B>::with_chunks("a chunk that is mapped is not released", 2);
    trial.succeed(remap(vec![map(KV_CHUNK, 0), map(ACTIVATION, 0)]));
    trial.succeed(remap(vec![unmap(KV_CHUNK, 0)]));
    trial.fail(Work::Release(chunks(0..2)), Failure::Refused);
    assert_eq!(
        trial.backend.memory().used_bytes(),
        2 * B::chunk_bytes(),
        "a refused release gives nothing back"
    );
    trial.succeed(remap(vec![unmap(ACTIVATION, 0)]));
    trial.succeed(Work::Release(chunks(0..2)));
}

/// A remap does not complete before the engine has acknowledged it.
pub fn a_remap_waits_for_the_engine<B: Backend>() {
    let rule = "a remap waits for the engine";
    let mut trial = BackendTest::<B>::with_chunks(rule, 1);
    trial.backend.hold_engine(true);
    let order = trial.submit(remap(vec![map(KV_CHUNK, 0)]));
    trial.settle();
    assert_eq!(trial.outcome(order), None, "{rule}");
    trial.backend.hold_engine(false);
    assert!(matches!(trial.wait(order), Outcome::Done { .. }), "{rule}");
}

/// Unmap and release may be submitted together: the memory is released only after the engine has unmapped it.
pub fn operations_take_effect_in_order<B: Backend>() {
    let rule = "operations take effect in order";
    let mut trial = BackendTest::<B>::with_chunks(rule, CAPACITY);
    trial.succeed(remap(vec![map(KV_CHUNK, 0)]));
    trial.backend.hold_engine(true);
    let orders = [
        remap(vec![unmap(KV_CHUNK, 0)]),
        Work::Release(chunks(0..1)),
        Work::Create(chunks(0..1)),
        remap(vec![map(KV_CHUNK, 0), map(ACTIVATION, 0)]),
    ];
    let ids = orders.map(|work| trial.submit(work));
    trial.settle();
    assert!(ids.iter().all(|id| trial.outcome(*id).is_none()), "{rule}: all wait for the engine");
    trial.backend.hold_engine(false);
    trial.settle_after(&ids);
    for id in ids {
        assert!(matches!(trial.outcome(id), Some(Outcome::Done { .. })), "{rule}: {id:?}");
    }
    assert!(ids.map(|id| trial.completion_index(id)).is_sorted(), "{rule}");
}

/// A block at its new location has the contents of the old one, also within one chunk.
pub fn a_moved_layer_block_keeps_its_contents<B: Backend>() {
    let rule = "a moved block keeps its contents";
    let mut trial = BackendTest::<B>::with_chunks(rule, 2);
    trial.succeed(remap(vec![map(KV_CHUNK, 0), map(OTHER, 1)]));
    trial.backend.write_layer_block(LayerBlockId(2), 21);
    trial.backend.write_layer_block(LayerBlockId(3), 31);
    let to_other = LayerBlockMove {
        from: LayerBlockId(2),
        from_chunk: ChunkId(0),
        to: LayerBlockId(13),
        to_chunk: ChunkId(1),
    };
    let inside = LayerBlockMove {
        from: LayerBlockId(3),
        from_chunk: ChunkId(0),
        to: LayerBlockId(6),
        to_chunk: ChunkId(0),
    };
    trial.succeed(Work::MoveLayerBlocks(vec![to_other, inside]));
    assert_eq!([13, 6].map(|b| trial.backend.layer_block(LayerBlockId(b))), [Some(21), Some(31)], "{rule}");
}
