//! Letters on their way between neighbours: late, and lost or told twice where the faults say so.

use std::collections::BTreeMap;

use sluice_policy::ids::Nanos;
use sluice_policy::loan_negotiator::{PeerCommand, PeerEvent};
use sluice_policy::peers::Peer;
use sluice_policy::peers::loans::Nonce;
use sluice_ports::neighbourhood::NeighbourEvent;

use crate::rng::Rng;

/// What arrives.
#[derive(Clone, Debug)]
pub enum Post {
    /// A request of a neighbour: heard only while its sender lives.
    Request {
        /// The sender.
        from: Peer,
        /// What it says.
        news: PeerEvent,
    },
    /// An answer, or what the tenant's own sidecar has seen.
    Event(NeighbourEvent),
    /// The neighbours are read now.
    Survey,
    /// The ledger is asked to give an earmark back.
    TakeBack(Nonce),
}

/// How letters travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Roads {
    /// A letter takes at least so long, nanoseconds.
    pub least_ns: u64,
    /// And up to so much longer, nanoseconds.
    pub spread_ns: u64,
    /// Within a machine's shared memory, nanoseconds: turns, the ledger.
    pub near_ns: u64,
    /// Letters that are lost, permille.
    pub lost_permille: u64,
    /// Letters that arrive twice, permille.
    pub twice_permille: u64,
}

impl Default for Roads {
    /// Half a millisecond over loopback with TLS, 20 us through shared memory; nothing is lost.
    fn default() -> Self {
        Roads { least_ns: 300_000, spread_ns: 400_000, near_ns: 20_000, lost_permille: 0, twice_permille: 0 }
    }
}

/// Everything that is on its way, by time and order of sending.
#[derive(Debug)]
pub struct Mail {
    items: BTreeMap<(Nanos, u64), (Peer, Post)>,
    sent: u64,
    /// How letters travel from now on.
    pub roads: Roads,
    rng: Rng,
}

impl Mail {
    /// Nothing is on its way.
    pub fn new(roads: Roads, seed: u64) -> Mail {
        Mail { items: BTreeMap::new(), sent: 0, roads, rng: Rng::new(seed) }
    }

    /// When the next thing arrives.
    pub fn next_due(&self) -> Option<Nanos> {
        self.items.keys().next().map(|(at, _)| *at)
    }

    /// The next thing that has arrived, and for whom.
    pub fn next(&mut self, now: Nanos) -> Option<(Peer, Post)> {
        let first = self.items.first_entry().filter(|first| first.key().0 <= now)?;
        Some(first.remove())
    }

    /// Through shared memory, or within a tenant: nothing is lost.
    pub fn near(&mut self, now: Nanos, to: Peer, post: Post) {
        let at = now.plus(self.roads.near_ns);
        self.put(at, to, post);
    }

    fn put(&mut self, at: Nanos, to: Peer, post: Post) {
        self.sent += 1;
        self.items.insert((at, self.sent), (to, post));
    }

    fn far(&mut self, now: Nanos, to: Peer, post: Post) {
        if self.rng.chance(self.roads.lost_permille) {
            return;
        }
        if self.rng.chance(self.roads.twice_permille) {
            let at = now.plus(self.delay_ns());
            self.put(at, to, post.clone());
        }
        let at = now.plus(self.delay_ns());
        self.put(at, to, post);
    }

    fn delay_ns(&mut self) -> u64 {
        self.roads.least_ns + self.rng.below(self.roads.spread_ns + 1)
    }

    /// `from` has written to a neighbour, or to its own sidecar.
    pub fn send(&mut self, now: Nanos, from: Peer, letter: PeerCommand) {
        match letter {
            PeerCommand::Survey => {
                let at = now.plus(self.delay_ns());
                self.put(at, from, Post::Survey);
            }
            PeerCommand::TakeBack { nonce, .. } => self.near(now, from, Post::TakeBack(nonce)),
            PeerCommand::Ask { peer, nonce, chunks, ttl_ns } => {
                self.ask(now, from, peer, PeerEvent::Asked { peer: from, nonce, chunks, ttl_ns }, nonce);
            }
            PeerCommand::Withdraw { peer, nonce } => {
                self.request(now, from, peer, PeerEvent::Withdrawn { peer: from, nonce });
            }
            PeerCommand::Revoke { peer, nonce, chunks } => {
                self.request(now, from, peer, PeerEvent::Revoked { peer: from, nonce, chunks });
            }
            PeerCommand::Renew { peer, nonce, ttl_ns } => {
                self.request(now, from, peer, PeerEvent::Prolonged { peer: from, nonce, ttl_ns });
            }
            letter => self.answer(now, from, letter),
        }
    }

    fn answer(&mut self, now: Nanos, from: Peer, letter: PeerCommand) {
        let (to, news) = match letter {
            PeerCommand::Prolong { peer, nonce, ttl_ns } if ttl_ns > 0 => {
                (peer, PeerEvent::Renewed { peer: from, nonce, ttl_ns })
            }
            PeerCommand::Refuse { peer, nonce, why } => {
                (peer, PeerEvent::Refused { peer: from, nonce, why: Some(why) })
            }
            PeerCommand::Answer { peer, nonce, chunks, ttl_ns } => {
                (peer, PeerEvent::Granted { peer: from, nonce, chunks, ttl_ns })
            }
            // A loan that the borrower does not know was never accepted.
            PeerCommand::Return { peer, nonce, chunks: 0 } => {
                return self.far(now, peer, Post::TakeBack(nonce));
            }
            PeerCommand::Return { peer, nonce, chunks } => {
                (peer, PeerEvent::Returned { peer: from, nonce, chunks })
            }
            // Its claimant hears from the ledger what has come free; a loan that is not prolonged ends by itself.
            _ => return,
        };
        self.far(now, to, Post::Event(NeighbourEvent::News(news)));
    }

    /// `from` has begun a new life and lacks its floor.
    pub fn claim(&mut self, now: Nanos, from: Peer, to: Peer, chunks: u32) {
        self.request(now, from, to, PeerEvent::Claimed { peer: from, nonce: Nonce(from.instance), chunks });
    }

    fn request(&mut self, now: Nanos, from: Peer, to: Peer, news: PeerEvent) {
        self.far(now, to, Post::Request { from, news });
    }

    /// An ask may arrive although its sender believes that it did not.
    fn ask(&mut self, now: Nanos, from: Peer, to: Peer, news: PeerEvent, nonce: Nonce) {
        self.request(now, from, to, news);
        if self.rng.chance(self.roads.lost_permille) {
            let refused = NeighbourEvent::News(PeerEvent::Refused { peer: to, nonce, why: None });
            self.near(now, from, Post::Event(refused));
            self.request(now, from, to, PeerEvent::Withdrawn { peer: from, nonce });
        }
    }
}
