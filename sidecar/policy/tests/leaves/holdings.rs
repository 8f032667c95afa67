//! Changes of owner: what a transaction does with a chunk, and in which order.

use std::collections::BTreeMap;

use sluice_policy::action::{Address, Reback};
use sluice_policy::geometry::{ActivationCost, Geometry};
use sluice_policy::ids::{ChunkId, FrameId};
use sluice_policy::ledger::{Holdings, Ledger, Owner};

const CHUNKS: u32 = 6;
const FRAMES: u32 = 4;

/// A tenant without weights whose chunks are activations, and a ledger that says so.
fn tenant() -> (Holdings, Ledger) {
    let geometry = Geometry {
        chunk_bytes: 64,
        capacity_chunks: CHUNKS,
        global_bytes: 0,
        slab_bytes: vec![64],
        block_bytes: 16,
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
    let (mut holdings, mut ledger) = (Holdings::new(&geometry, FRAMES), Ledger::new(CHUNKS, 64));
    for chunk in (0..CHUNKS).map(ChunkId) {
        ledger.create(chunk);
        ledger.hand_over(chunk, Owner::Free, Owner::Activation);
        holdings.activation.push(chunk);
    }
    (holdings, ledger)
}

/// The last `count` activation chunks behind the first frames.
fn inflated(holdings: &Holdings, count: usize) -> Holdings {
    let mut next = holdings.clone();
    let idle = next.activation.split_off(next.activation.len() - count);
    next.frames.iter_mut().zip(idle).for_each(|(frame, chunk)| *frame = Some(chunk));
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
    let kv = |frame| after.addresses().find(|(address, _)| *address == Address::Kv(FrameId(frame)));
    assert_eq!([0, 1].map(|frame| kv(frame).map(|(_, chunk)| chunk)), [4, 5].map(|c| Some(ChunkId(c))));
    assert_eq!(before.transaction(&after, &[]).handed_over, [4, 5].map(ChunkId), "poisoned, not copied");
}

/// Not eLLM's order, which maps the new address first.
#[test]
fn a_chunk_backs_one_address_at_most_all_through_a_change_of_owner() {
    let (one, _) = tenant();
    let (two, four) = (inflated(&one, 2), inflated(&one, 4));
    for (from, to) in [(&one, &two), (&two, &one), (&two, &four), (&four, &two)] {
        let mut table: BTreeMap<Address, ChunkId> = from.addresses().collect();
        for op in from.transaction(to, &[]).ops {
            match op {
                Reback::Unmap(address, chunk) => assert_eq!(table.remove(&address), Some(chunk), "as mapped"),
                Reback::Map(address, chunk) => {
                    assert!(table.values().all(|other| *other != chunk), "{chunk:?} has another owner still");
                    assert_eq!(table.insert(address, chunk), None, "over nothing");
                }
            }
        }
        assert_eq!(table, to.addresses().collect());
    }
}
