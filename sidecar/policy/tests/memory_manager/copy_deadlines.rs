//! Tests the deadlines that the memory manager sets for copies.

use sluice_policy::action::{Action, FillTarget, Work};
use sluice_policy::geometry::StepShape;
use sluice_policy::ids::{LayerId, Nanos, RequestId};
use sluice_policy::memory_manager::{Prepared, StepNeed};
use sluice_policy::params::{ForcedRemap, Params};
use sluice_policy::reclaim::PolicyName;

use super::cases::{guaranteed_chunks, open, tenant};
use super::device::Faults;
use super::random::MODEL_TOKENS;
use super::world::World;

const MS: u64 = 1_000_000;

/// Returns the moving layers and the actions of a step that begins at `now`: six layers of a millisecond, three of
/// which share a slot.
fn step(now: Nanos, by_deadline: bool) -> (Vec<LayerId>, Vec<Action>) {
    let (params, _) = tenant(PolicyName::Recompute, &[3; 6], 0, 32);
    let (params, geometry) = tenant(PolicyName::Recompute, &[3; 6], guaranteed_chunks(&params), 32);
    let forced = Some(ForcedRemap { alpha: 2, beta: 1 });
    let params = Params { forced, link_by_deadline: by_deadline, ..params };
    let mut world = World::new(params, geometry, 1, Faults::default());
    assert!(world.load());
    world.drain();
    let manager = &mut world.manager;
    open(manager, RequestId(1), 0, &[1, 2, 3]);
    let shape = StepShape { tokens: 3, sequences: 1, logit_rows: 1 };
    let need = StepNeed { kv_blocks: vec![(RequestId(1), 1)], shape, ..StepNeed::default() };
    let mut out = Vec::new();
    assert_eq!(manager.prepare(now, &need, &mut out), Prepared::Ready);
    manager.begin(now, &mut out);
    (manager.figures().layout().moving.clone(), out)
}

#[test]
fn slab_deadline_is_start_of_its_layer() {
    let now = Nanos(7 * MS);
    let (moving, out) = step(now, true);
    let dues: Vec<_> = out.iter().map(|action| (target(action), action.due)).collect();
    // The first layer is resident since the tenant loaded; its next copy is for the next step.
    let at = |layer: LayerId, steps: u64| (layer, Some(now.plus((6 * steps + u64::from(layer.0)) * MS)));
    assert_eq!(moving.len(), 3);
    assert_eq!(dues, [at(moving[1], 0), at(moving[2], 0), at(moving[0], 1)]);
}

fn target(action: &Action) -> LayerId {
    match &action.work {
        Work::Fill(fill) => match fill.target {
            FillTarget::Slot(_, layer) => layer,
            other => panic!("{other:?} is no slot"),
        },
        other => panic!("a step orders slabs of moving layers, not {other:?}"),
    }
}

#[test]
fn copies_have_no_deadline_without_arbiter() {
    let (_, out) = step(Nanos(7 * MS), false);
    assert!(out.len() == 3 && out.iter().all(|action| action.due.is_none()), "{out:?}");
}

/// Checks that every action except a write-back has a deadline.
fn check(action: &mut Action) {
    let waited = !matches!(action.work, Work::WriteBack(_));
    assert_eq!(action.due.is_some(), waited, "{action:?}");
}

#[test]
fn step_copies_have_deadlines_and_write_backs_none() {
    let (params, _) = tenant(PolicyName::FlexGen, &[4; 8], 0, MODEL_TOKENS);
    let kv = guaranteed_chunks(&params) + 4;
    let (params, geometry) = tenant(PolicyName::FlexGen, &[4; 8], kv, MODEL_TOKENS);
    let host_kv_bytes = 200 * geometry.kv_block_bytes();
    let mut world = World::new(Params { host_kv_bytes, ..params }, geometry, 7, Faults::default());
    assert!(world.load());
    world.corrupt_action = Some(check);
    (0..3).for_each(|id| world.submit(id, 0, vec![1, 2, 3], 60));
    world.run();
    assert!(world.manager.figures().fetched_bytes() > 0, "KV was away");
}
