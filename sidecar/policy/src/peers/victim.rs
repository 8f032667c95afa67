//! Orders the peers to ask for memory (Oneiros 5.2): inactive before active, then lowest priority, then the directive's
//! rule. The asked peer decides again from its own state, so a stale order is safe.
//!
//! With round-robin slices the most recently used peer is needed last, so most recently used is Belady's choice and
//! least recently used its opposite. With arbitrary arrivals that does not hold; there the next use is predicted
//! ([`super::next_use`]).

use alloc::vec::Vec;
use core::cmp::Reverse;

use super::Peer;
use crate::ids::Nanos;

/// Order among peers of equal activity and priority. Directives have the same rule in the form of the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VictimRule {
    /// Furthest next use first. A peer that does not wait for a slice precedes waiters, and the end of the wait queue
    /// precedes its front. Peers outside the queue are ordered by predicted next use
    /// ([`NextUseEstimate::Arrivals`]). Equal peers are ordered by last use, latest first.
    #[default]
    MostRecentlyUsed,
    /// Least recently used first, regardless of the wait queue: Oneiros' comparison.
    LeastRecentlyUsed,
    /// The directive's list order.
    FixedOrder,
}

/// What predicts the next use of a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NextUseEstimate {
    /// Its last use, as in the paper's rule.
    #[default]
    LastUse,
    /// Its arrivals ([`super::next_use`]).
    Arrivals,
}

/// A peer's state as it reports it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerState {
    /// Whether it holds the time slice (`Temporal`) or has requests (`Spatial`).
    pub active: bool,
    /// End of its last step; without steps, the end of its start.
    pub last_used: Nanos,
    /// Since when its weights are unchanged: it woke, or a layer was restored.
    pub resident_since: Nanos,
    /// Chunks that it could lend now without falling below its floor.
    pub lendable_chunks: u32,
    /// Number of waiters ahead of it for the time slice; `None` if it does not wait.
    pub queue_position: Option<u32>,
    /// Predicted time until its next use, nanoseconds ([`super::next_use`]): 0 while it has requests, `None` without
    /// data.
    pub next_use_ns: Option<u64>,
}

/// A peer as the borrower sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerView {
    /// The peer.
    pub peer: Peer,
    /// Priority from the directive; higher is more important.
    pub priority: i32,
    /// Whether it can be asked at all.
    pub reachable: bool,
    /// Its state; `None` if it could not be read or is stale.
    pub live: Option<PeerState>,
}

/// The borrower and its rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Borrower<'a> {
    /// Its priority. It never asks an active peer of higher priority.
    pub priority: i32,
    /// Chunks needed.
    pub need_chunks: u32,
    /// The directive's rule.
    pub rule: VictimRule,
    /// The directive's list: the order of [`VictimRule::FixedOrder`], and of peers without state.
    pub order: &'a [Peer],
    /// Time after a restore of its weights during which a peer lends nothing, nanoseconds.
    pub min_residence_ns: u64,
    /// What [`VictimRule::MostRecentlyUsed`] predicts by.
    pub next_use: NextUseEstimate,
}

/// A peer to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Victim {
    /// The peer.
    pub peer: Peer,
    /// Chunks to ask for.
    pub chunks: u32,
}

/// Combined supply of the peers that can be asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Supply {
    /// Chunks that the peers with known state could lend.
    pub chunks: u32,
    /// Whether a peer with unknown state can be asked.
    pub more_unknown: bool,
}

/// Returns the supply of all peers that [`order`] would ask for an unlimited need. Checked before the first request, so
/// that no peer vacates layers for a need that all of them together cannot cover.
pub fn supply(peers: &[PeerView], borrower: &Borrower<'_>, now: Nanos) -> Supply {
    let known = feasible(peers, borrower, now).map(|(_, live)| live.lendable_chunks);
    let more_unknown = unknown(peers, borrower.order).next().is_some();
    Supply { chunks: known.fold(0, u32::saturating_add), more_unknown }
}

/// Returns the peers to ask, first victim first, each for what its predecessors leave open, until the need is covered.
/// Peers without state follow in the directive's order. Each of them is asked for the whole open rest, since its supply
/// is unknown, and the caller stops when it has enough. Peers without state that are not on the list are not asked.
pub fn order(peers: &[PeerView], borrower: &Borrower<'_>, now: Nanos) -> Vec<Victim> {
    let mut known: Vec<(PeerView, PeerState)> = feasible(peers, borrower, now).collect();
    let is_predicted = known.iter().any(|(_, live)| live.next_use_ns.is_some_and(|ns| ns > 0));
    let next_use = if is_predicted { borrower.next_use } else { NextUseEstimate::LastUse };
    let borrower = &Borrower { next_use, ..*borrower };
    known.sort_unstable_by_key(|(view, live)| rank(view, live, borrower, now));
    let mut open = borrower.need_chunks;
    let mut victims = Vec::new();
    for (view, live) in known {
        let chunks = live.lendable_chunks.min(open);
        open -= chunks;
        victims.push(Victim { peer: view.peer, chunks });
    }
    victims.extend(unknown(peers, borrower.order).map(|peer| Victim { peer, chunks: open }));
    victims.retain(|victim| victim.chunks > 0);
    victims
}

fn feasible(
    peers: &[PeerView],
    borrower: &Borrower<'_>,
    now: Nanos,
) -> impl Iterator<Item = (PeerView, PeerState)> {
    let known = peers.iter().filter(|view| view.reachable);
    known.filter_map(|view| Some((*view, view.live?))).filter(move |(view, live)| {
        let settled = now.since(live.resident_since) >= borrower.min_residence_ns;
        let spared = live.active && view.priority > borrower.priority;
        live.lendable_chunks > 0 && settled && !spared
    })
}

/// Sort key, lowest first: activity, priority, the rule in up to three parts, record index.
type Rank = (bool, i32, Reverse<[u64; 3]>, Peer);

fn rank(view: &PeerView, live: &PeerState, borrower: &Borrower<'_>, now: Nanos) -> Rank {
    let used = live.last_used.0;
    let furthest = match borrower.rule {
        VictimRule::MostRecentlyUsed => {
            let expected = match borrower.next_use {
                NextUseEstimate::LastUse => 0,
                NextUseEstimate::Arrivals => expected(live, now),
            };
            [live.queue_position.map_or(u64::MAX, u64::from), expected, used]
        }
        VictimRule::LeastRecentlyUsed => [u64::MAX - used, 0, 0],
        VictimRule::FixedOrder => [u64::MAX - listed(borrower.order, view.peer), 0, 0],
    };
    (live.active, view.priority, Reverse(furthest), view.peer)
}

/// Returns the predicted time until the next use, as a power of two: predictions are not more precise, and equal peers
/// are then ordered by last use. Without enough data the prediction is the time since the last use. If no peer has a
/// prediction, the caller does not use it.
fn expected(live: &PeerState, now: Nanos) -> u64 {
    let ns = live.next_use_ns.unwrap_or(now.since(live.last_used));
    ns.checked_ilog2().map_or(0, |log2| 1 + u64::from(log2))
}

/// Returns the position on the list, or the list's length for a peer not on it.
fn listed(order: &[Peer], peer: Peer) -> u64 {
    order.iter().position(|listed| *listed == peer).unwrap_or(order.len()) as u64
}

fn unknown(peers: &[PeerView], order: &[Peer]) -> impl Iterator<Item = Peer> {
    let silent = |peer: &&Peer| peers.iter().any(|n| n.peer == **peer && n.reachable && n.live.is_none());
    order.iter().filter(silent).copied()
}
