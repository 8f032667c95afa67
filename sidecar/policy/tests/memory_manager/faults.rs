//! Tests failing backends: nothing leaks or panics, and permanent failures are reported.

use sluice_policy::action::FillTarget;
use sluice_policy::chunk_table::Owner;
use sluice_policy::config_error::ConfigError;
use sluice_policy::ids::RequestId;
use sluice_policy::memory_manager::{FILL_RETRIES, Failed, MemoryManager};
use sluice_policy::params::{ForcedRemap, Params};
use sluice_policy::reason::Reason;
use sluice_policy::reclaim::PolicyName;

use super::cases::{CHUNK, guaranteed_chunks, tenant};
use super::device::Faults;
use super::elastic::{small_layer_blocks, with_holes};
use super::world::World;

fn world(policy: PolicyName, extra_kv: u32, faults: Faults) -> World {
    let (params, _) = tenant(policy, &[4; 6], 0, 96);
    let (params, geometry) = tenant(policy, &[4; 6], guaranteed_chunks(&params) + extra_kv, 96);
    World::new(params, geometry, 3, faults)
}

#[test]
fn smaller_device_shrinks_kv() {
    for missing_chunks in 1..20 {
        let mut world = world(PolicyName::Recompute, 20, Faults { missing_chunks, ..Faults::default() });
        assert!(world.load());
        let kv = world.manager.figures().kv_counts().kv_chunks;
        assert_eq!(
            kv,
            guaranteed_chunks(world.manager.params()) + 20 - missing_chunks,
            "every chunk there is serves"
        );
        assert!(world.manager.figures().counted(Reason::BackendFailed) > 0);
    }
}

#[test]
fn oneiros_starts_remapped_below_full_weights() {
    let mut world = world(PolicyName::Oneiros, 0, Faults { missing_chunks: 6, ..Faults::default() });
    assert!(world.load());
    assert_eq!(world.manager.figures().layout().alpha(), 2, "two layers of four chunks for six missing ones");
    (0..4).for_each(|id| world.submit(id, id, vec![1, 2, 3], 40));
    world.run();
    world.run_idle(2000);
    assert!(world.manager.is_idle());
    assert_eq!(world.manager.figures().layout().alpha(), 2, "these never come back");
}

#[test]
fn device_below_floor_is_reported_and_chunks_are_returned() {
    let mut world = world(PolicyName::Recompute, 2, Faults { missing_chunks: 3, ..Faults::default() });
    assert!(!world.load());
    let floor_bytes = u64::from(world.device.geometry.capacity_chunks - 2) * CHUNK;
    assert_eq!(
        world.manager.status().failed(),
        Some(Failed::Create { created_bytes: floor_bytes - CHUNK, floor_bytes })
    );
    assert_eq!(world.device.memory.chunks.len(), 0);
    assert_eq!(world.manager.figures().ledger().created(), 0);
}

#[test]
fn failing_copies_end_in_typed_failure() {
    let mut world = world(PolicyName::Recompute, 2, Faults::default());
    world.device.faults = Faults { permille: 0, left: u32::MAX, ..Faults::default() };
    world.send_event(|manager, out| manager.start(Default::default(), out));
    for _ in 0..2 {
        let done = world.device.poll().expect("create, then the first mapping");
        world.send_event(|manager, out| manager.complete(Default::default(), &done, out));
    }
    world.device.faults.permille = 1000;
    while !world.device.idle() {
        world.poll();
    }
    assert!(matches!(
        world.manager.status().failed(),
        Some(Failed::Fill { target: FillTarget::Global | FillTarget::Resident(_) })
    ));
    assert!(!world.manager.status().is_loaded());
    let failures = world.manager.figures().counted(Reason::BackendFailed);
    assert!(failures > u64::from(FILL_RETRIES), "{failures} failures: the copies were ordered again");
}

#[test]
fn failing_changes_leave_other_reclaims_and_leak_nothing() {
    for policy in [PolicyName::Oneiros, PolicyName::Ellm] {
        let mut world = world(policy, 2, Faults::default());
        assert!(world.load());
        let created = world.manager.figures().ledger().created();
        world.device.refuse_remaps = true;
        (0..6).for_each(|id| world.submit(id, id, (0..40).collect(), 50));
        world.run();
        assert_eq!(world.finished.len(), 6);
        assert!(world.preemptions > 0, "what is left is recomputation");
        assert!(world.manager.figures().counted(Reason::BackendFailed) > 0);
        assert_eq!((world.manager.figures().ledger().created(), world.most_alpha), (created, 0));
        assert_eq!(world.manager.figures().ledger().count(Owner::Free), 0);
    }
}

#[test]
fn impossible_config_is_refused_with_numbers() {
    let good = || tenant(PolicyName::Recompute, &[4; 6], 40, 96);
    let refused = |change: &dyn Fn(&mut Params, &mut sluice_policy::geometry::Geometry)| {
        let (mut params, mut geometry) = good();
        change(&mut params, &mut geometry);
        let error = MemoryManager::new(params, geometry).expect_err("refused");
        assert!(error.to_string().len() > 20, "it says so: {error}");
        error
    };
    assert!(MemoryManager::new(good().0, good().1).is_ok());
    assert_eq!(
        refused(&|_, g| g.layer_block_bytes = 65),
        ConfigError::LayerBlockLargerThanChunk { layer_block_bytes: 65, chunk_bytes: 64 }
    );
    let needed_bytes = 6 * 6 * 16;
    assert_eq!(
        refused(&|p, _| p.guaranteed_kv_bytes = 500),
        ConfigError::ContextDoesNotFit { needed_bytes, guaranteed_bytes: 500 }
    );
    assert_eq!(
        refused(&|p, _| p.kv_limit_bytes = 64),
        ConfigError::ContextDoesNotFit { needed_bytes, guaranteed_bytes: 64 }
    );
    assert!(matches!(
        refused(&|_, g| g.capacity_chunks = 20),
        ConfigError::FloorExceedsCapacity { capacity_bytes: 1280, .. }
    ));
    assert_eq!(
        refused(&|p, _| p.forced = Some(ForcedRemap { alpha: 5, beta: 1 })),
        ConfigError::BadForced { alpha: 5, beta: 1, layers: 6 }
    );
    assert_eq!(refused(&|p, _| p.remap_cap_permille = 1001), ConfigError::BadCap { permille: 1001 });
    assert_eq!(refused(&|_, g| g.slab_bytes[1] = 0), ConfigError::ZeroSize { what: "slab_bytes" });
    let deep = refused(&|_, g| g.slab_bytes.resize(257, 128));
    assert_eq!(deep, ConfigError::TooManyLayers { layers: 257 });
    let (mut params, mut geometry) = good();
    params.guaranteed_kv_bytes = 6 * 256 * 16;
    (geometry.capacity_chunks, geometry.slab_bytes) = (2000, vec![128; 256]);
    assert!(MemoryManager::new(params, geometry).is_ok(), "as deep as a model may be");
    assert_eq!(deep.to_string(), "the model has 257 layers; at most 256 are supported");
}

#[test]
fn ended_requests_and_failed_moves_leak_nothing() {
    for fails in [false, true] {
        let mut world = small_layer_blocks();
        with_holes(&mut world);
        world.manager.force_layout(None).expect("possible");
        let used = world.manager.figures().kv_counts().used_layer_blocks;
        // As many calm boundaries as the hysteresis requires.
        (0..3).for_each(|_| world.send_event(|manager, out| manager.boundary(Default::default(), out)));
        assert!(world.manager.status().is_blocked(), "blocks are moving");
        assert_eq!(
            world.manager.figures().kv_counts().used_layer_blocks,
            used + 16,
            "their targets are reserved"
        );
        if fails {
            world.device.faults = Faults { permille: 1000, left: 1, ..Faults::default() };
        }
        [0, 2, 4].into_iter().for_each(|id| world.manager.close(RequestId(id)));
        world.manager.check();
        world.drain();
        // The rest of its blocks would move only after the next step, which this test does not run.
        world.manager.close(RequestId(6));
        assert_eq!(world.manager.figures().kv_counts().used_layer_blocks, 0);
        world.run_idle(2000);
        assert_eq!(world.manager.figures().layout().alpha(), 0);
        assert_eq!(world.device.faults.left, 0);
    }
}
