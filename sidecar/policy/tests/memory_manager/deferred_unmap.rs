//! Tests eLLM's overlap: an inflation also takes memory for the next tokens, and old addresses are unmapped while no
//! step waits.

use sluice_policy::action::{Address, MapOp, Work};
use sluice_policy::geometry::Geometry;
use sluice_policy::memory_manager::SleepState;
use sluice_policy::params::Params;
use sluice_policy::reason::Reason;
use sluice_policy::reclaim::PolicyName;

use super::cases::{CHUNK, guaranteed_chunks, tenant};
use super::device::Faults;
use super::world::World;

/// Returns a tenant with `extra_kv` chunks of KV in addition to the guarantee and the activations.
fn sized(policy: PolicyName, extra_kv: u32) -> (Params, Geometry) {
    let (params, _) = tenant(policy, &[4; 6], 0, 96);
    tenant(policy, &[4; 6], guaranteed_chunks(&params) + extra_kv, 96)
}

fn world(policy: PolicyName, change: impl Fn(&mut Params)) -> World {
    let (mut params, geometry) = sized(policy, 2);
    change(&mut params);
    let mut world = World::new(params, geometry, 11, Faults::default());
    assert!(world.load());
    world
}

/// Submits more requests than fit.
fn submit(world: &mut World) {
    (0..8).for_each(|id| world.submit(id, id, (0..40).collect(), 50));
}

/// Runs until stale addresses exist.
fn inflate(world: &mut World) {
    let inflated = (0..10_000).any(|_| {
        world.tick();
        world.manager.figures().stale_addresses() > 0
    });
    assert!(inflated, "nothing was inflated");
}

/// Runs growing requests to their end, so that the tenant's last change is an inflation.
fn grow(world: &mut World) {
    (0..4).for_each(|id| world.submit(id, id, (0..20).collect(), 70));
    while world.finished.len() < 4 {
        world.tick();
    }
    assert!(world.manager.figures().stale_addresses() > 0, "the last change was an inflation");
}

/// Each audit of the world compares both tables and checks the addresses of every chunk.
#[test]
fn inflation_defers_unmap_until_idle() {
    for policy in [PolicyName::Ellm, PolicyName::Unified] {
        let mut world = world(policy, |_| ());
        world.corrupt_action = Some(|action| {
            if let (Reason::Inflate, Work::Transaction(transaction)) = (action.reason, &action.work) {
                let kv = |op: &MapOp| matches!(op, MapOp::Map(Address::Kv(_), _));
                assert!(transaction.ops.iter().all(kv), "{transaction:?}");
            }
        });
        submit(&mut world);
        inflate(&mut world);
        assert_eq!(world.manager.figures().counted(Reason::UnmapLater), 0, "requests run");
        assert!(!world.manager.is_idle(), "something is left to do");
        world.run();
        world.run_idle(1000);
        assert_eq!(world.manager.figures().stale_addresses(), 0, "{policy:?}");
        let behind = world.device.memory.table.len() as u32;
        assert_eq!(
            behind,
            world.manager.figures().ledger().created()
                - world.manager.figures().ledger().free().count() as u32
        );
    }
}

#[test]
fn deferred_unmap_runs_alone_when_idle() {
    let mut world = world(PolicyName::Ellm, |_| ());
    grow(&mut world);
    world.corrupt_action = Some(|action| {
        if let (Reason::UnmapLater, Work::Transaction(transaction)) = (action.reason, &action.work) {
            let old = |op: &MapOp| matches!(op, MapOp::Unmap(Address::Activation(_), _));
            assert!(transaction.ops.iter().all(old), "{transaction:?}");
            assert!(transaction.handed_over.is_empty(), "no memory changes hands");
        }
    });
    let before = world.manager.figures().counted(Reason::UnmapLater);
    world.run_idle(1000);
    assert_eq!(
        (world.manager.figures().stale_addresses(), world.manager.figures().counted(Reason::UnmapLater)),
        (0, before + 1)
    );
}

#[test]
fn unmap_is_immediate_without_deferral() {
    let mut world = world(PolicyName::Ellm, |params| params.defers_unmap = false);
    submit(&mut world);
    while world.finished.len() < 8 {
        world.tick();
        assert_eq!(world.manager.figures().stale_addresses(), 0);
    }
    assert!(world.manager.figures().counted(Reason::Inflate) > 0);
    world.run_idle(1000);
    assert_eq!(world.manager.figures().counted(Reason::UnmapLater), 0);
}

/// The device refuses to release a chunk that backs any address.
#[test]
fn deferred_unmap_precedes_chunk_release() {
    let mut world = world(PolicyName::Ellm, |_| ());
    submit(&mut world);
    inflate(&mut world);
    world.start_sleep();
    world.run_idle(1000);
    assert_eq!(
        (world.manager.status().sleep_state(), world.device.memory.table.len()),
        (SleepState::Asleep, 0)
    );
    assert_eq!(
        (world.manager.figures().stale_addresses(), world.manager.figures().counted(Reason::UnmapLater)),
        (0, 0)
    );
}

#[test]
fn refused_change_keeps_old_addresses() {
    let mut world = world(PolicyName::Ellm, |_| ());
    grow(&mut world);
    let left = world.manager.figures().stale_addresses();
    world.device.refuse_remaps = true;
    world.run_idle(3);
    assert_eq!(world.manager.figures().stale_addresses(), left);
    assert_eq!(world.manager.figures().counted(Reason::BackendFailed), 1, "it is not tried again at once");
    world.device.refuse_remaps = false;
    world.run_idle(1000);
    assert_eq!(world.manager.figures().stale_addresses(), 0);
}

/// Returns the transactions and preemptions until all requests have ended, and the fewest activation chunks.
fn served(premap_bytes: u64) -> (u64, u32, u32) {
    let mut world = world(PolicyName::Ellm, |params| params.premap_bytes = premap_bytes);
    submit(&mut world);
    let mut least = u32::MAX;
    while world.finished.len() < 8 {
        world.tick();
        least = least.min(world.manager.figures().activation_chunks());
    }
    (world.manager.figures().counted(Reason::Inflate), world.preemptions, least)
}

#[test]
fn next_tokens_are_mapped_with_step() {
    let (without, preempted, _) = served(0);
    let (with, preempted_with, least) = served(50_000_000);
    assert!(with < without, "{with} inflations, not {without}");
    assert!(preempted_with <= preempted, "{preempted_with} preemptions, not {preempted}");
    let (params, geometry) = sized(PolicyName::Ellm, 2);
    let smallest = geometry.chunks_for(geometry.activation.bytes(params.min_step));
    assert!(least >= smallest, "the smallest step keeps its own");
}

#[test]
fn premapped_chunks_stay_below_limit() {
    let (inflations, preemptions, least) = served(0);
    assert_eq!(served(CHUNK), (inflations, preemptions, least), "less than a chunk is none");
    assert_eq!(
        served(CHUNK + 1),
        (inflations, preemptions, least - 1),
        "one chunk, which saves no inflation yet"
    );
}
