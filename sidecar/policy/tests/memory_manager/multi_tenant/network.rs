//! Messages in transit: delayed, lost, duplicated and reordered.

use sluice_common::random::Rng;
use sluice_policy::ids::Nanos;
use sluice_policy::loan_negotiator::{PeerCommand, PeerEvent};
use sluice_policy::peers::Peer;
use sluice_policy::peers::loans::Nonce;

use super::super::device::chance;

/// A delivered message.
#[derive(Clone, Debug)]
pub enum Message {
    /// A request of a peer; ignored if its sender has exited.
    Request { from: Peer, event: PeerEvent },
    /// An answer, or an observation of the tenant's own sidecar.
    Event(PeerEvent),
    /// The peers' states are read now.
    Survey,
    /// The ledger is asked to return an earmark.
    TakeBack(Nonce),
}

#[derive(Debug)]
struct Delivery {
    at: Nanos,
    to: Peer,
    message: Message,
}

#[derive(Debug)]
pub struct Network {
    items: Vec<Delivery>,
    rng: Rng,
    pub loss: u32,
    pub duplicates: u32,
}

impl Network {
    pub fn new(seed: u64, loss: u32, duplicates: u32) -> Network {
        Network { items: Vec::new(), rng: Rng::new(seed), loss, duplicates }
    }

    /// Returns the next message that has arrived, and its recipient.
    pub fn next(&mut self, now: Nanos) -> Option<(Peer, Message)> {
        let at = (0..self.items.len())
            .filter(|at| self.items[*at].at <= now)
            .min_by_key(|at| self.items[*at].at)?;
        let item = self.items.remove(at);
        Some((item.to, item.message))
    }

    /// Delivers within a tenant, without loss.
    pub fn inside(&mut self, now: Nanos, to: Peer, message: Message) {
        let at = now.plus(self.delay());
        self.items.push(Delivery { at, to, message });
    }

    fn delay(&mut self) -> u64 {
        let max = if self.rng.chance(100) { 40_000_000 } else { 4_000_000 };
        self.rng.below(max)
    }

    fn outside(&mut self, now: Nanos, to: Peer, message: Message) {
        if chance(&mut self.rng, self.loss) {
            return;
        }
        if chance(&mut self.rng, self.duplicates) {
            self.inside(now, to, message.clone());
        }
        self.inside(now, to, message);
    }

    /// Sends a message of `from`.
    pub fn send(&mut self, now: Nanos, from: Peer, command: PeerCommand) {
        match command {
            PeerCommand::Survey => self.inside(now, from, Message::Survey),
            PeerCommand::TakeBack { nonce, .. } => self.inside(now, from, Message::TakeBack(nonce)),
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
            // The claimant learns from the ledger what was released.
            PeerCommand::Prolong { ttl_ns: 0, .. } | PeerCommand::Owes { .. } => {}
            PeerCommand::Claim { .. } => unreachable!("sent to each peer"),
            PeerCommand::Prolong { peer, nonce, ttl_ns } => {
                self.outside(now, peer, Message::Event(PeerEvent::Renewed { peer: from, nonce, ttl_ns }));
            }
            PeerCommand::Refuse { peer, nonce, why } => {
                self.outside(
                    now,
                    peer,
                    Message::Event(PeerEvent::Refused { peer: from, nonce, why: Some(why) }),
                );
            }
            PeerCommand::Answer { peer, nonce, chunks, ttl_ns } => {
                self.outside(
                    now,
                    peer,
                    Message::Event(PeerEvent::Granted { peer: from, nonce, chunks, ttl_ns }),
                );
            }
            // A loan that the borrower does not know was never accepted.
            PeerCommand::Return { peer, nonce, chunks: 0 } => {
                self.outside(now, peer, Message::TakeBack(nonce))
            }
            PeerCommand::Return { peer, nonce, chunks } => {
                self.outside(now, peer, Message::Event(PeerEvent::Returned { peer: from, nonce, chunks }));
            }
        }
    }

    /// Sends the claim of a new instance that lacks its floor.
    pub fn claim(&mut self, now: Nanos, from: Peer, to: Peer, chunks: u32) {
        self.request(now, from, to, PeerEvent::Claimed { peer: from, nonce: Nonce(from.instance), chunks });
    }

    fn request(&mut self, now: Nanos, from: Peer, to: Peer, event: PeerEvent) {
        self.outside(now, to, Message::Request { from, event });
    }

    /// Sends a request. It may arrive although its sender assumes that it was lost.
    fn ask(&mut self, now: Nanos, from: Peer, to: Peer, event: PeerEvent, nonce: Nonce) {
        self.request(now, from, to, event);
        if chance(&mut self.rng, self.loss) {
            self.inside(now, from, Message::Event(PeerEvent::Refused { peer: to, nonce, why: None }));
            self.request(now, from, to, PeerEvent::Withdrawn { peer: from, nonce });
        }
    }
}
