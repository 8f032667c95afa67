//! Tests which peers a tenant asks for memory, and for how much: no peer vacates layers for a need that cannot be met.

use sluice_policy::ids::Nanos;
use sluice_policy::loan_negotiator::{LoanNegotiator, NegotiationPolicy, PeerCommand, PeerEvent};
use sluice_policy::memory_manager::MemoryManager;
use sluice_policy::params::Params;
use sluice_policy::peers::Peer;
use sluice_policy::peers::loan_denied::LoanDenied;
use sluice_policy::peers::loans::{LoanBook, Nonce};
use sluice_policy::peers::victim::{PeerState, PeerView};
use sluice_policy::reason::Reason;
use sluice_policy::reclaim::PolicyName;

use super::cases::{guaranteed_chunks, tenant};
use super::device::Faults;
use super::world::World;

const LAYERS: usize = 6;
const SLAB_CHUNKS: u64 = 4;
/// Longest context of the tenant: two KV blocks, the capacity of its KV.
const TOKENS: u32 = 32;

fn peer(index: u32) -> Peer {
    Peer { index, instance: 1 }
}

/// Returns a loaded tenant with capacity for two KV blocks of KV in its share of a GPU of twice that size. It can remap
/// `cap_permille` of its own layers.
fn asker(cap_permille: u32) -> World {
    let slabs = [SLAB_CHUNKS; LAYERS];
    let (mut params, _) = tenant(PolicyName::Oneiros, &slabs, 0, TOKENS);
    params.remap_cap_permille = cap_permille;
    let (_, mut geometry) = tenant(PolicyName::Oneiros, &slabs, guaranteed_chunks(&params), TOKENS);
    let share = geometry.capacity_chunks;
    geometry.capacity_chunks = 2 * share;
    let mut world = World::new(Params { share_chunks: share, ..params }, geometry, 3, Faults::default());
    world.manager.loans_mut().set_can_borrow(true);
    let book = LoanBook::new(peer(0), share, world.manager.loans().floor_chunks());
    world.negotiator = Some(LoanNegotiator::new(book, negotiation_policy()));
    assert!(world.load());
    world.now = Nanos(1_000_000_000);
    world
}

fn inactive(index: u32, lendable_chunks: u32) -> PeerView {
    let live = PeerState { lendable_chunks, ..PeerState::default() };
    PeerView { peer: peer(index), priority: 0, reachable: true, live: Some(live) }
}

/// Submits requests of one KV block each, which all begin with the same step.
fn submit(world: &mut World, requests: u64) {
    (0..requests).for_each(|id| world.submit(10 + id, id, vec![id as u32; 16], 8));
}

/// Runs until it surveys its peers.
fn run_until_survey(world: &mut World) {
    for _ in 0..10_000 {
        world.tick();
        if std::mem::take(&mut world.commands).contains(&PeerCommand::Survey) {
            return;
        }
    }
    panic!("it lacks nothing");
}

/// Returns whom it asks, and for how much, given these peers.
fn asks(world: &mut World, peers: Vec<PeerView>) -> Option<(u32, u32)> {
    world.receive(PeerEvent::Survey(peers));
    asked(world).map(|(peer, chunks, _)| (peer, chunks))
}

fn asked(world: &mut World) -> Option<(u32, u32, Nonce)> {
    std::mem::take(&mut world.commands).into_iter().find_map(|command| match command {
        PeerCommand::Ask { peer, chunks, nonce, .. } => Some((peer.index, chunks, nonce)),
        _ => None,
    })
}

fn negotiation_policy() -> NegotiationPolicy {
    NegotiationPolicy { order: vec![peer(3)], ..NegotiationPolicy::default() }
}

/// Returns a tenant with four new requests of six blocks each, in chunks of four, while twelve blocks fit: the third
/// lacks two chunks, the third and fourth together three. Its own layers free nothing.
fn short_of_memory() -> World {
    let mut world = asker(0);
    submit(&mut world, 4);
    run_until_survey(&mut world);
    assert_eq!(world.manager.loans().borrow_request(), Some(3));
    world
}

fn shortfalls(manager: &MemoryManager) -> u64 {
    manager.figures().counted(Reason::PeersShort)
}

#[test]
fn infeasible_demand_asks_no_peer() {
    let mut world = short_of_memory();
    assert_eq!(asks(&mut world, vec![inactive(1, 1)]), None);
    assert_eq!(shortfalls(&world.manager), 1, "it says why");
    assert_eq!(world.manager.loans().borrow_request(), None, "the next remedy is taken");
    world.run();
}

#[test]
fn loan_size_covers_one_more_request() {
    assert_eq!(asks(&mut short_of_memory(), vec![inactive(1, 2)]), Some((1, 2)));
    assert_eq!(asks(&mut short_of_memory(), vec![inactive(1, 1), inactive(2, 1)]), Some((1, 1)));
    assert_eq!(asks(&mut short_of_memory(), vec![inactive(1, 9)]), Some((1, 3)));
}

#[test]
fn search_continues_with_unknown_peer_state() {
    let silent = PeerView { live: None, ..inactive(3, 0) };
    assert_eq!(asks(&mut short_of_memory(), vec![inactive(1, 1), silent]), Some((1, 1)));
    let unlisted = PeerView { live: None, ..inactive(4, 0) };
    assert_eq!(
        asks(&mut short_of_memory(), vec![inactive(1, 1), unlisted]),
        None,
        "a peer that is never asked has nothing"
    );
}

/// One of its own layers covers the whole need, so a smaller loan would save none.
#[test]
fn own_whole_layers_reduce_request() {
    let mut world = asker(900);
    submit(&mut world, 4);
    run_until_survey(&mut world);
    let useful = |most| world.manager.loans().useful_loan_size(most);
    assert_eq!([0, 1, 2, 3, 4].map(useful), [0, 0, 0, 3, 3]);
    world.receive(PeerEvent::Survey(vec![inactive(1, 2)]));
    assert_eq!(asked(&mut world), None);
    assert_eq!(shortfalls(&world.manager), 1);
}

/// The asked peer denies.
fn refuses(
    world: &mut World,
    index: u32,
    nonce: Nonce,
    why: Option<LoanDenied>,
) -> Option<(u32, u32, Nonce)> {
    world.receive(PeerEvent::Refused { peer: peer(index), nonce, why });
    asked(world)
}

#[test]
fn refusing_peer_is_skipped_and_next_is_asked() {
    let mut world = short_of_memory();
    world.receive(PeerEvent::Survey(vec![inactive(1, 2), inactive(2, 3), inactive(3, 1)]));
    let (first, chunks, nonce) = asked(&mut world).expect("a peer is asked");
    assert_eq!((first, chunks), (1, 2));
    let (second, chunks, nonce) =
        refuses(&mut world, 1, nonce, Some(LoanDenied::Active)).expect("another is");
    assert_eq!((second, chunks), (2, 3));
    // The last peer alone has too little.
    assert_eq!(refuses(&mut world, 2, nonce, Some(LoanDenied::AtFloor)), None);
    assert_eq!((shortfalls(&world.manager), world.manager.figures().counted(Reason::AskRefused)), (1, 2));
}

/// Returns whether it asks its only peer again in a search that begins `after_ms` after a denial.
fn asks_again(why: Option<LoanDenied>, after_ms: u64) -> bool {
    let mut world = short_of_memory();
    world.receive(PeerEvent::Survey(vec![inactive(1, 3)]));
    let (_, _, nonce) = asked(&mut world).expect("it is asked");
    assert_eq!(refuses(&mut world, 1, nonce, why), None);
    world.run();
    world.now = world.now.plus(after_ms * 1_000_000);
    submit(&mut world, 4);
    run_until_survey(&mut world);
    asks(&mut world, vec![inactive(1, 3)]).is_some()
}

#[test]
fn peer_is_not_asked_again_within_backoff() {
    let retry_ms = NegotiationPolicy::default().retry_ns / 1_000_000;
    let pauses = |why, pause_ms| !asks_again(why, pause_ms - 1) && asks_again(why, pause_ms);
    let residence = |left_ms| Some(LoanDenied::MinResidence { left_ns: left_ms * 1_000_000 });
    assert!(pauses(residence(350), 350));
    assert!(pauses(residence(u64::MAX / 1_000_000), 500), "no longer than the directive's time");
    assert!(pauses(None, 2 * retry_ms), "as if it were silent");
    assert!(pauses(Some(LoanDenied::NotTraded), 5_000));
    // No peer is asked earlier, for any reason of the denial.
    for why in
        [LoanDenied::Active, LoanDenied::AtCap, LoanDenied::AtFloor, LoanDenied::Nothing, LoanDenied::Busy]
    {
        assert!(asks_again(Some(why), retry_ms), "{why:?}");
    }
}
