//! Errors of the GPU ledger.

use rustix::io::Errno;

use sluice_policy::peers::Peer;

/// Why the ledger file could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// It belongs to another boot or claim, and one of its participants is still live.
    #[error("the ledger of the GPU is in use with another {what} ({found}, expected {expected})")]
    IdentityMismatch {
        /// "boot" or "claim".
        what: &'static str,
        /// Value in the file.
        found: String,
        /// Requested value.
        expected: String,
    },
    /// Sidecars with another layout version still use it.
    #[error(
        "the ledger of the GPU is in use with layout version {found}, but this sidecar needs version {expected}"
    )]
    VersionMismatch {
        /// Version in the file.
        found: u64,
        /// Version of this code.
        expected: u64,
    },
    /// The file does not have the format of a ledger, and a participant still uses it.
    #[error("the ledger of the GPU is damaged ({what}) and still in use")]
    Damaged {
        /// Damaged part.
        what: String,
    },
    /// The ledger was created for another size.
    #[error("the ledger has {found} {what}, this participant expects {expected}")]
    SizeMismatch {
        /// "bytes of capacity" or "bytes a chunk".
        what: &'static str,
        /// Value in the file.
        found: u64,
        /// Requested value.
        expected: u64,
    },
    /// The guard was not released within the timeout; its holder may be frozen.
    #[error("the ledger of the GPU is busy: its lock was not free within {waited_ms} ms")]
    Busy {
        /// Time waited, milliseconds.
        waited_ms: u64,
    },
    /// The claim id is empty or too long.
    #[error("a claim id must have 1 to {limit_bytes} bytes, but has {bytes}")]
    InvalidClaimId {
        /// Its length, bytes.
        bytes: usize,
        /// Maximum length, bytes.
        limit_bytes: usize,
    },
    /// A system call failed.
    #[error("{call} of {path} failed")]
    Kernel {
        /// The system call.
        call: &'static str,
        /// Path of the file.
        path: String,
        /// Its error.
        #[source]
        source: Errno,
    },
}

/// Why a participant could not join.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// All records are in use.
    #[error("all {records} records of the ledger are in use")]
    Full {
        /// Number of records.
        records: u32,
    },
    /// A participant of this name is live: its sidecar, or its engine that has not exited yet.
    #[error("{name} already has record {index} of the ledger")]
    NameInUse {
        /// The name.
        name: String,
        /// Its record.
        index: u32,
    },
    /// The name is empty or too long.
    #[error("a name must have 1 to {limit_bytes} bytes, but has {bytes}")]
    InvalidName {
        /// Its length, bytes.
        bytes: usize,
        /// Maximum length, bytes.
        limit_bytes: usize,
    },
    /// The share is smaller than the floor.
    #[error("a share of {share_bytes} bytes is less than the floor of {floor_bytes}")]
    ShareBelowFloor {
        /// Floor, bytes.
        floor_bytes: u64,
        /// Share, bytes.
        share_bytes: u64,
    },
    /// The sum of the floors or of the shares would exceed the GPU.
    #[error("the {what}s sum to {taken} bytes, and {asked} more exceed the capacity of {capacity} bytes")]
    Overcommitted {
        /// "floor" or "share".
        what: &'static str,
        /// Sum over the other participants, bytes.
        taken: u64,
        /// Requested bytes.
        asked: u64,
        /// Capacity of the GPU, bytes.
        capacity: u64,
    },
    /// The holder of the guard may be frozen: [`LedgerError::Busy`].
    #[error(transparent)]
    Busy(LedgerError),
    /// The ledger cannot be used.
    #[error(transparent)]
    Unusable(LedgerError),
    /// The file was replaced after it was opened; it must be opened again.
    #[error("the file of the ledger was replaced after it was opened")]
    Replaced,
    /// A system call failed.
    #[error("{call} failed")]
    Kernel {
        /// The system call.
        call: &'static str,
        /// Its error.
        #[source]
        source: Errno,
    },
}

/// Why an operation on the ledger failed. A failed operation changes nothing.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum LedgerError {
    /// The GPU does not have enough free bytes.
    #[error("{asked} bytes do not fit: {counted} of {capacity} bytes are in use")]
    OutOfMemory {
        /// Bytes held or earmarked by all participants.
        counted: u64,
        /// Capacity of the GPU, bytes.
        capacity: u64,
        /// Requested bytes.
        asked: u64,
    },
    /// The participant holds fewer bytes than it wants to earmark.
    #[error("{asked} bytes cannot be earmarked, because this tenant holds only {held}")]
    NotHeld {
        /// Bytes that this participant holds.
        held: u64,
        /// Bytes to be earmarked.
        asked: u64,
    },
    /// The peer has exited, or another instance has its record.
    #[error("{peer:?} has left the GPU")]
    PeerDead {
        /// The peer.
        peer: Peer,
    },
    /// No earmark with this nonce is waiting.
    #[error("there is no pending earmark {nonce}")]
    NoEarmark {
        /// The nonce.
        nonce: u64,
    },
    /// The earmark does not have the announced size.
    #[error("the earmark {nonce} has {earmarked} bytes, which differs from the announced size")]
    EarmarkSizeMismatch {
        /// The nonce.
        nonce: u64,
        /// Size of the earmark, bytes.
        earmarked: u64,
    },
    /// The borrower has already accepted the earmark.
    #[error("the earmark {nonce} is already accepted")]
    AlreadyAccepted {
        /// The nonce.
        nonce: u64,
    },
    /// The nonce is 0 or in use, or the earmark is for the participant itself.
    #[error("{nonce} is not a valid nonce of an earmark: it is 0, in use, or addressed to this tenant")]
    InvalidNonce {
        /// The nonce.
        nonce: u64,
    },
    /// Too many transfers on one side await
    /// [`ParticipantHandle::clear_settled`](super::ParticipantHandle::clear_settled).
    #[error("{limit} transfers are already pending, which is the limit")]
    TooManyTransfers {
        /// Maximum number.
        limit: usize,
    },
    /// The guard was not released within the timeout; its holder may be frozen. Nothing was changed.
    #[error("the ledger of the GPU is busy: {holder} has held its lock for {waited_ms} ms")]
    Busy {
        /// Name and record of the participant that took the guard last.
        holder: String,
        /// Time waited, milliseconds.
        waited_ms: u64,
    },
    /// The file was truncated or emptied, or another process changed the record of this participant. This
    /// process counts no more bytes by it.
    #[error("the ledger of the GPU is damaged: {what}")]
    Damaged {
        /// Damaged part.
        what: &'static str,
    },
    /// More bytes are counted than the GPU has: the ledger is wrong.
    #[error("{counted} bytes are in use (at most {unsettled} counted twice), but the capacity is {capacity}")]
    Overcounted {
        /// Bytes held or earmarked by all participants.
        counted: u64,
        /// Upper bound of the bytes that an interrupted transfer counts twice.
        unsettled: u64,
        /// Capacity of the GPU, bytes.
        capacity: u64,
    },
    /// The shares exceed the capacity of the GPU: the ledger is wrong.
    #[error("the shares sum to {shares} bytes, but the capacity is {capacity}")]
    SharesOvercommitted {
        /// Sum of the shares of live participants, bytes.
        shares: u64,
        /// Capacity of the GPU, bytes.
        capacity: u64,
    },
    /// The participant tried to take the time slice without a ticket.
    #[error("this tenant has no ticket for a time slice")]
    NoTicket,
    /// The participant requested the time slice while it holds it.
    #[error("the time slice is already held")]
    SliceAlreadyHeld,
    /// The participant does not hold the time slice.
    #[error("the time slice is not held")]
    SliceNotHeld,
    /// Another participant took the time slice over, because this one exceeded its deadline.
    #[error("another tenant took over the time slice after its deadline")]
    SliceTakenOver,
    /// A system call failed.
    #[error("{call} failed")]
    Kernel {
        /// The system call.
        call: &'static str,
        /// Its error.
        #[source]
        source: Errno,
    },
}

/// Returns a conversion of a system call's error for `map_err`.
pub(super) fn kernel_error(call: &'static str) -> impl Fn(Errno) -> LedgerError {
    move |source| LedgerError::Kernel { call, source }
}

impl From<LedgerError> for JoinError {
    fn from(error: LedgerError) -> JoinError {
        match error {
            LedgerError::Kernel { call, source } => JoinError::Kernel { call, source },
            busy @ LedgerError::Busy { .. } => JoinError::Busy(busy),
            other => JoinError::Unusable(other),
        }
    }
}
