//! What `POST /v1/grants` carries: what one neighbour asks of another about the memory of their GPU, and the answer.
//!
//! A grant is named by its borrower and a nonce that the borrower never uses again. Messages are advice about the
//! ledger file: that alone says whose bytes are whose, so a lost or repeated message costs time and never memory.
//!
//! **Versions.** As [`crate::message`] says, with [`VERSION`] as major. Neighbours are updated one after the
//! other: a sidecar that refuses a newer message loses a loan until it is updated itself, nothing else.

mod check;

use serde::{Deserialize, Serialize};

pub use self::check::{MAX_NONCES, MAX_TTL_MS};
use crate::message::{self, ReadError};

/// Major of both messages.
pub const VERSION: u32 = 1;

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
        /// Who asks.
        borrower: Participant,
        /// Name of the grant to come.
        nonce: u64,
        /// At most so much, bytes; whole chunks.
        bytes: u64,
        /// For so long, unless it is renewed, milliseconds.
        ttl_ms: u64,
    },
    /// Of the lender: for longer, please. Answers: `Renewed`, `Refused`.
    Renew {
        /// Who asks.
        borrower: Participant,
        /// The grants.
        nonces: Vec<u64>,
        /// For so long from now on, milliseconds.
        ttl_ms: u64,
    },
    /// Of the borrower: give it back. Answers: `Returning`, `Returned`, `Refused` with `UnknownGrant`.
    Revoke {
        /// Who asks.
        lender: Participant,
        /// The grant.
        nonce: u64,
        /// So much of it, bytes; whole chunks.
        bytes: u64,
        /// Why.
        why: RevokeReason,
    },
    /// Of a possible lender: an `Ask` whose answer did not come in time is void; what was earmarked for it goes back.
    /// Answers: `Cancelled`, also for a grant that never was.
    Cancel {
        /// Who asked.
        borrower: Participant,
        /// The grant.
        nonce: u64,
    },
}

/// Why a lender takes memory back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RevokeReason {
    /// It has work, or the turn, and needs its layers.
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
        /// So much, at most what was asked, bytes; whole chunks.
        bytes: u64,
        /// For so long, milliseconds.
        ttl_ms: u64,
        /// The lender, in whose record the earmark stands.
        lender: Participant,
    },
    /// No, and nothing has changed.
    Refused {
        /// Why.
        reason: RefusalReason,
        /// The same request gets the same answer before this time has passed, milliseconds; none = unknown.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        after_ms: Option<u64>,
    },
    /// These live on; of those that were asked for and are missing here, the lender knows nothing.
    Renewed {
        /// The grants.
        nonces: Vec<u64>,
        /// For so long from now on, milliseconds.
        ttl_ms: u64,
    },
    /// The borrower is giving it back; the ledger file will show it.
    Returning {
        /// The grant.
        nonce: u64,
        /// So much of it, bytes; whole chunks.
        bytes: u64,
        /// At the latest after so long, milliseconds.
        within_ms: u64,
    },
    /// The bytes have left the borrower and are earmarked for the lender in the ledger file.
    Returned {
        /// The grant.
        nonce: u64,
        /// So much of it, bytes; whole chunks.
        bytes: u64,
    },
    /// The grant is void.
    Cancelled {
        /// The grant.
        nonce: u64,
    },
}

/// Why a neighbour says no.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RefusalReason {
    /// It is active: its priority is higher, it needs what it has itself, or nothing but its layers could go.
    Active,
    /// Its layers came back too short a time ago; `after_ms` says for how long that holds.
    MinResidence,
    /// As many of its layers are away as may be, and nothing else is free.
    AtCap,
    /// It holds no more than its floor.
    AtFloor,
    /// It has nothing that it could give now.
    Nothing,
    /// Memory is not traded on this GPU.
    NotTraded,
    /// The asker is not among its neighbours.
    UnknownNeighbour,
    /// It does not know that grant.
    UnknownGrant,
    /// Its memory is being changed: it loads, falls asleep or wakes, or what it promised could not be vacated.
    Busy,
}

impl GrantRequest {
    /// In whose name it is said.
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

    /// Reads a message. The version is looked at first.
    ///
    /// # Errors
    /// No JSON, a newer major, or the first field that is not as it must be on a GPU whose chunks have `chunk_bytes`.
    pub fn from_json(text: &[u8], chunk_bytes: u64) -> Result<GrantRequest, ReadError> {
        let GrantMessage { request, .. } = message::read(text, VERSION)?;
        request.check(chunk_bytes)?;
        Ok(request)
    }
}

impl GrantAnswer {
    /// Refuses, with no known time after which a retry may succeed.
    pub const fn refused(reason: RefusalReason) -> GrantAnswer {
        GrantAnswer::Refused { reason, after_ms: None }
    }

    /// The message.
    pub fn to_json(&self) -> Vec<u8> {
        encode(&GrantReply { version: VERSION, answer: self.clone() })
    }

    /// Reads the answer to `request`. The version is looked at first.
    ///
    /// # Errors
    /// No JSON, a newer major, the first field that is not as it must be on a GPU whose chunks have `chunk_bytes`, or
    /// an answer to something else.
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
