//! Tests a tenant that releases all its memory and restores it with its KV.

use std::panic::{AssertUnwindSafe, catch_unwind};

use proptest::prelude::*;
use sluice_common::random::Rng;
use sluice_policy::chunk_table::Owner;
use sluice_policy::ids::RequestId;
use sluice_policy::memory_manager::SleepState;
use sluice_policy::reason::Reason;
use sluice_policy::reclaim::PolicyName;

use super::cases::{BLOCK, CHUNK, guaranteed_chunks, tenant};
use super::device::Faults;
use super::random::{MODEL_TOKENS, load};
use super::world::World;

const LAYERS: usize = 6;

/// Returns a tenant whose host tier has capacity for `host_kv_blocks` KV blocks.
fn world(policy: PolicyName, host_kv_blocks: u64, seed: u64) -> World {
    let (params, _) = tenant(policy, &[4; LAYERS], 0, MODEL_TOKENS);
    let (mut params, geometry) = tenant(policy, &[4; LAYERS], 4 * guaranteed_chunks(&params), MODEL_TOKENS);
    params.host_kv_bytes = host_kv_blocks * LAYERS as u64 * BLOCK;
    let mut world = World::new(params, geometry, seed, Faults::default());
    assert!(world.load());
    world
}

/// Sleeps until the tenant holds no memory.
fn sleep(world: &mut World) {
    world.start_sleep();
    world.run_idle(1000);
    assert_eq!(world.manager.status().sleep_state(), SleepState::Asleep);
    assert_eq!(
        (world.manager.figures().ledger().created(), world.device.memory.chunks.len()),
        (0, 0),
        "it holds nothing"
    );
    assert!(world.device.memory.table.is_empty(), "and nothing is mapped");
}

fn wake(world: &mut World) {
    world.manager.wake_up();
    world.run_idle(1000);
    assert_eq!(world.manager.status().sleep_state(), SleepState::Awake);
}

#[test]
fn load_sleep_and_wake_count_moved_memory() {
    let mut world = world(PolicyName::Recompute, 64, 1);
    let held_bytes = |world: &World| {
        let ledger = world.manager.figures().ledger();
        u64::from(ledger.created() - ledger.count(Owner::Free)) * CHUNK
    };
    let held = held_bytes(&world);
    let weights = (LAYERS as u64 * 4 + 2) * CHUNK;
    assert!(held > weights, "it holds weights and more");
    assert_eq!(world.manager.figures().moved_bytes(Reason::Load), held);
    sleep(&mut world);
    assert_eq!(world.manager.figures().moved_bytes(Reason::Hibernate), held);
    wake(&mut world);
    let woken = held_bytes(&world);
    assert!(woken > weights, "it has its weights again");
    assert_eq!(world.manager.figures().moved_bytes(Reason::Wake), woken);
    assert_eq!(world.manager.figures().moved_bytes(Reason::Hibernate), held, "once");
}

#[test]
fn conversation_continues_after_sleep_without_recompute() {
    let mut world = world(PolicyName::Oneiros, 64, 1);
    world.submit(1, 7, (0..40).collect(), 20);
    world.run();
    let said = world.finished[&RequestId(1)].clone();
    sleep(&mut world);
    assert_eq!(world.manager.figures().kv_counts().host_kv_blocks, 3, "full KV blocks of what was said");
    wake(&mut world);
    assert_eq!(world.manager.figures().counted(Reason::SwapIn), 0, "KV that no request needs stays there");
    let mut question = said;
    question.push(3);
    assert_eq!(world.manager.cached_prefix(7, &question).tokens(), 48);
    world.submit(3, 7, question.clone(), 5);
    world.run();
    assert_eq!(world.manager.figures().counted(Reason::SwapIn), 1);
    assert_eq!(world.finished[&RequestId(3)].len(), question.len() + 5);
    assert_eq!(world.manager.figures().kv_counts().host_kv_blocks, 0);
}

#[test]
fn running_requests_resume_at_position() {
    let mut world = world(PolicyName::Recompute, 64, 2);
    (0..3).for_each(|id| world.submit(id, id, (0..30).collect(), 40));
    while world.steps < 12 || world.in_step() {
        world.tick();
    }
    let before: Vec<_> = world.running.iter().map(|r| (r.id, r.computed)).collect();
    assert_eq!(before.len(), 3);
    sleep(&mut world);
    let kept: Vec<_> = world.waiting.iter().map(|r| (r.id, r.computed, r.kept)).collect();
    assert_eq!(kept, before.iter().map(|(id, computed)| (*id, *computed, true)).collect::<Vec<_>>());
    wake(&mut world);
    world.run();
    assert_eq!((world.finished.len(), world.dropped, world.preemptions), (3, 0, 0));
}

#[test]
fn kv_without_host_space_is_recomputed() {
    for host_kv_blocks in [0, 5] {
        let mut world = world(PolicyName::Oneiros, host_kv_blocks, 3);
        (0..3).for_each(|id| world.submit(id, id, (0..30).collect(), 40));
        while world.steps < 12 || world.in_step() {
            world.tick();
        }
        sleep(&mut world);
        assert!(
            world.dropped > 0
                && u64::from(world.manager.figures().kv_counts().host_kv_blocks) <= host_kv_blocks
        );
        assert_eq!(world.waiting.iter().any(|r| r.kept), host_kv_blocks > 0, "as much as there is room for");
        wake(&mut world);
        world.run();
        assert_eq!(world.finished.len(), 3);
    }
}

#[test]
fn wake_during_suspend_cancels_sleep() {
    for boundaries in 0..12 {
        let mut world = world(PolicyName::Oneiros, 64, 4);
        world.submit(1, 1, (0..40).collect(), 30);
        while world.steps < 12 || world.in_step() {
            world.tick();
        }
        world.start_sleep();
        world.run_idle(boundaries);
        wake(&mut world);
        world.run();
        assert_eq!((world.finished.len(), world.dropped), (1, 0), "after {boundaries} boundaries");
    }
}

#[test]
fn waking_tenant_maps_initial_chunks_and_creates_rest_later() {
    let (params, _) = tenant(PolicyName::Recompute, &[4; LAYERS], 0, MODEL_TOKENS);
    let kv = 8 * guaranteed_chunks(&params);
    let (params, geometry) = tenant(PolicyName::Recompute, &[4; LAYERS], kv, MODEL_TOKENS);
    let mut world = World::new(params, geometry, 6, Faults::default());
    assert!(world.load());
    let whole = world.manager.figures().ledger().created();
    sleep(&mut world);
    (0..6).for_each(|id| world.submit(id, id, (0..40).collect(), 30));
    world.manager.wake_up();
    while !world.in_step() {
        world.tick();
    }
    let first = world.manager.figures().ledger().created();
    assert!(first < whole, "the first step waits for {first} of {whole} chunks");
    world.run();
    assert_eq!(world.finished.len(), 6);
    assert_eq!(world.dropped, 0, "chunks that can be made come before requests are sent back");
    world.active = false;
    world.set_demand();
    world.run_idle(1000);
    assert_eq!(world.manager.figures().ledger().created(), whole, "no request waits now");
}

#[test]
fn kv_lost_in_swap_in_is_recomputed() {
    let mut world = world(PolicyName::Oneiros, 64, 5);
    (0..2).for_each(|id| world.submit(id, id, (0..40).collect(), 30));
    while world.steps < 12 || world.in_step() {
        world.tick();
    }
    sleep(&mut world);
    wake(&mut world);
    world.device.faults = Faults { lost_swaps: 1, ..Faults::default() };
    world.run();
    assert!(world.dropped > 0 && world.manager.figures().counted(Reason::SwapLost) > 0);
    assert_eq!(world.finished.len(), 2);
    assert_eq!(world.manager.figures().kv_counts().host_kv_blocks, 0, "nothing of it is kept");
}

#[test]
fn failing_host_pool_does_not_prevent_sleep() {
    let mut world = world(PolicyName::Oneiros, 64, 6);
    world.submit(1, 1, (0..40).collect(), 30);
    while world.steps < 12 || world.in_step() {
        world.tick();
    }
    world.device.faults = Faults { permille: 1000, left: 3, ..Faults::default() };
    sleep(&mut world);
    assert_eq!((world.dropped, world.manager.figures().kv_counts().host_kv_blocks), (1, 0));
    wake(&mut world);
    world.run();
    assert_eq!(world.finished.len(), 1);
}

#[test]
fn misplaced_restored_layer_blocks_are_detected() {
    let serve = |mix_up| {
        let mut world = world(PolicyName::Oneiros, 64, 7);
        world.device.mix_up_swaps = mix_up;
        world.submit(1, 1, (0..40).collect(), 30);
        while world.steps < 12 || world.in_step() {
            world.tick();
        }
        sleep(&mut world);
        wake(&mut world);
        world.run();
    };
    serve(false);
    assert!(catch_unwind(AssertUnwindSafe(|| serve(true))).is_err());
}

fn policies() -> impl Strategy<Value = PolicyName> {
    prop_oneof![Just(PolicyName::Recompute), Just(PolicyName::Oneiros), Just(PolicyName::Ellm)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn sleep_at_any_moment_changes_no_token(
        (policy, seed, host, naps, kills, faults) in
            (policies(), any::<u64>(), 0u64..40, 20u32..200, 0u32..20, 0u32..60)
    ) {
        let mut world = world(policy, host, seed);
        (world.sleep_permille, world.kill_permille) = (naps, kills);
        world.device.faults = Faults { permille: faults, left: 6, ..Faults::default() };
        let expected = load(&mut world, &mut Rng::new(seed ^ 1), 8);
        world.run();
        prop_assert_eq!(&world.finished, &expected);
        world.sleep_permille = 0;
        wake(&mut world);
        prop_assert_eq!(world.manager.figures().kv_counts().used_kv_blocks, 0);
        sleep(&mut world);
    }
}
