//! Messages of `POST /v1/grants`: requests of one peer to another about the memory of their GPU, and the answers.
//!
//! A grant is named by its borrower and a nonce that the borrower never uses again. Messages are hints about the
//! ledger file: only the ledger decides the owner of a byte, so a lost or repeated message costs time and never
//! memory.
//!
//! **Versions.** As in [`crate::message`], with [`VERSION`] as major. Peers are updated one after another:
//! a sidecar that refuses a newer message loses a loan until it is updated itself, nothing else.

mod check;

use serde::{Deserialize, Serialize};

pub use self::check::{MAX_NONCES, MAX_TTL_MS};
use crate::message::{self, ReadError};

/// Major of both messages.
pub const VERSION: u32 = 2;

/// A request on the wire.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantMessage {
    /// Major of this message, [`VERSION`].
    pub version: u32,
    /// The request.
    pub request: GrantRequest,
}

/// An answer on the wire.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantReply {
    /// Major of this message, [`VERSION`].
    pub version: u32,
    /// The answer.
    pub answer: GrantAnswer,
}

/// One life of one tenant of the GPU.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Participant {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its record in the ledger file.
    pub index: u32,
    /// Nonce of its life, as in that record; never 0.
    pub instance: u64,
}

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GrantRequest {
    /// Of a possible lender: memory, please. Answers: `Granted`, `Refused`.
    Ask {
        /// The borrower.
        borrower: Participant,
        /// Name of the grant to come.
        nonce: u64,
        /// Maximum amount, bytes; whole chunks.
        bytes: u64,
        /// Loan time unless it is renewed, milliseconds.
        ttl_ms: u64,
    },
    /// Of the lender: for longer, please. Answers: `Renewed`, `Refused`.
    Renew {
        /// The borrower.
        borrower: Participant,
        /// The grants.
        nonces: Vec<u64>,
        /// Loan time from now on, milliseconds.
        ttl_ms: u64,
    },
    /// Of the borrower: give it back. Answers: `Returning`, `Returned`, `Refused` with `UnknownGrant`.
    Revoke {
        /// The lender.
        lender: Participant,
        /// The grant.
        nonce: u64,
        /// Amount, bytes; whole chunks.
        bytes: u64,
        /// Why.
        why: RevokeReason,
    },
    /// To a possible lender: an `Ask` without an answer in time is void; the lender releases the earmarked memory.
    /// Answers: `Cancelled`, also for an unknown grant.
    Cancel {
        /// The borrower.
        borrower: Participant,
        /// The grant.
        nonce: u64,
    },
}

/// Why a lender takes memory back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RevokeReason {
    /// The lender has work, or the time slice, and needs its layers.
    LenderActive,
    /// Another needs what its floor promises.
    FloorNeeded,
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GrantAnswer {
    /// The bytes have left the lender and are earmarked in the ledger file: accept them there.
    Granted {
        /// The grant.
        nonce: u64,
        /// Amount, at most the requested one, bytes; whole chunks.
        bytes: u64,
        /// Loan time, milliseconds.
        ttl_ms: u64,
        /// The lender, whose record has the earmark.
        lender: Participant,
    },
    /// No, and nothing has changed.
    Refused {
        /// Why.
        reason: RefusalReason,
        /// Time in which the same answer holds, milliseconds; none = unknown.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        after_ms: Option<u64>,
    },
    /// These live on; of those that were asked for and are missing here, the lender knows nothing.
    Renewed {
        /// The grants.
        nonces: Vec<u64>,
        /// Loan time from now on, milliseconds.
        ttl_ms: u64,
    },
    /// The borrower is giving it back; the ledger file will show it.
    Returning {
        /// The grant.
        nonce: u64,
        /// Amount, bytes; whole chunks.
        bytes: u64,
        /// Time limit, milliseconds.
        within_ms: u64,
    },
    /// The bytes have left the borrower and are earmarked for the lender in the ledger file.
    Returned {
        /// The grant.
        nonce: u64,
        /// Amount, bytes; whole chunks.
        bytes: u64,
    },
    /// The grant is void.
    Cancelled {
        /// The grant.
        nonce: u64,
    },
}

/// Reason of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RefusalReason {
    /// It is active: its priority is higher, it needs what it has itself, or nothing but its layers could go.
    Active,
    /// Its layers were restored too recently; `after_ms` has the remaining time.
    MinResidence,
    /// As many of its layers are away as may be, and nothing else is free.
    AtCap,
    /// It holds no more than its floor.
    AtFloor,
    /// It has nothing that it could give now.
    Nothing,
    /// Memory is not traded on this GPU.
    NotTraded,
    /// The sender is not among its peers.
    #[serde(alias = "UnknownNeighbour")]
    UnknownPeer,
    /// It does not know that grant.
    UnknownGrant,
    /// Its memory is being changed: it loads, falls asleep or wakes, or what it promised could not be vacated.
    Busy,
}

impl GrantRequest {
    /// Participant that sends the message.
    pub fn sender(&self) -> &Participant {
        match self {
            GrantRequest::Ask { borrower, .. }
            | GrantRequest::Renew { borrower, .. }
            | GrantRequest::Cancel { borrower, .. } => borrower,
            GrantRequest::Revoke { lender, .. } => lender,
        }
    }

    /// The message.
    pub fn to_json(&self) -> Vec<u8> {
        encode(&GrantMessage { version: VERSION, request: self.clone() })
    }

    /// Reads a message. Checks the version first.
    ///
    /// # Errors
    /// No JSON, a newer major, or the first field that is invalid on a GPU whose chunks have `chunk_bytes`.
    pub fn from_json(text: &[u8], chunk_bytes: u64) -> Result<GrantRequest, ReadError> {
        let GrantMessage { request, .. } = message::read(text, VERSION)?;
        request.check(chunk_bytes)?;
        Ok(request)
    }
}

impl GrantAnswer {
    /// Returns a refusal for an unknown time.
    pub const fn refused(reason: RefusalReason) -> GrantAnswer {
        GrantAnswer::Refused { reason, after_ms: None }
    }

    /// The message.
    pub fn to_json(&self) -> Vec<u8> {
        encode(&GrantReply { version: VERSION, answer: self.clone() })
    }

    /// Reads the answer to `request`. Checks the version first.
    ///
    /// # Errors
    /// No JSON, a newer major, the first field that is invalid on a GPU whose chunks have `chunk_bytes`, or
    /// an answer to another request.
    pub fn from_json(
        text: &[u8],
        request: &GrantRequest,
        chunk_bytes: u64,
    ) -> Result<GrantAnswer, ReadError> {
        let GrantReply { answer, .. } = message::read(text, VERSION)?;
        answer.check(request, chunk_bytes)?;
        Ok(answer)
    }
}

fn encode(message: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(message).expect("plain data with string keys serialises")
}
