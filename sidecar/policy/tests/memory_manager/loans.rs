//! Tests two tenants that lend each other memory and alternate time slices: no token changes, and no byte is earmarked
//! twice.

mod pair;

use proptest::prelude::*;
use sluice_common::random::Rng;
use sluice_policy::action::Earmark;
use sluice_policy::geometry::Geometry;
use sluice_policy::loan_negotiator::LoanControl;
use sluice_policy::memory_manager::{Demand, MemoryManager, TransferKind};
use sluice_policy::params::{Bounds, Params};
use sluice_policy::peers::loans::Nonce;
use sluice_policy::reason::Reason;
use sluice_policy::reclaim::PolicyName;

use super::cases::{CHUNK, guaranteed_chunks, tenant};
use super::device::Faults;
use super::random::{MODEL_TOKENS, load};
use super::world::World;
use pair::{Pair, peer};

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn loans_return_and_tokens_do_not_change(
        slabs in prop_oneof![(3usize..8).prop_map(|n| vec![4; n]), proptest::collection::vec(1u64..6, 4..8)],
        extra_kv in 0u32..20,
        seed in any::<u64>(),
        kills in 0u32..10,
        faults in 0u32..40,
    ) {
        let mut pair = Pair::new(&slabs, extra_kv, seed, faults);
        let mut rng = Rng::new(seed);
        let mut expected = Vec::new();
        for world in &mut pair.worlds {
            prop_assume!(world.load());
            world.kill_permille = kills;
            expected.push(load(world, &mut rng, 14));
        }
        pair.grant_slice(0);
        pair.run();
        pair.settle();
        for (world, expected) in pair.worlds.iter().zip(expected) {
            prop_assert_eq!(&world.finished, &expected, "the tokens of the tenant alone");
        }
        prop_assert!(pair.loans.is_empty() && pair.earmarks.is_empty(), "every loan is back");
        for (world, share) in pair.worlds.iter().zip(pair.shares) {
            prop_assert_eq!(world.manager.loans().budget_chunks(), share, "each tenant has its share");
        }
    }
}

#[test]
fn an_idle_tenant_lends_its_last_layers_and_wakes_with_all_of_them() {
    let mut pair = Pair::new(&[4; 8], 4, 7, 0);
    let mut rng = Rng::new(7);
    pair.worlds.iter_mut().for_each(|world| assert!(world.load()));
    pair.grant_slice(0);
    load(&mut pair.worlds[0], &mut rng, 10);
    let max = pair.worlds[1].manager.loans().lendable_chunks();
    let floor = pair.worlds[1].manager.loans().floor_chunks();
    assert!(max > 8, "weights of an idle tenant can be lent");
    let earmark = pair.earmark(0);
    pair.worlds[1].manager.loans_mut().queue_transfer(earmark, max, TransferKind::Lend);
    (0..2_000).for_each(|_| pair.tick());
    assert!(pair.worlds[1].manager.status().lacks_weights(), "layers are away");
    let absent = pair.worlds[1].manager.status().absent_layers();
    let residency = pair.worlds[1].manager.figures().residency();
    let away = residency.iter().rev().take(usize::from(absent)).all(|layer| !layer.present);
    assert!(away && residency[..8 - usize::from(absent)].iter().all(|layer| layer.present), "the last ones");
    assert!(pair.worlds[1].manager.loans().budget_chunks() >= floor, "never below the floor");
    assert_eq!(
        pair.worlds[0].manager.loans().budget_chunks(),
        pair.shares[0] + max,
        "the borrower has it all"
    );
    pair.grant_slice(1);
    (0..5_000).for_each(|_| pair.tick());
    assert_eq!(pair.worlds[1].manager.status().absent_layers(), 0);
    assert!(pair.worlds[1].manager.figures().layout().moving.is_empty(), "all layers resident again");
    let [borrower, lender] = [&pair.worlds[0].manager, &pair.worlds[1].manager];
    assert!(lender.figures().counted(Reason::Wake) > 0 && borrower.figures().counted(Reason::Repay) > 0);
    let passed = u64::from(max) * CHUNK;
    assert_eq!(
        lender.figures().moved_bytes(Reason::Lend),
        passed,
        "what made room for it is not counted twice"
    );
    assert_eq!(
        [Reason::Borrow, Reason::Repay].map(|reason| borrower.figures().moved_bytes(reason)),
        [passed; 2]
    );
    assert_eq!(
        lender.figures().moved_bytes(Reason::Wake),
        u64::from(absent) * 4 * CHUNK,
        "the layers that came back"
    );
}

#[test]
fn full_ledger_refuses_loan_and_delays_debt() {
    let mut pair = Pair::new(&[4; 8], 4, 7, 0);
    pair.worlds.iter_mut().for_each(|world| assert!(world.load()));
    pair.grant_slice(0);
    let lend = |pair: &mut Pair| {
        let earmark = pair.earmark(0);
        pair.worlds[1].manager.loans_mut().queue_transfer(earmark, 1, TransferKind::Lend);
        (0..2_000).for_each(|_| pair.tick());
    };
    pair.worlds[1].device.faults.busy = 1;
    lend(&mut pair);
    assert_eq!((pair.worlds[1].device.faults.busy, pair.lent), (0, 0), "the loan is refused");
    assert_eq!(pair.worlds[1].manager.loans().budget_chunks(), pair.shares[1], "and its chunk stays");
    lend(&mut pair);
    assert_eq!(pair.lent, 1, "the next loan is made");
    pair.worlds[0].device.faults.busy = 3;
    pair.settle();
    assert_eq!(pair.worlds[0].device.faults.busy, 0, "the debt was tried until the ledger had room");
    assert!(pair.loans.is_empty() && pair.earmarks.is_empty(), "the loan is back");
    for world in &pair.worlds {
        assert_eq!(world.manager.figures().counted(Reason::BackendFailed), 0);
    }
}

/// Runs a tenant that has lent all that it can, without repayment: after a change it has work, and serves it.
fn served_without(
    slabs: &[u64],
    before: impl Fn(&mut MemoryManager),
    after: impl Fn(&mut MemoryManager),
) -> MemoryManager {
    let mut pair = Pair::new(slabs, 4, 9, 0);
    let mut rng = Rng::new(9);
    before(&mut pair.worlds[1].manager);
    pair.worlds.iter_mut().for_each(|world| assert!(world.load()));
    pair.grant_slice(0);
    let max = pair.worlds[1].manager.loans().lendable_chunks();
    let earmark = pair.earmark(0);
    pair.worlds[1].manager.loans_mut().queue_transfer(earmark, max, TransferKind::Lend);
    (0..2_000).for_each(|_| pair.tick());
    let expected = load(&mut pair.worlds[1], &mut rng, 6);
    // The borrower does not answer: the time slice is granted, nothing is repaid, and the wait for loans ends.
    let lender = &mut pair.worlds[1];
    after(&mut lender.manager);
    lender.active = true;
    lender.manager.set_demand(Demand { has_requests: false, is_active: true });
    assert!(lender.manager.loans().awaits_loans(), "its loans are waited for at first");
    lender.manager.loans_mut().set_awaits_loans(false);
    lender.run();
    assert_eq!(lender.finished, expected);
    assert!(lender.manager.figures().layout().alpha() > 0, "it serves in what its floor leaves");
    assert_eq!(
        lender.manager.loans().budget_chunks(),
        pair.shares[1] - max,
        "and takes nothing that is not its own"
    );
    let [_, lender] = pair.worlds;
    lender.manager
}

fn with_policy(policy: PolicyName) -> impl Fn(&mut MemoryManager) {
    move |manager| manager.set_policy(policy).expect("it fits under either")
}

fn with_remap_cap(remap_cap_permille: u32) -> impl Fn(&mut MemoryManager) {
    move |manager| {
        let bounds = Bounds { remap_cap_permille, ..manager.params().bounds() };
        manager.set_bounds(bounds).expect("it fits with either");
    }
}

fn unchanged(_: &mut MemoryManager) {}

#[test]
fn lender_without_repayment_serves_with_moving_layers() {
    served_without(&[4; 8], unchanged, unchanged);
}

/// Its floor assumes the smallest activation space: the excess is used for layers.
#[test]
fn lender_restores_layers_into_idle_activations() {
    let manager = served_without(&[4; 8], with_policy(PolicyName::Unified), unchanged);
    assert!(
        manager.loans().budget_chunks() < manager.loans().floor_chunks() + 4,
        "less than a layer above its floor is left"
    );
}

/// The loan was made under another floor than the one in force at the restore.
#[test]
fn lender_restores_without_loans_after_policy_change() {
    for policy in [PolicyName::Oneiros, PolicyName::Recompute, PolicyName::Ellm, PolicyName::Pie] {
        served_without(&[4; 8], with_policy(PolicyName::Unified), with_policy(policy));
    }
    for permille in [0, 300] {
        served_without(&[4; 8], unchanged, with_remap_cap(permille));
        served_without(&[4; 8], with_policy(PolicyName::Unified), with_remap_cap(permille));
    }
}

/// The layouts whose copies hide best are not the smallest.
#[test]
fn lender_with_unequal_layers_restores_floor_layout() {
    served_without(&[4, 1, 4, 1, 4, 1, 4, 4], with_remap_cap(500), unchanged);
}

/// Returns how many layers a tenant frees, and how many requests lose their KV, when it lends all that it can while
/// requests hold all KV, and is restored without the loans.
fn restored_without_loans(policy: PolicyName, slab_ns: u64) -> (u16, u32) {
    restored_without_loans_under(policy, slab_ns, |_| {})
}

fn restored_without_loans_under(
    policy: PolicyName,
    slab_ns: u64,
    change: impl Fn(&mut Params),
) -> (u16, u32) {
    let mut pair = Pair::with(&[4; 8], 12, 9, 0, change);
    let world = &mut pair.worlds[1];
    world.manager.set_policy(policy).expect("it fits under either");
    world.device.fill_ns_per_byte = slab_ns / 253;
    assert!(world.load());
    world.active = true;
    (0..4).for_each(|id| world.submit(id, id, vec![id as u32; 30], 30));
    while world.running.len() < 4 || world.steps < 4 || world.in_step() {
        world.tick();
    }
    pair.grant_slice(0);
    // It could lend seven layers of four chunks, and idle KV.
    let two_layers = pair.worlds[1].manager.loans().lendable_chunks() - 20;
    let earmark = pair.earmark(0);
    let world = &mut pair.worlds[1];
    world.manager.loans_mut().queue_transfer(earmark, two_layers, TransferKind::Lend);
    (0..2_000).for_each(|_| world.tick());
    assert_eq!(world.manager.status().absent_layers(), 2);
    let before = world.preemptions + world.pauses;
    world.active = true;
    world.manager.set_demand(Demand { has_requests: false, is_active: true });
    world.manager.loans_mut().set_awaits_loans(false);
    while !world.manager.status().is_whole() {
        world.tick();
    }
    let found = (world.manager.figures().layout().alpha(), world.preemptions + world.pauses - before);
    world.run();
    assert_eq!(world.finished.len(), 4);
    found
}

#[test]
fn hidden_layers_move_before_requests_lose_memory() {
    let (moved, lost) = restored_without_loans(PolicyName::Oneiros, 253);
    assert!(moved > 0 && lost == 0, "copies that hide: {moved} layers, {lost} requests");
    let (moved, lost) = restored_without_loans(PolicyName::Oneiros, 40_000_000);
    assert!(lost > 0, "copies of five steps: {moved} layers, {lost} requests");
}

/// Copies of two and a half layers' compute stall four of eight layers by a fifth, and a request is a quarter of the
/// batch.
#[test]
fn unified_stalls_if_requests_would_lose_more() {
    let moved = |policy| restored_without_loans(policy, 2_500_000).0;
    let (strict, weighed) = (moved(PolicyName::Oneiros), moved(PolicyName::Unified));
    assert!(weighed > strict, "{weighed} layers against {strict}");
}

/// A client that reads a token in twenty-five steps misses three in the window of 64, which is less than a fifth of
/// what four requests generate in it.
#[test]
fn waiting_request_loses_tokens_its_client_reads() {
    let moved = |policy, by_loss| {
        let change = |params: &mut Params| {
            (params.slo.tbt_ns, params.ablations.reclaim_by_cost) = (200_000_000, by_loss);
        };
        restored_without_loans_under(policy, 2_500_000, change).0
    };
    let strict = moved(PolicyName::Oneiros, true);
    assert_eq!(moved(PolicyName::Unified, true), strict);
    assert!(moved(PolicyName::Unified, false) > strict, "it would lose all that it would have made");
}

/// Returns a loaded tenant with two borrowed chunks, whose KV is never calm for long enough to return any.
fn borrower() -> World {
    let (params, _) = tenant(PolicyName::Oneiros, &[4; 8], 0, MODEL_TOKENS);
    let (_, geometry) = tenant(PolicyName::Oneiros, &[4; 8], guaranteed_chunks(&params), MODEL_TOKENS);
    let share_chunks = geometry.capacity_chunks;
    let params = Params { share_chunks, revert_patience_steps: u32::MAX, ..params };
    let geometry = Geometry { capacity_chunks: 2 * share_chunks, ..geometry };
    let mut world = World::new(params, geometry, 5, Faults::default());
    assert!(world.load());
    let earmark = Earmark { peer: peer(1), nonce: Nonce(1) };
    world.send_event(|manager, out| manager.loans_mut().accept(earmark, 2, TransferKind::Lend, out));
    world.drain();
    assert_eq!(world.manager.loans().borrowed_chunks(), 2);
    world
}

/// Regression: a tenant without an engine returned its loan at once and borrowed it again, repeatedly.
#[test]
fn loan_is_spare_after_steps_without_waiters() {
    let mut manager = borrower().manager;
    let mut spare = |busy| {
        manager.set_demand(Demand { has_requests: busy, is_active: true });
        manager.loans_mut().unused_loan()
    };
    let idle: Vec<_> = (0..8).map(|_| spare(false)).collect();
    assert_eq!(idle, [0, 0, 0, 0, 0, 0, 0, 2], "no request has used it for a while");
    assert!((0..100).all(|_| spare(true) == 0), "what waits holds no KV yet, and will");
    let idle: Vec<_> = (0..8).map(|_| spare(false)).collect();
    assert_eq!(idle, [0, 0, 0, 0, 0, 0, 0, 2], "the while begins anew");
}
