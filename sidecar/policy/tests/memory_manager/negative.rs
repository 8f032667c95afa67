//! Negative controls: each test disables a safety mechanism on the way to the device, and the checks must detect it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use sluice_policy::action::{Action, MapOp, Work};
use sluice_policy::params::ForcedRemap;
use sluice_policy::reclaim::PolicyName;

use super::cases::{guaranteed_chunks, tenant};
use super::device::Faults;
use super::world::World;

/// Runs a load in which layers stream and the layout changes, with `corrupt` applied to every action.
fn serve(corrupt: Option<fn(&mut Action)>, seed: u64) {
    let (params, _) = tenant(PolicyName::Oneiros, &[3; 6], 0, 96);
    let (mut params, geometry) = tenant(PolicyName::Oneiros, &[3; 6], guaranteed_chunks(&params) + 2, 96);
    params.forced = Some(ForcedRemap { alpha: 2, beta: 1 });
    let mut world = World::new(params, geometry, seed, Faults::default());
    assert!(world.load());
    world.corrupt_action = corrupt;
    (0..3).for_each(|id| world.submit(id, id, vec![1, 2, 3], 20));
    world.run();
    world.manager.force_layout(None).expect("possible");
    world.run_idle(1000);
    (4..6).for_each(|id| world.submit(id, id, vec![1, 2, 3], 20));
    world.run();
    assert_eq!(world.finished.len(), 5);
}

fn is_detected(corrupt: fn(&mut Action)) -> bool {
    (0..8).any(|seed| catch_unwind(AssertUnwindSafe(|| serve(Some(corrupt), seed))).is_err())
}

#[test]
fn uncorrupted_load_passes() {
    (0..8).for_each(|seed| serve(None, seed));
}

#[test]
fn copy_before_reader_end_is_detected() {
    assert!(is_detected(|action| {
        if let Work::Fill(fill) = &mut action.work {
            fill.after = None;
        }
    }));
}

#[test]
fn copy_with_stale_generation_is_detected() {
    // The engine would wait forever, so the load does not end.
    let result = catch_unwind(AssertUnwindSafe(|| {
        serve(
            Some(|action| {
                if let Work::Fill(fill) = &mut action.work {
                    fill.generation.0 -= 1;
                }
            }),
            0,
        );
    }));
    assert!(result.is_err());
}

#[test]
fn lost_unmap_is_detected() {
    assert!(is_detected(|action| {
        if let Work::Transaction(transaction) = &mut action.work
            && let Some(at) = transaction.ops.iter().position(|op| matches!(op, MapOp::Unmap(..)))
        {
            transaction.ops.remove(at);
        }
    }));
}

#[test]
fn lost_map_is_detected() {
    assert!(is_detected(|action| {
        if let Work::Transaction(transaction) = &mut action.work
            && let Some(at) = transaction.ops.iter().rposition(|op| matches!(op, MapOp::Map(..)))
        {
            transaction.ops.remove(at);
        }
    }));
}

#[test]
fn kept_old_address_is_detected() {
    assert!(is_detected(|action| {
        if let Work::Transaction(transaction) = &mut action.work
            && let Some(MapOp::Unmap(..)) = transaction.ops.last()
        {
            transaction.ops.pop();
        }
    }));
}

#[test]
fn chunk_mapped_for_two_owners_is_detected() {
    assert!(is_detected(|action| {
        if let Work::Transaction(transaction) = &mut action.work {
            let maps = transaction.ops.iter().position(|op| matches!(op, MapOp::Map(..)));
            let Some(first) = maps else { return };
            let MapOp::Map(_, chunk) = transaction.ops[first] else { return };
            let last = transaction.ops.iter_mut().rev().find_map(|op| match op {
                MapOp::Map(_, chunk) => Some(chunk),
                MapOp::Unmap(..) => None,
            });
            last.into_iter().for_each(|last| *last = chunk);
        }
    }));
}

#[test]
fn only_owner_hands_over_chunk() {
    use sluice_policy::chunk_table::{ChunkTable, Owner};
    use sluice_policy::ids::ChunkId;
    let mut ledger = ChunkTable::new(4, 64);
    ledger.create(ChunkId(0));
    ledger.hand_over(ChunkId(0), Owner::Free, Owner::Kv);
    let broken = catch_unwind(AssertUnwindSafe(|| ledger.hand_over(ChunkId(0), Owner::Free, Owner::Staging)));
    assert!(broken.is_err(), "a chunk promised twice");
}
