//! Tests the order of victims, and whether the rule is the right one.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use sluice_policy::ids::Nanos;
use sluice_policy::peers::Peer;
use sluice_policy::peers::victim::{
    Borrower, NextUseEstimate, PeerState, PeerView, Supply, Victim, VictimRule, order, supply,
};

use NextUseEstimate::{Arrivals, LastUse};

const NOW: Nanos = Nanos(1_000_000);

fn live(last_used: u64, lendable_chunks: u32) -> PeerState {
    PeerState { last_used: Nanos(last_used), lendable_chunks, ..PeerState::default() }
}

fn tenant(index: u32) -> Peer {
    Peer { index, instance: 1 }
}

fn peer_view(index: u32, priority: i32, live: PeerState) -> PeerView {
    PeerView { peer: tenant(index), priority, reachable: true, live: Some(live) }
}

fn borrower(need_chunks: u32) -> Borrower<'static> {
    Borrower { priority: 100, need_chunks, ..Borrower::default() }
}

fn peers(views: &[PeerView], asker: &Borrower<'_>) -> Vec<u32> {
    order(views, asker, NOW).iter().map(|victim| victim.peer.index).collect()
}

#[test]
fn inactive_then_lowest_priority_then_last_used() {
    let active = PeerState { active: true, ..live(999, 5) };
    let all = [
        peer_view(1, 0, active),
        peer_view(2, 100, live(50, 5)),
        peer_view(3, 50, live(10, 5)),
        peer_view(4, 50, live(20, 5)),
        peer_view(5, 200, live(900, 5)),
    ];
    assert_eq!(peers(&all, &borrower(1000)), [4, 3, 2, 5, 1]);
}

#[test]
fn the_rule_decides_among_equals() {
    let all = [peer_view(1, 0, live(30, 5)), peer_view(2, 0, live(10, 5)), peer_view(3, 0, live(20, 5))];
    let by = |rule| peers(&all, &Borrower { rule, order: &[tenant(3), tenant(1)], ..borrower(1000) });
    assert_eq!(by(VictimRule::MostRecentlyUsed), [1, 3, 2]);
    assert_eq!(by(VictimRule::LeastRecentlyUsed), [2, 3, 1]);
    assert_eq!(by(VictimRule::FixedOrder), [3, 1, 2], "a peer that is not on the list comes last");
}

#[test]
fn not_queued_lend_first_then_queue_tail() {
    let waits = |place| PeerState { queue_position: Some(place), ..live(500, 5) };
    let all = [
        peer_view(1, 0, waits(0)),
        peer_view(2, 0, waits(2)),
        peer_view(3, 0, live(10, 5)),
        peer_view(4, 0, waits(1)),
    ];
    assert_eq!(peers(&all, &borrower(1000)), [3, 2, 4, 1]);
}

#[test]
fn furthest_next_use_lends_first() {
    let expected =
        |last_used, next_use_ns| PeerState { next_use_ns: Some(next_use_ns), ..live(last_used, 5) };
    let all = [
        peer_view(1, 0, expected(10, 9000)),
        peer_view(2, 0, expected(90, 100)),
        peer_view(3, 0, PeerState { queue_position: Some(7), ..live(95, 5) }),
        peer_view(4, 0, live(20, 5)),
        peer_view(5, 0, live(30, 5)),
        peer_view(6, -1, expected(40, 1)),
    ];
    let by = |rule, next_use| peers(&all, &Borrower { rule, next_use, ..borrower(1000) });
    // For a peer without data the predicted next use is as far away as the last use, nearly a million here.
    assert_eq!(by(VictimRule::MostRecentlyUsed, Arrivals), [6, 5, 4, 1, 2, 3]);
    assert_eq!(by(VictimRule::MostRecentlyUsed, LastUse), [6, 2, 5, 4, 1, 3]);
    assert_eq!(by(VictimRule::LeastRecentlyUsed, Arrivals), by(VictimRule::LeastRecentlyUsed, LastUse));
    let alike = [peer_view(1, 0, expected(10, 1023)), peer_view(2, 0, expected(20, 512))];
    let expecting = Borrower { next_use: Arrivals, ..borrower(1000) };
    assert_eq!(peers(&alike, &expecting), [2, 1], "within a power of two");
    let with_now =
        [peer_view(1, 0, expected(10, 0)), peer_view(2, 0, expected(5, 1)), peer_view(3, 0, live(7, 5))];
    assert_eq!(peers(&with_now, &expecting), [3, 2, 1], "who is needed now comes last");
    let no_data =
        [peer_view(1, 0, live(10, 5)), peer_view(2, 0, expected(20, 0)), peer_view(3, 0, live(30, 5))];
    assert_eq!(peers(&no_data, &expecting), [3, 2, 1], "without data by last use");
}

#[test]
fn each_peer_is_asked_for_remainder() {
    let all = [peer_view(1, 0, live(30, 5)), peer_view(2, 0, live(20, 5)), peer_view(3, 0, live(10, 5))];
    let expected = [Victim { peer: tenant(1), chunks: 5 }, Victim { peer: tenant(2), chunks: 2 }];
    assert_eq!(order(&all, &borrower(7), NOW), expected);
    assert_eq!(order(&all, &borrower(0), NOW), []);
}

#[test]
fn unavailable_peers_are_not_asked() {
    let fresh = PeerState { resident_since: Nanos(NOW.0 - 499), ..live(30, 5) };
    let old_enough = PeerState { resident_since: Nanos(NOW.0 - 500), ..live(20, 5) };
    let all = [
        peer_view(1, 0, live(40, 0)),
        peer_view(2, 0, fresh),
        peer_view(3, 0, old_enough),
        PeerView { reachable: false, ..peer_view(4, 0, live(10, 5)) },
    ];
    assert_eq!(peers(&all, &Borrower { min_residence_ns: 500, ..borrower(1000) }), [3]);
}

#[test]
fn higher_priority_is_asked_only_while_inactive() {
    let active = PeerState { active: true, ..live(40, 5) };
    let all = [peer_view(1, 101, active), peer_view(2, 100, active), peer_view(3, 101, live(1, 5))];
    assert_eq!(peers(&all, &borrower(1000)), [3, 2]);
}

#[test]
fn directive_order_replaces_missing_state() {
    let silent = |peer| PeerView { peer: tenant(peer), priority: 0, reachable: true, live: None };
    let all = [
        silent(1),
        silent(2),
        PeerView { reachable: false, ..silent(3) },
        silent(9),
        peer_view(4, 0, live(1, 5)),
    ];
    let asker = Borrower { order: &[tenant(3), tenant(2), tenant(4), tenant(1)], ..borrower(8) };
    let ask = |peer, chunks| Victim { peer: tenant(peer), chunks };
    assert_eq!(order(&all, &asker, NOW), [ask(4, 5), ask(2, 3), ask(1, 3)]);
    assert_eq!(order(&all, &Borrower { need_chunks: 5, ..asker }, NOW), [ask(4, 5)]);
}

/// Round-robin time slices over models of which only some fit: each slice needs its own model and loads it, if
/// necessary, into the memory of the victim that the rule chooses.
struct RoundRobin {
    models: u32,
    fitting: usize,
    slices: u64,
}

impl RoundRobin {
    fn at(&self, slice: u64) -> Peer {
        tenant((slice % u64::from(self.models)) as u32)
    }

    /// Returns the number of slices after `slice` until the peer's next one.
    fn next_use(&self, slice: u64, peer: Peer) -> u64 {
        (slice + 1..).find(|later| self.at(*later) == peer).expect("every model has its turn") - slice
    }

    fn loads(&self, mut victim: impl FnMut(u64, &BTreeMap<Peer, u64>) -> Peer) -> u64 {
        let mut resident: BTreeMap<Peer, u64> = BTreeMap::new();
        let mut loads = 0;
        for slice in 0..self.slices {
            let needed = self.at(slice);
            if !resident.contains_key(&needed) {
                loads += 1;
                if resident.len() == self.fitting {
                    let evicted = victim(slice, &resident);
                    resident.remove(&evicted).expect("the victim is resident");
                }
            }
            resident.insert(needed, slice);
        }
        loads
    }

    /// Returns the loads under the code under test. `queued`: peers report their position in the wait queue.
    fn loads_by(&self, rule: VictimRule, queued: bool) -> u64 {
        self.loads(|slice, resident| {
            let views = |(peer, used): (&Peer, &u64)| {
                let place = queued.then(|| self.next_use(slice, *peer) as u32);
                peer_view(peer.index, 0, PeerState { queue_position: place, ..live(*used, 1) })
            };
            let views: Vec<PeerView> = resident.iter().map(views).collect();
            order(&views, &Borrower { rule, ..borrower(1) }, Nanos(slice))[0].peer
        })
    }

    /// Returns the loads under Belady: the victim has the furthest next use.
    fn loads_by_belady(&self) -> u64 {
        self.loads(|slice, resident| {
            *resident.keys().max_by_key(|peer| self.next_use(slice, **peer)).expect("a tenant is resident")
        })
    }

    /// Returns the fewest loads of any choice of victims, by trying all.
    fn fewest_loads(&self) -> u64 {
        let mut states = BTreeMap::from([(BTreeSet::new(), 0_u64)]);
        for slice in 0..self.slices {
            let mut next: BTreeMap<BTreeSet<Peer>, u64> = BTreeMap::new();
            for (resident, loads) in states {
                for (after, cost) in self.choices(slice, &resident) {
                    let best = next.entry(after).or_insert(u64::MAX);
                    *best = (*best).min(loads + cost);
                }
            }
            states = next;
        }
        states.into_values().min().expect("there is always a choice")
    }

    fn choices(&self, slice: u64, resident: &BTreeSet<Peer>) -> Vec<(BTreeSet<Peer>, u64)> {
        let needed = self.at(slice);
        let mut with = resident.clone();
        if !with.insert(needed) {
            return vec![(with, 0)];
        }
        if with.len() <= self.fitting {
            return vec![(with, 1)];
        }
        let without = |evicted: &Peer| with.iter().filter(|peer| *peer != evicted).copied().collect();
        resident.iter().map(|evicted| (without(evicted), 1)).collect()
    }
}

fn round_robins() -> impl Iterator<Item = RoundRobin> {
    (2..=7).flat_map(|models| {
        (1..models as usize).map(move |fitting| RoundRobin { models, fitting, slices: 60 })
    })
}

#[test]
fn most_recently_used_needs_fewest_loads() {
    for round_robin in round_robins() {
        let fewest = round_robin.fewest_loads();
        let edge = format!("{} models, {} fit", round_robin.models, round_robin.fitting);
        assert_eq!(round_robin.loads_by_belady(), fewest, "{edge}");
        for queued in [false, true] {
            assert_eq!(
                round_robin.loads_by(VictimRule::MostRecentlyUsed, queued),
                fewest,
                "{edge}, line: {queued}"
            );
        }
    }
}

#[test]
fn least_recently_used_loads_every_slice() {
    for round_robin in round_robins() {
        assert_eq!(round_robin.loads_by(VictimRule::LeastRecentlyUsed, true), round_robin.slices);
    }
}

/// With K of N models fitting, a load occurs on (N - K) of N - 1 slices; under least recently used on every slice.
#[test]
fn most_recently_used_loads_one_slice_in_four() {
    let round_robin = RoundRobin { models: 5, fitting: 4, slices: 4 + 400 };
    assert_eq!(round_robin.loads_by(VictimRule::MostRecentlyUsed, false), 4 + 100);
    assert_eq!(round_robin.loads_by(VictimRule::LeastRecentlyUsed, false), 4 + 400);
}

fn any_peer() -> impl Strategy<Value = PeerView> {
    let live = (
        any::<bool>(),
        0_u64..5,
        0_u64..1000,
        0_u32..6,
        proptest::option::of(0_u32..3),
        any::<Option<u64>>(),
    );
    let live =
        live.prop_map(|(active, last_used, since, lendable_chunks, queue_place, next_use_ns)| PeerState {
            active,
            last_used: Nanos(last_used),
            resident_since: Nanos(since),
            lendable_chunks,
            queue_position: queue_place,
            next_use_ns,
        });
    let state = (98_i32..103, any::<bool>(), proptest::option::weighted(0.8, live));
    state.prop_map(|(priority, reachable, live)| PeerView { peer: tenant(0), priority, reachable, live })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn peer_is_asked_once_and_within_its_supply(
        all in proptest::collection::vec(any_peer(), 0..8),
        need in 0_u32..20,
        slice in 0_usize..8,
        arrivals in any::<bool>(),
    ) {
        let number = |(at, one)| PeerView { peer: tenant(at as u32), ..one };
        let all: Vec<PeerView> = all.into_iter().enumerate().map(number).collect();
        let list: Vec<Peer> = (0..4).map(tenant).collect();
        let next_use = if arrivals { Arrivals } else { LastUse };
        let asker = Borrower { order: &list, min_residence_ns: 300, next_use, ..borrower(need) };
        let victims = order(&all, &asker, Nanos(1000));
        let names: BTreeSet<Peer> = victims.iter().map(|victim| victim.peer).collect();
        prop_assert_eq!(names.len(), victims.len());
        let live = |victim: &Victim| all[victim.peer.index as usize].live;
        prop_assert!(victims.iter().all(|v| live(v).is_none_or(|live| v.chunks <= live.lendable_chunks)));
        prop_assert!(victims.iter().all(|v| v.chunks > 0 && all[v.peer.index as usize].reachable));
        let covered: u32 = victims.iter().filter(|v| live(v).is_some()).map(|v| v.chunks).sum();
        prop_assert!(covered <= need);
        let whole = order(&all, &Borrower { need_chunks: u32::MAX, ..asker }, Nanos(1000));
        let can: u32 = whole.iter().filter(|v| live(v).is_some()).map(|v| v.chunks).sum();
        let more_unknown = whole.iter().any(|v| live(v).is_none());
        prop_assert_eq!(supply(&all, &asker, Nanos(1000)), Supply { chunks: can, more_unknown });
        let mut turned = all.clone();
        turned.rotate_left(if all.is_empty() { 0 } else { slice % all.len() });
        prop_assert_eq!(order(&turned, &asker, Nanos(1000)), victims);
    }
}
