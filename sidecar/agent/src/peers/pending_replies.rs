//! Requests of peers that wait for the scheduler's answer.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sluice_memory::gpu_ledger::ParticipantHandle;
use sluice_policy::loan_negotiator::PeerEvent;
use sluice_policy::peers::Peer;
use sluice_policy::peers::loan_denied::LoanDenied;
use sluice_policy::peers::loans::Nonce;
use sluice_wire::grants::{GrantAnswer, GrantRequest, Participant, RefusalReason, RevokeReason};
use tokio::sync::oneshot;

use super::full_name::full_name;
use super::{loan_denied, ms, ns};

type PendingMap = BTreeMap<(Peer, Nonce), oneshot::Sender<GrantAnswer>>;

/// Converts requests to events, and the scheduler's commands to answers.
#[derive(Debug)]
pub struct PendingReplies {
    ledger: Arc<ParticipantHandle>,
    namespace: String,
    name: String,
    chunk_bytes: u64,
    asks: Mutex<PendingMap>,
    revocations: Mutex<PendingMap>,
    renewals: Mutex<Vec<PendingRenewal>>,
    tracked: Mutex<BTreeSet<Peer>>,
}

/// A `Renew` request for which the scheduler has not answered all grants yet.
#[derive(Debug)]
struct PendingRenewal {
    borrower: Peer,
    pending: BTreeSet<Nonce>,
    renewed: Vec<u64>,
    ttl_ns: u64,
    answer: oneshot::Sender<GrantAnswer>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Stores a request until it is answered. Removes requests whose caller no longer waits.
fn insert_pending(questions: &Mutex<PendingMap>, name: (Peer, Nonce), answer: oneshot::Sender<GrantAnswer>) {
    let mut questions = lock(questions);
    questions.retain(|_, answer| !answer.is_closed());
    questions.insert(name, answer);
}

/// Returns the ledger identity of a participant in a message.
pub fn peer_of(participant: &Participant) -> Peer {
    Peer { index: participant.index, instance: participant.instance }
}

impl PendingReplies {
    /// Creates the store of the tenant `namespace/name`.
    pub fn new(
        ledger: Arc<ParticipantHandle>,
        namespace: &str,
        name: &str,
        chunk_bytes: u64,
    ) -> PendingReplies {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        PendingReplies {
            ledger,
            namespace,
            name,
            chunk_bytes,
            asks: Mutex::default(),
            revocations: Mutex::default(),
            renewals: Mutex::default(),
            tracked: Mutex::default(),
        }
    }

    /// Returns this tenant's identity for messages.
    pub fn own_participant(&self) -> Participant {
        Participant {
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            index: self.ledger.index(),
            instance: self.ledger.instance(),
        }
    }

    /// Converts bytes to chunks.
    pub fn chunks(&self, bytes: u64) -> u32 {
        u32::try_from(bytes / self.chunk_bytes).unwrap_or(u32::MAX)
    }

    /// Converts chunks to bytes.
    pub fn bytes(&self, chunks: u32) -> u64 {
        u64::from(chunks) * self.chunk_bytes
    }

    /// Returns the events of a request for the scheduler. Empty if the request is already answered.
    pub fn on_request(&self, request: GrantRequest, answer: oneshot::Sender<GrantAnswer>) -> Vec<PeerEvent> {
        let from = request.sender();
        if !self.is_live_peer(from) {
            let _ = answer.send(GrantAnswer::refused(RefusalReason::UnknownPeer));
            return Vec::new();
        }
        let peer = peer_of(from);
        self.track(peer);
        match request {
            GrantRequest::Ask { nonce, bytes, ttl_ms, .. } => {
                let (nonce, chunks) = (Nonce(nonce), self.chunks(bytes));
                insert_pending(&self.asks, (peer, nonce), answer);
                vec![PeerEvent::Asked { peer, nonce, chunks, ttl_ns: ns(ttl_ms) }]
            }
            GrantRequest::Renew { nonces, ttl_ms, .. } => self.on_renew(peer, nonces, ns(ttl_ms), answer),
            GrantRequest::Revoke { nonce, bytes, why, .. } => {
                let (nonce, chunks) = (Nonce(nonce), self.chunks(bytes));
                insert_pending(&self.revocations, (peer, nonce), answer);
                // A restarted tenant names its instance, because it does not know the loans of its earlier instances.
                let claims = why == RevokeReason::FloorNeeded && nonce.0 == peer.instance;
                let revoked = PeerEvent::Revoked { peer, nonce, chunks };
                vec![if claims { PeerEvent::Claimed { peer, nonce, chunks } } else { revoked }]
            }
            GrantRequest::Cancel { nonce, .. } => {
                // The caller no longer waits for an answer to the ask, whatever the answer is.
                lock(&self.asks).remove(&(peer, Nonce(nonce)));
                let _ = answer.send(GrantAnswer::Cancelled { nonce });
                vec![PeerEvent::Withdrawn { peer, nonce: Nonce(nonce) }]
            }
        }
    }

    fn on_renew(
        &self,
        peer: Peer,
        nonces: Vec<u64>,
        ttl_ns: u64,
        answer: oneshot::Sender<GrantAnswer>,
    ) -> Vec<PeerEvent> {
        let open: BTreeSet<_> = nonces.into_iter().map(Nonce).collect();
        let news = open.iter().map(|nonce| PeerEvent::Prolonged { peer, nonce: *nonce, ttl_ns }).collect();
        let renewal = PendingRenewal { borrower: peer, pending: open, renewed: Vec::new(), ttl_ns, answer };
        let mut renewals = lock(&self.renewals);
        renewals.retain(|renewal| !renewal.answer.is_closed());
        renewals.push(renewal);
        news
    }

    /// Records the lender's answer to one grant of a `Renew`: its time to live, or 0 if it is not renewed. The borrower
    /// receives one answer for all its grants, with the shortest time.
    pub fn reply_renewal(&self, peer: Peer, nonce: Nonce, ttl_ns: u64) {
        let mut renewals = lock(&self.renewals);
        let asked = |r: &PendingRenewal| r.borrower == peer && r.pending.contains(&nonce);
        let Some(at) = renewals.iter().position(asked) else { return };
        renewals[at].on_renewed(nonce, ttl_ns);
        if renewals[at].pending.is_empty() {
            renewals.swap_remove(at).reply();
        }
    }

    /// Replies to a peer that claims its share with the number of its chunks that this tenant holds and returns.
    pub fn reply_debt(&self, peer: Peer, nonce: Nonce, chunks: u32, within_ns: u64) {
        let Some(waiting) = lock(&self.revocations).remove(&(peer, nonce)) else { return };
        let answer = if chunks == 0 {
            GrantAnswer::refused(RefusalReason::UnknownGrant)
        } else {
            let within_ms = ms(within_ns).max(1);
            GrantAnswer::Returning { nonce: nonce.0, bytes: self.bytes(chunks), within_ms }
        };
        // The ledger also shows the result.
        let _ = waiting.send(answer);
    }

    /// Records a peer that has exchanged messages with this tenant, so that its exit is noticed.
    pub fn track(&self, peer: Peer) {
        lock(&self.tracked).insert(peer);
    }

    /// Returns the tracked peers.
    pub fn tracked(&self) -> BTreeSet<Peer> {
        lock(&self.tracked).clone()
    }

    /// Returns the number of requests that wait for the scheduler.
    pub fn pending_count(&self) -> usize {
        lock(&self.asks).len() + lock(&self.revocations).len() + lock(&self.renewals).len()
    }

    /// Removes peers that have exited, after the scheduler was notified.
    pub fn untrack(&self, dead: &BTreeSet<Peer>) {
        lock(&self.tracked).retain(|peer| !dead.contains(peer));
    }

    /// Whether `who` is another tenant that is live in the ledger under this name. A tenant does not trade with itself.
    fn is_live_peer(&self, who: &Participant) -> bool {
        let own = peer_of(who).index == self.ledger.index();
        let name = full_name(&who.namespace, &who.name);
        let survey = self.ledger.survey().unwrap_or_default();
        !own && survey.iter().any(|p| p.is_live && p.name == name && p.peer == peer_of(who))
    }

    /// Replies to an `Ask` with a grant. Returns false if the caller no longer waits. Then the grant must be taken
    /// back.
    pub fn reply_granted(&self, peer: Peer, nonce: Nonce, chunks: u32, ttl_ns: u64) -> bool {
        let Some(waiting) = lock(&self.asks).remove(&(peer, nonce)) else { return false };
        let bytes = self.bytes(chunks);
        let (ttl_ms, lender) = (ms(ttl_ns), self.own_participant());
        waiting.send(GrantAnswer::Granted { nonce: nonce.0, bytes, ttl_ms, lender }).is_ok()
    }

    /// Replies to an `Ask` with a refusal.
    pub fn reply_refused(&self, peer: Peer, nonce: Nonce, why: LoanDenied) {
        if let Some(waiting) = lock(&self.asks).remove(&(peer, nonce)) {
            // The receiver may be dropped.
            let _ = waiting.send(loan_denied::to_answer(why));
        }
    }

    /// Replies to a revocation: `chunks` chunks of the loan are earmarked for its lender, which may wait for the reply.
    pub fn reply_returned(&self, peer: Peer, nonce: Nonce, chunks: u32) {
        let Some(waiting) = lock(&self.revocations).remove(&(peer, nonce)) else { return };
        let answer = if chunks == 0 {
            GrantAnswer::refused(RefusalReason::UnknownGrant)
        } else {
            GrantAnswer::Returned { nonce: nonce.0, bytes: self.bytes(chunks) }
        };
        // The ledger also shows the result.
        let _ = waiting.send(answer);
    }
}

impl PendingRenewal {
    fn on_renewed(&mut self, nonce: Nonce, ttl_ns: u64) {
        self.pending.remove(&nonce);
        if ttl_ns > 0 {
            self.renewed.push(nonce.0);
            self.ttl_ns = self.ttl_ns.min(ttl_ns);
        }
    }

    fn reply(self) {
        let answer = if self.renewed.is_empty() {
            GrantAnswer::refused(RefusalReason::UnknownGrant)
        } else {
            // A time to live below one millisecond would be 0 on the wire.
            GrantAnswer::Renewed { nonces: self.renewed, ttl_ms: ms(self.ttl_ns).max(1) }
        };
        // The receiver may be dropped.
        let _ = self.answer.send(answer);
    }
}
