//! One transfer of chunks to or from a peer: its kind and its result.

use crate::action::Earmark;
use crate::reason::Reason;

/// Whether a transfer may be refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferKind {
    /// A loan: the peer gets what can go without hurting a request.
    Lend,
    /// A return: the memory is the peer's, so requests are paused or preempted for it if need be.
    Return,
}

impl TransferKind {
    pub(crate) fn reason(self) -> Reason {
        match self {
            TransferKind::Lend => Reason::Lend,
            TransferKind::Return => Reason::Repay,
        }
    }
}

/// How a transfer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferResult {
    /// The chunks are earmarked for the peer.
    Granted {
        /// The earmark.
        earmark: Earmark,
        /// Count.
        chunks: u32,
        /// Loan or return.
        kind: TransferKind,
    },
    /// The loan did not fit, the GPU ledger was full, or the backend failed; no chunk was transferred.
    Refused {
        /// The earmark that was not made.
        earmark: Earmark,
        /// Count.
        chunks: u32,
        /// Loan or return.
        kind: TransferKind,
    },
    /// The peer's chunks belong to this tenant now.
    Accepted {
        /// The earmark that was accepted.
        earmark: Earmark,
        /// Count.
        chunks: u32,
    },
    /// The peer's bytes belong to this tenant now, but the device has no memory to create chunks of them.
    NotBacked {
        /// The earmark that was accepted.
        earmark: Earmark,
        /// Count.
        chunks: u32,
    },
    /// The earmark was void.
    NotAccepted {
        /// The earmark.
        earmark: Earmark,
    },
}

/// Chunks that are to be transferred to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutgoingTransfer {
    /// Names the peer and the transfer.
    pub earmark: Earmark,
    /// Count.
    pub chunks: u32,
    /// Loan or return.
    pub kind: TransferKind,
}
