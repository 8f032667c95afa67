//! Whom to ask for memory (Oneiros 5.2): inactive before active, lowest priority, then the directive's rule. The asked one
//! decides again from its own state, so this order may be stale and never wrong.
//!
//! Under turns in a circle the one used last is the one needed last, so most recently used is Belady's choice and least
//! recently used its opposite. Where requests come as they like it is not: there the next use is estimated
//! ([`super::next_use`]).

use alloc::vec::Vec;
use core::cmp::Reverse;

use super::Peer;
use crate::ids::Nanos;

/// Order among neighbours of the same activity and priority.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VictimRule {
    /// Whose next use is furthest away. Who waits for no turn is before who waits, who waits at the end of the line before
    /// who waits in front, since whoever comes next goes to the end; without a line by what its arrivals let expect, where
    /// that is looked at ([`Borrower::expects`]); among equals, who was used last.
    #[default]
    MostRecentlyUsed,
    /// Who was used longest ago, whatever the line says: Oneiros' comparison.
    LeastRecentlyUsed,
    /// As the directive lists them.
    FixedOrder,
}

/// What a neighbour says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerState {
    /// Holds the turn (`Temporal`) or has requests (`Spatial`).
    pub active: bool,
    /// End of its last step; of its start, where it ran none.
    pub last_used: Nanos,
    /// Since when its weights are as they are: it woke, or a layer came back.
    pub resident_since: Nanos,
    /// What it could give now without going below its floor.
    pub lendable_chunks: u32,
    /// How many get the turn before it does; none where it does not wait for one.
    pub queue_position: Option<u32>,
    /// In how long it is needed, nanoseconds ([`super::next_use`]): 0 while it has requests; none without data.
    pub next_use_ns: Option<u64>,
}

/// A neighbour as the asker sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerView {
    /// Who.
    pub peer: Peer,
    /// From the directive, higher is more important.
    pub priority: i32,
    /// Whether it can be asked at all.
    pub reachable: bool,
    /// None where its state could not be read, or is too old to be believed.
    pub live: Option<PeerState>,
}

/// Who asks, and by which rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Borrower<'a> {
    /// Its priority. An active neighbour above it is never asked.
    pub priority: i32,
    /// What it needs.
    pub need_chunks: u32,
    /// The directive's rule.
    pub rule: VictimRule,
    /// The directive's list: the order of [`VictimRule::FixedOrder`], and of neighbours without live state.
    pub order: &'a [Peer],
    /// A neighbour gives nothing sooner after its weights came back, nanoseconds.
    pub min_residence_ns: u64,
    /// [`VictimRule::MostRecentlyUsed`] looks at what arrivals let expect. The paper's does not.
    pub expects: bool,
}

/// One neighbour to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Victim {
    /// Who.
    pub peer: Peer,
    /// For how much.
    pub chunks: u32,
}

/// What those who can be asked have together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Supply {
    /// Chunks that the known ones could give.
    pub chunks: u32,
    /// Somebody can be asked who has not told what it could give.
    pub more_unknown: bool,
}

/// What could be had of all whom [`order`] would ask for `need_chunks` without end. Asked before anybody is, so that nobody
/// vacates layers for a need that all of them together do not cover.
pub fn supply(neighbours: &[PeerView], asker: &Borrower<'_>, now: Nanos) -> Supply {
    let known = feasible(neighbours, asker, now).map(|(_, live)| live.lendable_chunks);
    let more_unknown = unknown(neighbours, asker.order).next().is_some();
    Supply { chunks: known.fold(0, u32::saturating_add), more_unknown }
}

/// Whom to ask, first victim first, each for what those before it leave open, until the need is covered or nobody is left.
/// Neighbours without live state come last, in the directive's order, and each of them is asked for all that the others
/// leave open, since what it could give is unknown: the caller stops when it has enough. Those not on the list are not asked.
pub fn order(neighbours: &[PeerView], asker: &Borrower<'_>, now: Nanos) -> Vec<Victim> {
    let mut known: Vec<(PeerView, PeerState)> = feasible(neighbours, asker, now).collect();
    let expects = asker.expects && known.iter().any(|(_, live)| live.next_use_ns.is_some_and(|ns| ns > 0));
    let asker = &Borrower { expects, ..*asker };
    known.sort_unstable_by_key(|(neighbour, live)| rank(neighbour, live, asker, now));
    let mut open = asker.need_chunks;
    let mut victims = Vec::new();
    for (neighbour, live) in known {
        let chunks = live.lendable_chunks.min(open);
        open -= chunks;
        victims.push(Victim { peer: neighbour.peer, chunks });
    }
    victims.extend(unknown(neighbours, asker.order).map(|peer| Victim { peer, chunks: open }));
    victims.retain(|victim| victim.chunks > 0);
    victims
}

fn feasible(
    neighbours: &[PeerView],
    asker: &Borrower<'_>,
    now: Nanos,
) -> impl Iterator<Item = (PeerView, PeerState)> {
    let known = neighbours.iter().filter(|neighbour| neighbour.reachable);
    known.filter_map(|neighbour| Some((*neighbour, neighbour.live?))).filter(move |(neighbour, live)| {
        let settled = now.since(live.resident_since) >= asker.min_residence_ns;
        let spared = live.active && neighbour.priority > asker.priority;
        live.lendable_chunks > 0 && settled && !spared
    })
}

/// Lowest first: activity, priority, the rule in up to three parts, the number of the record.
type Rank = (bool, i32, Reverse<[u64; 3]>, Peer);

fn rank(neighbour: &PeerView, live: &PeerState, asker: &Borrower<'_>, now: Nanos) -> Rank {
    let used = live.last_used.0;
    let furthest = match asker.rule {
        VictimRule::MostRecentlyUsed => {
            let expected = if asker.expects { expected(live, now) } else { 0 };
            [live.queue_position.map_or(u64::MAX, u64::from), expected, used]
        }
        VictimRule::LeastRecentlyUsed => [u64::MAX - used, 0, 0],
        VictimRule::FixedOrder => [u64::MAX - listed(asker.order, neighbour.peer), 0, 0],
    };
    (live.active, neighbour.priority, Reverse(furthest), neighbour.peer)
}

/// How far away the next use is, by powers of two: estimates are not that good, and among those that are alike who was used last
/// is needed last. Of whom too few requests came to tell, as long again as it has been idle. Nobody is told apart by this where
/// there are no data at all: last use is.
fn expected(live: &PeerState, now: Nanos) -> u64 {
    let ns = live.next_use_ns.unwrap_or(now.since(live.last_used));
    ns.checked_ilog2().map_or(0, |log2| 1 + u64::from(log2))
}

/// Place on the list; behind all others for who is not on it.
fn listed(order: &[Peer], peer: Peer) -> u64 {
    order.iter().position(|listed| *listed == peer).unwrap_or(order.len()) as u64
}

fn unknown(neighbours: &[PeerView], order: &[Peer]) -> impl Iterator<Item = Peer> {
    let silent =
        |peer: &&Peer| neighbours.iter().any(|n| n.peer == **peer && n.reachable && n.live.is_none());
    order.iter().filter(silent).copied()
}
