//! Messages in transit between peers: delayed, and lost or duplicated where the faults say so.

use std::collections::BTreeMap;

use sluice_common::random::Rng;
use sluice_policy::ids::Nanos;
use sluice_policy::loan_negotiator::{PeerCommand, PeerEvent};
use sluice_policy::peers::Peer;
use sluice_policy::peers::loans::Nonce;
use sluice_ports::peers::PeerPortEvent;

/// A message in transit.
#[derive(Clone, Debug)]
pub enum PeerMessage {
    /// A request of a peer; delivered only while the sender is live.
    Request {
        /// The sender.
        from: Peer,
        /// The content of the request.
        event: PeerEvent,
    },
    /// A reply, or an observation of the tenant's own sidecar.
    Event(PeerPortEvent),
    /// A survey of the peers, made on arrival.
    Survey,
    /// A request to the ledger to cancel an earmark.
    TakeBack(Nonce),
}

/// Delays and losses of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkDelays {
    /// Shortest delay of a message, nanoseconds.
    pub min_ns: u64,
    /// Largest additional delay, nanoseconds.
    pub spread_ns: u64,
    /// Delay through shared memory (time slices, the ledger), nanoseconds.
    pub shared_memory_ns: u64,
    /// Lost messages, permille.
    pub lost_permille: u64,
    /// Duplicated messages, permille.
    pub duplicate_permille: u64,
}

impl Default for LinkDelays {
    /// 0.5 ms on average over loopback with TLS, 20 us through shared memory; no losses.
    fn default() -> Self {
        LinkDelays {
            min_ns: 300_000,
            spread_ns: 400_000,
            shared_memory_ns: 20_000,
            lost_permille: 0,
            duplicate_permille: 0,
        }
    }
}

/// All messages in transit, by arrival time and sending order.
#[derive(Debug)]
pub struct SimNetwork {
    items: BTreeMap<(Nanos, u64), (Peer, PeerMessage)>,
    sent: u64,
    /// Delays of messages sent from now on.
    pub delays: LinkDelays,
    rng: Rng,
}

impl SimNetwork {
    /// Creates a network without messages.
    pub fn new(roads: LinkDelays, seed: u64) -> SimNetwork {
        SimNetwork { items: BTreeMap::new(), sent: 0, delays: roads, rng: Rng::new(seed) }
    }

    /// Returns the arrival time of the next message.
    pub fn next_due(&self) -> Option<Nanos> {
        self.items.keys().next().map(|(at, _)| *at)
    }

    /// Removes the next message that has arrived, with its recipient.
    pub fn next(&mut self, now: Nanos) -> Option<(Peer, PeerMessage)> {
        let first = self.items.first_entry().filter(|first| first.key().0 <= now)?;
        Some(first.remove())
    }

    /// Sends a message through shared memory or within a tenant: it is never lost.
    pub fn send_local(&mut self, now: Nanos, to: Peer, post: PeerMessage) {
        let at = now.plus(self.delays.shared_memory_ns);
        self.enqueue(at, to, post);
    }

    fn enqueue(&mut self, at: Nanos, to: Peer, post: PeerMessage) {
        self.sent += 1;
        self.items.insert((at, self.sent), (to, post));
    }

    fn send_remote(&mut self, now: Nanos, to: Peer, post: PeerMessage) {
        if self.rng.chance(self.delays.lost_permille) {
            return;
        }
        if self.rng.chance(self.delays.duplicate_permille) {
            let at = now.plus(self.delay_ns());
            self.enqueue(at, to, post.clone());
        }
        let at = now.plus(self.delay_ns());
        self.enqueue(at, to, post);
    }

    fn delay_ns(&mut self) -> u64 {
        self.delays.min_ns + self.rng.below(self.delays.spread_ns + 1)
    }

    /// Sends a message from `from` to a peer, or to its own sidecar.
    pub fn send(&mut self, now: Nanos, from: Peer, message: PeerCommand) {
        match message {
            PeerCommand::Survey => {
                let at = now.plus(self.delay_ns());
                self.enqueue(at, from, PeerMessage::Survey);
            }
            PeerCommand::TakeBack { nonce, .. } => self.send_local(now, from, PeerMessage::TakeBack(nonce)),
            PeerCommand::Ask { peer, nonce, chunks, ttl_ns } => {
                self.send_ask(now, from, peer, PeerEvent::Asked { peer: from, nonce, chunks, ttl_ns }, nonce);
            }
            PeerCommand::Withdraw { peer, nonce } => {
                self.send_request(now, from, peer, PeerEvent::Withdrawn { peer: from, nonce });
            }
            PeerCommand::Revoke { peer, nonce, chunks } => {
                self.send_request(now, from, peer, PeerEvent::Revoked { peer: from, nonce, chunks });
            }
            PeerCommand::Renew { peer, nonce, ttl_ns } => {
                self.send_request(now, from, peer, PeerEvent::Prolonged { peer: from, nonce, ttl_ns });
            }
            message => self.send_reply(now, from, message),
        }
    }

    fn send_reply(&mut self, now: Nanos, from: Peer, message: PeerCommand) {
        let (to, event) = match message {
            PeerCommand::Prolong { peer, nonce, ttl_ns } if ttl_ns > 0 => {
                (peer, PeerEvent::Renewed { peer: from, nonce, ttl_ns })
            }
            PeerCommand::Refuse { peer, nonce, why } => {
                (peer, PeerEvent::Refused { peer: from, nonce, why: Some(why) })
            }
            PeerCommand::Answer { peer, nonce, chunks, ttl_ns } => {
                (peer, PeerEvent::Granted { peer: from, nonce, chunks, ttl_ns })
            }
            // The borrower does not know the loan, so it was never accepted.
            PeerCommand::Return { peer, nonce, chunks: 0 } => {
                return self.send_remote(now, peer, PeerMessage::TakeBack(nonce));
            }
            PeerCommand::Return { peer, nonce, chunks } => {
                (peer, PeerEvent::Returned { peer: from, nonce, chunks })
            }
            // A claimant reads freed chunks from the ledger, and a loan that is not renewed expires.
            _ => return,
        };
        self.send_remote(now, to, PeerMessage::Event(PeerPortEvent::Peer(event)));
    }

    /// Sends a claim of the new instance `from`, which lacks its minimum memory.
    pub fn send_claim(&mut self, now: Nanos, from: Peer, to: Peer, chunks: u32) {
        self.send_request(
            now,
            from,
            to,
            PeerEvent::Claimed { peer: from, nonce: Nonce(from.instance), chunks },
        );
    }

    fn send_request(&mut self, now: Nanos, from: Peer, to: Peer, event: PeerEvent) {
        self.send_remote(now, to, PeerMessage::Request { from, event });
    }

    /// Sends an ask. With a loss, the ask may arrive although its sender assumes a refusal and withdraws it.
    fn send_ask(&mut self, now: Nanos, from: Peer, to: Peer, event: PeerEvent, nonce: Nonce) {
        self.send_request(now, from, to, event);
        if self.rng.chance(self.delays.lost_permille) {
            let refused = PeerPortEvent::Peer(PeerEvent::Refused { peer: to, nonce, why: None });
            self.send_local(now, from, PeerMessage::Event(refused));
            self.send_request(now, from, to, PeerEvent::Withdrawn { peer: from, nonce });
        }
    }
}
