//! Tests every layout of small models, and every change from one to another.

use sluice_policy::ids::{Nanos, RequestId};
use sluice_policy::memory_manager::{Prepared, StepNeed};
use sluice_policy::params::ForcedRemap;
use sluice_policy::reclaim::PolicyName;

use super::cases::{guaranteed_chunks, open, tenant};
use super::device::Faults;
use super::world::World;

fn layouts(layers: u16) -> Vec<Option<ForcedRemap>> {
    let pairs = (1..layers).flat_map(|alpha| (1..=2).map(move |beta| ForcedRemap { alpha, beta }));
    let fits = pairs.filter(|f| f.alpha + u16::from(f.beta) < layers);
    std::iter::once(None).chain(fits.map(Some)).collect()
}

/// Returns a tenant whose capacity is exactly what the larger of the two layouts and the guaranteed KV need.
fn tight(slabs: &[u64], from: Option<ForcedRemap>) -> World {
    let (params, _) = tenant(PolicyName::Recompute, slabs, 0, 32);
    let kv = guaranteed_chunks(&params);
    let (mut params, geometry) = tenant(PolicyName::Recompute, slabs, kv, 32);
    params.forced = from;
    let mut world = World::new(params, geometry, 1, Faults::default());
    assert!(world.load());
    world
}

fn alpha_of(layout: Option<ForcedRemap>) -> u16 {
    layout.map_or(0, |f| f.alpha)
}

#[test]
fn every_layout_loads_and_serves() {
    for layers in 2..=6u16 {
        for layout in layouts(layers) {
            let mut world = tight(&vec![3; usize::from(layers)], layout);
            assert_eq!(world.manager.figures().layout().alpha(), alpha_of(layout));
            (0..3).for_each(|id| world.submit(id, 0, vec![1, 2, 3], 20));
            world.run();
            assert_eq!(world.finished.len(), 3);
        }
    }
}

#[test]
fn layout_changes_need_no_spare_chunk() {
    for slabs in [vec![3u64; 3], vec![2; 5], vec![1, 3, 2, 4, 2], vec![4, 1, 1, 3]] {
        let all = layouts(slabs.len() as u16);
        for from in &all {
            for to in &all {
                change(&slabs, *from, *to);
            }
        }
    }
}

fn change(slabs: &[u64], from: Option<ForcedRemap>, to: Option<ForcedRemap>) {
    let mut world = tight(slabs, from);
    world.submit(0, 0, vec![1, 2, 3], 20);
    for _ in 0..60 {
        world.tick();
    }
    world.manager.force_layout(to).expect("a possible layout");
    (1..4).for_each(|id| world.submit(id, 0, vec![1, 2, 3, id as u32], 16));
    world.run();
    world.run_idle(500);
    assert!(world.manager.is_idle(), "{from:?} to {to:?} comes to an end");
    assert_eq!(world.manager.figures().layout().alpha(), alpha_of(to), "{from:?} to {to:?}");
    assert_eq!(world.manager.figures().layout().beta, to.map_or(0, |f| f.beta), "{from:?} to {to:?}");
    world.submit(9, 0, vec![5, 6], 10);
    world.run();
    assert_eq!(world.finished.len(), 5);
}

#[test]
fn layout_without_space_waits_for_requests() {
    let mut world = tight(&[3; 5], Some(ForcedRemap { alpha: 3, beta: 1 }));
    let now = Nanos(0);
    let request = RequestId(7);
    open(&mut world.manager, request, 0, &[1; 200]);
    // All KV is in use, including the chunks of the freed layers.
    let kv_blocks = world.manager.figures().kv_counts().free_layer_blocks / 5;
    let need = StepNeed { kv_blocks: vec![(request, kv_blocks)], ..StepNeed::default() };
    let prepared = world.send_event(|manager, out| manager.prepare(now, &need, out));
    assert_eq!(prepared, Prepared::Ready);
    world.manager.force_layout(None).expect("no layout is always possible");
    world.run_idle(100);
    assert_eq!(world.manager.figures().layout().alpha(), 3, "live requests are never evicted for it");
    world.manager.close(request);
    world.run_idle(1000);
    assert_eq!(world.manager.figures().layout().alpha(), 0);
}
