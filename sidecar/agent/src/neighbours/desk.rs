//! Questions of neighbours that wait for the scheduler's answer.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sluice_memory::neighbourhood::Seat;
use sluice_policy::neighbours::Peer;
use sluice_policy::neighbours::grants::Nonce;
use sluice_policy::trader::News;
use sluice_wire::grants::{GrantAnswer, GrantRequest, Participant, RefusalReason};
use tokio::sync::oneshot;

use super::call::{Call, Unable};
use super::place::full_name;
use super::{ms, ns};

type Waiting = BTreeMap<(Peer, Nonce), oneshot::Sender<GrantAnswer>>;

/// Turns requests into news, and the scheduler's letters into answers.
#[derive(Debug)]
pub struct Desk {
    seat: Arc<Seat>,
    namespace: String,
    name: String,
    chunk_bytes: u64,
    asks: Mutex<Waiting>,
    revocations: Mutex<Waiting>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A participant of the ledger, as messages name it.
pub fn named(participant: &Participant) -> Peer {
    Peer { index: participant.index, instance: participant.instance }
}

impl Desk {
    /// The desk of the tenant `namespace/name`.
    pub fn new(seat: Arc<Seat>, namespace: &str, name: &str, chunk_bytes: u64) -> Desk {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        Desk { seat, namespace, name, chunk_bytes, asks: Mutex::default(), revocations: Mutex::default() }
    }

    /// Who this tenant is, in messages.
    pub fn me(&self) -> Participant {
        Participant {
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            index: self.seat.index(),
            instance: self.seat.instance(),
        }
    }

    /// Chunks of so many bytes.
    pub fn chunks(&self, bytes: u64) -> u32 {
        u32::try_from(bytes / self.chunk_bytes).unwrap_or(u32::MAX)
    }

    /// Bytes of so many chunks.
    pub fn bytes(&self, chunks: u32) -> u64 {
        u64::from(chunks) * self.chunk_bytes
    }

    /// What the scheduler has to hear of a request; nothing when it is answered already.
    pub fn receive(&self, call: Call) -> Vec<News> {
        match call {
            Call::Grant(request, answer) => self.grant(request, answer),
            Call::Sleep(_, answer) | Call::WakeUp(answer) => {
                // Whoever asked may have gone.
                let _ = answer.send(Err(Unable::NotBuilt));
                Vec::new()
            }
            Call::IsSleeping(answer) => {
                let _ = answer.send(Err(Unable::NotBuilt));
                Vec::new()
            }
        }
    }

    fn grant(&self, request: GrantRequest, answer: oneshot::Sender<GrantAnswer>) -> Vec<News> {
        let from = match &request {
            GrantRequest::Ask { borrower, .. }
            | GrantRequest::Renew { borrower, .. }
            | GrantRequest::Cancel { borrower, .. } => borrower,
            GrantRequest::Revoke { lender, .. } => lender,
        };
        if !self.knows(from) {
            let _ = answer.send(GrantAnswer::Refused { reason: RefusalReason::UnknownNeighbour });
            return Vec::new();
        }
        let peer = named(from);
        match request {
            GrantRequest::Ask { nonce, bytes, ttl_ms, .. } => {
                let (nonce, chunks) = (Nonce(nonce), self.chunks(bytes));
                lock(&self.asks).insert((peer, nonce), answer);
                vec![News::Asked { peer, nonce, chunks, ttl_ns: ns(ttl_ms) }]
            }
            GrantRequest::Renew { nonces, ttl_ms, .. } => {
                // A lender that lives prolongs what it does not want back; what it does, it revokes.
                let prolonged = nonces.iter().map(|nonce| Nonce(*nonce));
                let prolonged =
                    prolonged.map(|nonce| News::Prolonged { peer, nonce, ttl_ns: ns(ttl_ms) }).collect();
                let _ = answer.send(GrantAnswer::Renewed { nonces, ttl_ms });
                prolonged
            }
            GrantRequest::Revoke { nonce, bytes, .. } => {
                let (nonce, chunks) = (Nonce(nonce), self.chunks(bytes));
                lock(&self.revocations).insert((peer, nonce), answer);
                vec![News::Revoked { peer, nonce, chunks }]
            }
            GrantRequest::Cancel { nonce, .. } => {
                let _ = answer.send(GrantAnswer::Cancelled { nonce });
                vec![News::Withdrawn { peer, nonce: Nonce(nonce) }]
            }
        }
    }

    /// It lives, and is who it says.
    fn knows(&self, who: &Participant) -> bool {
        let name = full_name(&who.namespace, &who.name);
        let survey = self.seat.survey().unwrap_or_default();
        survey.iter().any(|p| p.live && p.name == name && p.peer == named(who))
    }

    /// The answer to an `Ask`. False when nobody waits for it any more: what it promised must be taken back.
    pub fn answer(&self, peer: Peer, nonce: Nonce, chunks: u32, ttl_ns: u64) -> bool {
        let Some(waiting) = lock(&self.asks).remove(&(peer, nonce)) else { return false };
        let answer = if chunks == 0 {
            GrantAnswer::Refused { reason: RefusalReason::Nothing }
        } else {
            let bytes = self.bytes(chunks);
            GrantAnswer::Granted { nonce: nonce.0, bytes, ttl_ms: ms(ttl_ns), lender: self.me() }
        };
        waiting.send(answer).is_ok()
    }

    /// So many chunks of a loan are earmarked for its lender, who may wait to hear it.
    pub fn returned(&self, peer: Peer, nonce: Nonce, chunks: u32) {
        let Some(waiting) = lock(&self.revocations).remove(&(peer, nonce)) else { return };
        let answer = if chunks == 0 {
            GrantAnswer::Refused { reason: RefusalReason::UnknownGrant }
        } else {
            GrantAnswer::Returned { nonce: nonce.0, bytes: self.bytes(chunks) }
        };
        // The ledger shows it anyway.
        let _ = waiting.send(answer);
    }
}
