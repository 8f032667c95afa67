//! Tests changes of a running tenant's share and remapping cap.

use sluice_policy::config_error::ConfigError;
use sluice_policy::loan_negotiator::{LoanNegotiator, NegotiationPolicy, PeerCommand, PeerEvent};
use sluice_policy::params::Bounds;
use sluice_policy::peers::Peer;
use sluice_policy::peers::loan_denied::LoanDenied;
use sluice_policy::peers::loans::{LoanBook, Nonce};
use sluice_policy::reclaim::PolicyName;

use super::cases::{CHUNK, guaranteed_chunks, tenant};
use super::device::Faults;
use super::world::World;

const MS: u64 = 1_000_000;
const TOKENS: u32 = 48;
const BOUND_NS: u64 = 60 * MS;
const EXTRA_KV: u32 = 24;

/// Returns a tenant of six layers of four chunks on a GPU twice as large as its share.
fn loaded(policy: PolicyName) -> World {
    let (params, _) = tenant(policy, &[4; 6], 0, TOKENS);
    let kv = guaranteed_chunks(&params) + EXTRA_KV;
    let (mut params, mut geometry) = tenant(policy, &[4; 6], kv, TOKENS);
    params.share_chunks = geometry.capacity_chunks;
    geometry.capacity_chunks *= 2;
    let mut world = World::new(params, geometry, 3, Faults::default());
    world.manager.loans_mut().set_can_borrow(true);
    let me = Peer { index: 0, instance: 1 };
    let book = LoanBook::new(me, world.manager.loans().share_chunks(), world.manager.loans().floor_chunks());
    let terms = NegotiationPolicy {
        min_residence_ns: 0,
        revoke_bound_ns: BOUND_NS,
        ttl_ns: 1_000_000 * MS,
        ..NegotiationPolicy::default()
    };
    world.negotiator = Some(LoanNegotiator::new(book, terms));
    assert!(world.load());
    world
}

/// Advances time; peers do not answer.
fn tick(world: &mut World) {
    world.now = world.now.plus(MS);
    world.tick();
}

/// Runs until every request has ended.
fn run(world: &mut World) {
    until(world, |world| !world.busy());
}

fn until(world: &mut World, so: impl Fn(&World) -> bool) {
    for _ in 0..200_000 {
        if so(world) {
            return;
        }
        tick(world);
    }
    panic!("it never comes: {:?}", world.manager.figures().ledger().counts().collect::<Vec<_>>());
}

/// Sets the share; ticks until all excess memory is released.
fn set_share(world: &mut World, share_chunks: u32) -> Result<u32, ConfigError> {
    let bounds = Bounds { share_chunks, ..world.manager.params().bounds() };
    world.manager.set_bounds(bounds)?;
    for ticks in 0..20_000 {
        world.manager.check();
        if world.manager.loans().releasing_chunks() == 0 && !world.manager.status().is_blocked() {
            return Ok(ticks);
        }
        tick(world);
    }
    panic!("it keeps {} chunks too many", world.manager.loans().releasing_chunks());
}

fn created(world: &World) -> u32 {
    world.device.memory.chunks.len() as u32
}

/// Submits more requests than fit into its KV.
fn work(world: &mut World) {
    (0..12).for_each(|id| world.submit(10 + id, id, vec![id as u32; 20], 20));
    world.max_batch = 12;
    until(world, |world| world.steps >= 4);
}

/// Returns the tokens of the load without any change.
fn baseline(policy: PolicyName) -> World {
    let mut world = loaded(policy);
    work(&mut world);
    run(&mut world);
    world
}

#[test]
fn reduced_share_is_released_down_to_floor() {
    let mut world = loaded(PolicyName::Oneiros);
    let (before, floor) = (world.manager.loans().share_chunks(), world.manager.loans().floor_chunks());
    for share in [before - 5, floor + 3, floor] {
        set_share(&mut world, share).expect("it fits");
        assert_eq!(
            (created(&world), world.manager.loans().share_chunks(), world.manager.loans().budget_chunks()),
            (share, share, share)
        );
    }
    let refused = set_share(&mut world, floor - 1).expect_err("below its floor");
    let (floor_bytes, capacity_bytes) = (u64::from(floor) * CHUNK, u64::from(floor - 1) * CHUNK);
    assert_eq!(refused, ConfigError::FloorExceedsCapacity { floor_bytes, capacity_bytes });
    assert_eq!(world.manager.loans().share_chunks(), floor, "nothing has changed");
    work(&mut world);
    run(&mut world);
}

#[test]
fn raised_share_applies_at_once() {
    let mut world = loaded(PolicyName::Oneiros);
    let (before, floor) = (world.manager.loans().share_chunks(), world.manager.loans().floor_chunks());
    set_share(&mut world, floor).expect("it fits");
    world
        .manager
        .set_bounds(Bounds { share_chunks: before + 7, ..world.manager.params().bounds() })
        .expect("it fits");
    assert_eq!(
        (world.manager.loans().share_chunks(), world.manager.loans().budget_chunks()),
        (before + 7, before + 7)
    );
    world.active = false;
    (0..400).for_each(|_| tick(&mut world));
    assert_eq!(created(&world), before + 7);
    assert_eq!(world.manager.figures().layout().alpha(), 0, "its layers are back");
}

#[test]
fn share_loss_under_load_changes_no_token() {
    for policy in PolicyName::ALL {
        let mut world = loaded(policy);
        work(&mut world);
        let floor = world.manager.loans().floor_chunks();
        set_share(&mut world, floor).expect("it fits");
        assert_eq!(created(&world), floor, "{policy:?}");
        run(&mut world);
        assert_eq!(world.finished, baseline(policy).finished, "{policy:?}");
    }
}

#[test]
fn reduced_share_is_restored_when_raised() {
    let mut world = loaded(PolicyName::Unified);
    work(&mut world);
    let (before, floor) = (world.manager.loans().share_chunks(), world.manager.loans().floor_chunks());
    for ticks in 0..40 {
        world
            .manager
            .set_bounds(Bounds { share_chunks: floor, ..world.manager.params().bounds() })
            .expect("it fits");
        (0..ticks).for_each(|_| tick(&mut world));
        world
            .manager
            .set_bounds(Bounds { share_chunks: before, ..world.manager.params().bounds() })
            .expect("it fits");
        assert_eq!(world.manager.loans().share_chunks() + world.manager.loans().releasing_chunks(), before);
    }
    run(&mut world);
    world.active = false;
    (0..4_000).for_each(|_| tick(&mut world));
    assert_eq!(created(&world), before);
    assert_eq!(world.finished, baseline(PolicyName::Unified).finished);
}

/// Returns a tenant of which a peer borrowed all memory above the floor.
fn lender() -> World {
    let mut world = loaded(PolicyName::Oneiros);
    world.active = false;
    (0..50).for_each(|_| tick(&mut world));
    let peer = Peer { index: 3, instance: 1 };
    world.receive(PeerEvent::Asked { peer, nonce: Nonce(1), chunks: u32::MAX, ttl_ns: 1_000_000 * MS });
    until(&mut world, |world| world.manager.loans().lent_chunks() > 0);
    (0..50).for_each(|_| tick(&mut world));
    world.commands.clear();
    world
}

#[test]
fn falling_share_revokes_only_excess_loans() {
    let mut world = lender();
    let (lent, floor) = (world.manager.loans().lent_chunks(), world.manager.loans().floor_chunks());
    assert_eq!(world.manager.loans().share_chunks(), lent + floor);
    world
        .manager
        .set_bounds(Bounds { share_chunks: floor + lent - 5, ..world.manager.params().bounds() })
        .expect("it fits");
    assert_eq!(world.manager.loans().lendable(), Err(LoanDenied::Busy), "nothing more is lent until then");
    (0..50).for_each(|_| tick(&mut world));
    let revoked = world.commands.iter().find_map(|command| match command {
        PeerCommand::Revoke { chunks, .. } => Some(*chunks),
        _ => None,
    });
    assert_eq!(revoked, Some(5));
    assert!(!world.manager.loans().has_debt(), "its steps do not wait for a neighbour");
    let peer = Peer { index: 3, instance: 1 };
    world.receive(PeerEvent::Returned { peer, nonce: Nonce(1), chunks: 5 });
    until(&mut world, |world| world.manager.loans().releasing_chunks() == 0);
    tick(&mut world);
    let book = world.negotiator.as_ref().expect("it trades").book();
    assert_eq!((book.share(), book.lent_out(), book.budget()), (floor + lent - 5, lent - 5, floor));
    assert_eq!(world.manager.loans().lent_chunks(), lent - 5);
}

#[test]
fn borrower_exit_repays_released_share() {
    let mut world = lender();
    let floor = world.manager.loans().floor_chunks();
    world
        .manager
        .set_bounds(Bounds { share_chunks: floor, ..world.manager.params().bounds() })
        .expect("it fits");
    (0..50).for_each(|_| tick(&mut world));
    assert!(world.manager.loans().releasing_chunks() > 0, "a neighbour has it");
    world.receive(PeerEvent::Died(Peer { index: 3, instance: 1 }));
    (0..50).for_each(|_| tick(&mut world));
    assert_eq!(
        (world.manager.loans().share_chunks(), world.manager.loans().budget_chunks(), created(&world)),
        (floor, floor, floor)
    );
}

#[test]
fn sleeping_tenant_releases_share_and_wakes_in_rest() {
    let mut world = loaded(PolicyName::Oneiros);
    world.active = false;
    world.manager.sleep(true);
    (0..400).for_each(|_| tick(&mut world));
    assert_eq!(created(&world), 0);
    let floor = world.manager.loans().floor_chunks();
    assert!(set_share(&mut world, floor).expect("it fits") < 100);
    assert_eq!((world.manager.loans().share_chunks(), created(&world)), (floor, 0));
    world.manager.wake_up();
    world.active = true;
    work(&mut world);
    run(&mut world);
    assert_eq!(created(&world), floor);
    assert_eq!(world.finished, baseline(PolicyName::Oneiros).finished);
}

fn cap(world: &mut World, percent: u32) -> Result<(), ConfigError> {
    let bounds = Bounds { remap_cap_permille: percent * 10, ..world.manager.params().bounds() };
    world.manager.set_bounds(bounds)
}

#[test]
fn lower_cap_restores_layers_and_lends_less() {
    let mut world = loaded(PolicyName::Oneiros);
    work(&mut world);
    until(&mut world, |world| world.manager.figures().layout().moving.len() > 2);
    cap(&mut world, 34).expect("its share has room for all layers");
    run(&mut world);
    (0..400).for_each(|_| tick(&mut world));
    assert!(world.manager.figures().layout().moving.len() <= 2, "two of six layers may move");
    world.active = false;
    (0..400).for_each(|_| tick(&mut world));
    let few = world.manager.loans().lendable_chunks();
    cap(&mut world, 90).expect("it may give more");
    (0..400).for_each(|_| tick(&mut world));
    assert!(world.manager.loans().lendable_chunks() > few, "{few} before");
}

#[test]
fn cap_with_floor_above_share_is_refused() {
    let mut world = loaded(PolicyName::Oneiros);
    let floor = world.manager.loans().floor_chunks();
    set_share(&mut world, floor).expect("it fits");
    assert!(matches!(cap(&mut world, 0), Err(ConfigError::FloorExceedsCapacity { .. })));
    assert_eq!(world.manager.loans().floor_chunks(), floor, "nothing has changed");
}

#[test]
fn failed_release_is_retried() {
    let mut world = loaded(PolicyName::Oneiros);
    world.device.faults = Faults { permille: 400, left: 12, ..Faults::default() };
    let floor = world.manager.loans().floor_chunks();
    set_share(&mut world, floor).expect("it fits");
    assert_eq!(created(&world), floor);
}
