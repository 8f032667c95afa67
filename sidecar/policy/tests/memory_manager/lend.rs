//! Tests a tenant's answers to loan requests, which depend only on its own current state.

use sluice_policy::ids::Nanos;
use sluice_policy::loan_negotiator::{
    LoanControl, LoanNegotiator, NegotiationPolicy, PeerCommand, PeerEvent,
};
use sluice_policy::memory_manager::Demand;
use sluice_policy::params::Params;
use sluice_policy::peers::Peer;
use sluice_policy::peers::loan_denied::LoanDenied;
use sluice_policy::peers::loans::{LoanBook, Nonce};
use sluice_policy::reclaim::PolicyName;

use super::cases::{guaranteed_chunks, tenant};
use super::device::Faults;
use super::world::World;

const MS: u64 = 1_000_000;
const TOKENS: u32 = 32;
const TTL_NS: u64 = 1_000 * MS;
/// Chunks above the guaranteed KV, all of which can be lent while no request needs them.
const EXTRA_KV: u32 = 8;

fn peer(index: u32) -> Peer {
    Peer { index, instance: 1 }
}

/// Peer 1 has a lower priority than the tenant, peer 2 has not, and other peers are unknown.
fn negotiation_policy() -> NegotiationPolicy {
    let priorities = vec![(peer(1), 3), (peer(2), 5)];
    NegotiationPolicy { priority: 5, priorities, min_residence_ns: 0, ..NegotiationPolicy::default() }
}

/// Returns a tenant of six layers of four chunks that has not loaded.
fn fresh(change: impl FnOnce(&mut Params), negotiation_policy: NegotiationPolicy) -> World {
    let slabs = [4; 6];
    let (params, _) = tenant(PolicyName::Oneiros, &slabs, 0, TOKENS);
    let (mut params, mut geometry) =
        tenant(PolicyName::Oneiros, &slabs, guaranteed_chunks(&params) + EXTRA_KV, TOKENS);
    let share = geometry.capacity_chunks;
    geometry.capacity_chunks = 2 * share;
    params.share_chunks = share;
    change(&mut params);
    let mut world = World::new(params, geometry, 3, Faults::default());
    world.manager.loans_mut().set_can_borrow(true);
    let book = LoanBook::new(peer(0), share, world.manager.loans().floor_chunks());
    world.negotiator = Some(LoanNegotiator::new(book, negotiation_policy));
    world
}

fn loaded(change: impl FnOnce(&mut Params), negotiation_policy: NegotiationPolicy) -> World {
    let mut world = fresh(change, negotiation_policy);
    assert!(world.load());
    set_active(&mut world, false);
    world
}

/// Grants or takes the time slice.
fn set_active(world: &mut World, active: bool) {
    world.active = active;
    while world.manager.loans().active() != active {
        world.tick();
    }
}

fn lender() -> World {
    loaded(|_| (), negotiation_policy())
}

/// Returns its immediate answer to this peer: chunks that it will lend are in its book.
fn ask_of(world: &mut World, from: u32, nonce: u64, chunks: u32) -> Result<u32, LoanDenied> {
    let before = lent(world);
    world.receive(PeerEvent::Asked { peer: peer(from), nonce: Nonce(nonce), chunks, ttl_ns: TTL_NS });
    let late = world.negotiator.as_mut().map(LoanNegotiator::take_commands).into_iter().flatten();
    let refused = world.commands.drain(..).chain(late).find_map(|command| match command {
        PeerCommand::Refuse { peer: to, nonce: of, why } => {
            assert_eq!((to, of), (peer(from), Nonce(nonce)), "the asker gets the answer");
            Some(why)
        }
        _ => None,
    });
    match refused {
        Some(why) => {
            assert_eq!(lent(world), before, "nothing has changed");
            assert!(world.manager.figures().counted(why.reason()) > 0, "it counts");
            Err(why)
        }
        None => Ok(lent(world) - before),
    }
}

fn ask(world: &mut World, nonce: u64, chunks: u32) -> Result<u32, LoanDenied> {
    ask_of(world, 3, nonce, chunks)
}

fn lent(world: &World) -> u32 {
    world.negotiator.as_ref().map_or(0, |negotiator| negotiator.book().lent_out())
}

/// Transfers the lent chunks.
fn vacate(world: &mut World) {
    (0..2_000).for_each(|_| world.tick());
    assert_eq!(world.manager.loans().lent_chunks(), lent(world));
}

/// Starts requests that take all of its KV, before it loses its time slice.
fn fill_kv(world: &mut World) {
    world.active = true;
    (0..4).for_each(|id| world.submit(10 + id, id, vec![id as u32; 20], 12));
    while world.running.len() < 3 || world.in_step() {
        world.tick();
    }
    set_active(world, false);
}

#[test]
fn loading_tenant_is_busy() {
    let mut world = fresh(|_| (), negotiation_policy());
    world.begin();
    assert_eq!(ask(&mut world, 1, 1), Err(LoanDenied::Busy));
}

#[test]
fn inactive_tenant_lends_at_most_request() {
    assert_eq!(ask(&mut lender(), 1, 2), Ok(2));
}

#[test]
fn recently_restored_layers_are_denied_with_remaining_time() {
    let mut world = loaded(|_| (), NegotiationPolicy { min_residence_ns: 5 * MS, ..negotiation_policy() });
    world.now = Nanos(2 * MS);
    assert_eq!(ask(&mut world, 1, 1), Err(LoanDenied::MinResidence { left_ns: 3 * MS }));
    world.now = Nanos(5 * MS);
    assert_eq!(ask(&mut world, 2, 1), Ok(1));
}

#[test]
fn active_tenant_lends_nothing_to_lower_priority() {
    let mut world = lender();
    for (active, from, lends) in [(true, 1, false), (true, 2, true), (true, 3, true), (false, 1, true)] {
        set_active(&mut world, active);
        let nonce = 10 * u64::from(from) + u64::from(!active);
        let expected = if lends { Ok(1) } else { Err(LoanDenied::Active) };
        assert_eq!(ask_of(&mut world, from, nonce, 1), expected, "active {active}, {from}");
        world.receive(PeerEvent::Withdrawn { peer: peer(from), nonce: Nonce(nonce) });
    }
}

#[test]
fn active_tenant_with_shortage_lends_nothing() {
    let mut world = lender();
    world.active = true;
    (0..40).for_each(|id| world.submit(10 + id, id, vec![id as u32; 20], 12));
    world.max_batch = 40;
    while world.manager.loans().borrow_request().is_none() {
        world.tick();
    }
    assert_eq!(ask(&mut world, 1, 1), Err(LoanDenied::Active));
    set_active(&mut world, false);
    assert_eq!(
        ask(&mut world, 2, 1),
        Ok(1),
        "a tenant that waits for its time slice lends what it does not use"
    );
}

#[test]
fn fixed_partition_does_not_trade() {
    let mut world = loaded(|params| params.policy = PolicyName::Recompute, negotiation_policy());
    assert_eq!(ask(&mut world, 1, 1), Err(LoanDenied::NotTraded));
}

#[test]
fn tenant_at_floor_refuses_loan() {
    let mut world = lender();
    let above = world.manager.loans().share_chunks() - world.manager.loans().floor_chunks();
    assert_eq!(ask(&mut world, 1, u32::MAX), Ok(above));
    assert_eq!(ask(&mut world, 2, 1), Err(LoanDenied::AtFloor), "it is promised already");
    vacate(&mut world);
    assert_eq!(ask(&mut world, 3, 1), Err(LoanDenied::AtFloor));
}

#[test]
fn tenant_without_lendable_layers_is_at_cap() {
    let mut world = lender();
    fill_kv(&mut world);
    let layers = world.manager.loans().lendable_chunks();
    assert_eq!(ask(&mut world, 1, u32::MAX), Ok(layers));
    assert_eq!(ask(&mut world, 2, 1), Err(LoanDenied::Nothing), "all that could go is promised");
    vacate(&mut world);
    let (held, floor) = (world.manager.loans().budget_chunks(), world.manager.loans().floor_chunks());
    assert!(held > floor, "its requests keep their KV");
    assert_eq!(ask(&mut world, 3, 1), Err(LoanDenied::AtCap));
}

/// Slabs of 253 bytes take 2.5 steps of six milliseconds: lending them for one time slice costs the next slice one
/// more.
#[test]
fn queued_tenant_lends_only_quickly_restored_layers() {
    for (slab_ns, hidden) in [(15 * MS, false), (MS, true)] {
        let mut world = fresh(|_| (), negotiation_policy());
        world.device.fill_ns_per_byte = slab_ns / 253;
        assert!(world.load());
        fill_kv(&mut world);
        let waits = world.manager.loans().lendable_chunks();
        world.manager.set_demand(Demand { has_requests: false, is_active: world.manager.loans().active() });
        let layers = |chunks: u32| chunks >= 4;
        assert_eq!(layers(waits), hidden, "a slab takes {slab_ns} ns");
        assert!(layers(world.manager.loans().lendable_chunks()), "without work no request waits for them");
    }
}

#[test]
fn waking_tenant_is_busy_until_layers_are_resident() {
    let mut world = lender();
    assert_eq!(ask(&mut world, 1, 10), Ok(10));
    vacate(&mut world);
    assert_eq!(world.manager.status().absent_layers(), 1);
    world.submit(10, 0, vec![1; 20], 4);
    set_active(&mut world, true);
    assert_eq!(ask(&mut world, 2, 1), Err(LoanDenied::Busy));
}

#[test]
fn answered_nonce_is_refused() {
    let mut world = lender();
    assert_eq!(ask(&mut world, 2, 1), Ok(1));
    assert_eq!(ask(&mut world, 1, 1), Err(LoanDenied::Busy));
}

/// The ledger has taken one loan back while its transfer is under way, and the borrower exits with another one.
#[test]
fn share_is_whole_after_an_exit_during_a_transfer_that_was_taken_back() {
    let mut world = lender();
    let share = world.manager.loans().budget_chunks();
    assert_eq!(ask(&mut world, 1, 5), Ok(5));
    vacate(&mut world);
    assert_eq!(ask(&mut world, 2, 3), Ok(3));
    while !world.manager.loans_mut().is_lending(Nonce(2)) {
        world.tick();
    }
    world.receive(PeerEvent::TookBack { nonce: Nonce(2) });
    world.receive(PeerEvent::Died(peer(3)));
    vacate(&mut world);
    assert_eq!((lent(&world), world.manager.loans().budget_chunks()), (0, share));
}
