//! Tests changes of owner: the operations of a transaction on a chunk, and their order.

use std::collections::BTreeMap;

use sluice_policy::action::{Address, MapOp};
use sluice_policy::chunk_table::{ChunkTable, Owner, Ownership};
use sluice_policy::geometry::{ActivationCost, Geometry};
use sluice_policy::ids::{ChunkId, KvChunkId};

const CHUNKS: u32 = 6;
const FRAMES: u32 = 4;

/// Returns a tenant without weights whose chunks are activations, and a matching chunk table.
fn tenant() -> (Ownership, ChunkTable) {
    let geometry = Geometry {
        chunk_bytes: 64,
        capacity_chunks: CHUNKS,
        global_bytes: 0,
        slab_bytes: vec![64],
        layer_block_bytes: 16,
        activation: ActivationCost {
            fixed_bytes: 0,
            stream_per_token_bytes: 1,
            chunk_per_token_bytes: 1,
            chunk_tokens: 1,
            per_sequence_bytes: 1,
            per_logit_row_bytes: 1,
        },
        staging_chunks: 0,
    };
    let (mut holdings, mut ledger) = (Ownership::new(&geometry, FRAMES), ChunkTable::new(CHUNKS, 64));
    for chunk in (0..CHUNKS).map(ChunkId) {
        ledger.create(chunk);
        ledger.hand_over(chunk, Owner::Free, Owner::Activation);
        holdings.activation.push(chunk);
    }
    (holdings, ledger)
}

/// Returns the ownership after the last `count` activation chunks move behind the first free KV chunks.
fn inflated(holdings: &Ownership, count: usize) -> Ownership {
    let mut next = holdings.clone();
    let idle = next.activation.split_off(next.activation.len() - count);
    next.back_kv_chunks(idle);
    next
}

#[test]
fn inflation_changes_the_label_of_the_same_chunks_and_makes_none() {
    let (before, mut ledger) = tenant();
    let after = inflated(&before, 2);
    let changes = before.changes(&after);
    let moved = [4, 5].map(|chunk| (ChunkId(chunk), Owner::Activation, Owner::Kv));
    assert_eq!(changes, moved);
    changes.iter().for_each(|(chunk, from, to)| ledger.hand_over(*chunk, *from, *to));
    ledger.check();
    assert_eq!([Owner::Activation, Owner::Kv, Owner::Free].map(|owner| ledger.count(owner)), [4, 2, 0]);
    assert_eq!(ledger.created(), CHUNKS);
    let kv = |kv_chunk| after.addresses().find(|(address, _)| *address == Address::Kv(KvChunkId(kv_chunk)));
    assert_eq!([0, 1].map(|kv_chunk| kv(kv_chunk).map(|(_, chunk)| chunk)), [4, 5].map(|c| Some(ChunkId(c))));
    assert_eq!(before.transaction(&after, &[]).handed_over, [4, 5].map(ChunkId), "poisoned, not copied");
}

/// Returns the address table after `ops`, each of which must be valid, and the maximum number of addresses of a chunk
/// on the way. Calls `left` with each chunk that an unmap leaves without an address.
fn applied(
    from: &Ownership,
    ops: &[MapOp],
    mut left: impl FnMut(ChunkId),
) -> (BTreeMap<Address, ChunkId>, usize) {
    let mut table: BTreeMap<Address, ChunkId> = from.addresses().collect();
    let mut most = 1;
    for op in ops {
        match *op {
            MapOp::Unmap(address, chunk) => {
                assert_eq!(table.remove(&address), Some(chunk), "as mapped");
                if !table.values().any(|other| *other == chunk) {
                    left(chunk);
                }
            }
            MapOp::Map(address, chunk) => {
                assert_eq!(table.insert(address, chunk), None, "over nothing");
                most = most.max(table.values().filter(|other| **other == chunk).count());
            }
        }
    }
    (table, most)
}

fn is_map(op: &MapOp) -> bool {
    matches!(op, MapOp::Map(..))
}

/// eLLM 5.1: map at the new address first, unmap the old one later.
#[test]
fn chunk_is_remapped_before_old_unmap() {
    let (one, _) = tenant();
    let two = inflated(&one, 2);
    let four = inflated(&two, 2);
    for (from, to) in [(&one, &two), (&two, &one), (&two, &four), (&four, &two)] {
        let ops = from.transaction(to, &[]).ops;
        let (table, most) = applied(from, &ops, |chunk| panic!("{chunk:?} is nowhere half way"));
        assert_eq!((table, most), (to.addresses().collect(), 2), "both addresses at once");
        assert!(ops.is_sorted_by_key(|op| !is_map(op)), "all maps, then the unmaps: {ops:?}");
    }
}

/// Exchanges the chunks of two KV chunks: no address is ever backed by two chunks.
#[test]
fn address_is_unmapped_before_remap() {
    let two = inflated(&tenant().0, 2);
    let mut swapped = two.clone();
    swapped.kv_chunks.swap(0, 1);
    let ops = two.transaction(&swapped, &[]).ops;
    assert!(ops.is_sorted_by_key(is_map), "unmaps, then maps: {ops:?}");
    assert_eq!(applied(&two, &ops, |_| ()).0, swapped.addresses().collect());
}

/// eLLM 5.1, asynchronous unmapping.
#[test]
fn deferred_unmap_precedes_other_changes() {
    let (one, mut ledger) = tenant();
    let inflate = |from: &Ownership, count: usize| {
        let mut next = inflated(from, count);
        next.mark_stale(from);
        next
    };
    let two = inflate(&one, 2);
    let (activation, kv) = (Address::Activation, |kv_chunk| Address::Kv(KvChunkId(kv_chunk)));
    let maps = |kv_chunk, chunk| MapOp::Map(kv(kv_chunk), ChunkId(chunk));
    assert_eq!(one.transaction(&two, &[]).ops, [maps(0, 4), maps(1, 5)], "it only maps");
    assert_eq!(two.stale, [4, 5].map(|at| (activation(at), ChunkId(at))));
    let four = inflate(&two, 2);
    assert_eq!(
        two.transaction(&four, &[]).ops,
        [maps(2, 2), maps(3, 3)],
        "nor does the next one unmap anything"
    );
    assert_eq!(four.stale.len(), 4);
    // A deflation begins with all unmaps, even if a chunk returns to an address that it still backs.
    let mut back = four.clone();
    back.activation.extend([back.kv_chunks[2].take(), back.kv_chunks[0].take()].into_iter().flatten());
    back.stale.clear();
    let ops = four.transaction(&back, &[]).ops;
    let gone = [2, 3, 4, 5].map(|at| MapOp::Unmap(activation(at), ChunkId(at)));
    assert_eq!(ops[..4], gone);
    let (table, most) = applied(&four, &ops, |_| ());
    assert_eq!((table, most), (back.addresses().collect(), 2));
    // Every chunk has one owner at each step.
    for (from, to) in [(&one, &two), (&two, &four), (&four, &back)] {
        from.changes(to).iter().for_each(|(chunk, from, to)| ledger.hand_over(*chunk, *from, *to));
        assert!(to.owners().all(|(chunk, owner)| ledger.owner(chunk) == Some(owner)));
        assert_eq!(to.owners().count(), CHUNKS as usize, "each counts once");
    }
}
