//! Why the neighbourhood refused.

use rustix::io::Errno;

use sluice_policy::peers::Peer;

/// Why the ledger file could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// It is of another boot or of another claim, and somebody of that life still lives.
    #[error("the ledger is of another {what} ({found}, expected {expected}) and still in use")]
    IdentityMismatch {
        /// "boot" or "claim".
        what: &'static str,
        /// In the file.
        found: String,
        /// Asked for.
        expected: String,
    },
    /// Sidecars of another version still use it.
    #[error("the ledger has layout version {found}, this sidecar uses {expected}, and it is still in use")]
    VersionMismatch {
        /// In the file.
        found: u64,
        /// Of this code.
        expected: u64,
    },
    /// The file has not the shape of a ledger, and somebody still uses it.
    #[error("the ledger is damaged ({what}) and still in use")]
    Damaged {
        /// What is wrong.
        what: String,
    },
    /// The neighbours agreed on another size.
    #[error("the ledger has {found} {what}, this participant expects {expected}")]
    SizeMismatch {
        /// "bytes of capacity" or "bytes a chunk".
        what: &'static str,
        /// In the file.
        found: u64,
        /// Asked for.
        expected: u64,
    },
    /// Somebody has had the guard for longer than it takes; it may be frozen.
    #[error("the ledger is busy: its guard was not to be had within {waited_ms} ms")]
    Busy {
        /// So long it was waited for, milliseconds.
        waited_ms: u64,
    },
    /// The claim id is empty or too long.
    #[error("a claim id has 1 to {limit_bytes} bytes, not {bytes}")]
    InvalidClaimId {
        /// Its length.
        bytes: usize,
        /// At most.
        limit_bytes: usize,
    },
    /// The kernel refused.
    #[error("{call} of {path} failed")]
    Kernel {
        /// The system call.
        call: &'static str,
        /// Of which file.
        path: String,
        /// Its error.
        #[source]
        source: Errno,
    },
}

/// Why somebody could not join.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// All records are in use.
    #[error("all {records} records of the ledger are in use")]
    Full {
        /// So many there are.
        records: u32,
    },
    /// A participant of this name lives: its sidecar, or its engine that has not ended yet.
    #[error("{name} is there already, in record {index}")]
    NameInUse {
        /// The name.
        name: String,
        /// Where.
        index: u32,
    },
    /// The name is empty or too long.
    #[error("a name has 1 to {limit_bytes} bytes, not {bytes}")]
    InvalidName {
        /// Its length.
        bytes: usize,
        /// At most.
        limit_bytes: usize,
    },
    /// The share is smaller than the floor.
    #[error("a share of {share_bytes} bytes is less than the floor of {floor_bytes}")]
    ShareBelowFloor {
        /// Of the floor.
        floor_bytes: u64,
        /// Of the share.
        share_bytes: u64,
    },
    /// The floors or the shares of all would exceed the GPU.
    #[error("the {what}s sum to {taken} bytes; {asked} more do not fit the capacity of {capacity}")]
    Overcommitted {
        /// "floor" or "share".
        what: &'static str,
        /// Sum over the others.
        taken: u64,
        /// Asked for.
        asked: u64,
        /// Of the GPU.
        capacity: u64,
    },
    /// Its guard is held by somebody who may be frozen: [`LedgerError::Busy`].
    #[error(transparent)]
    Busy(LedgerError),
    /// The ledger cannot be used.
    #[error(transparent)]
    Unusable(LedgerError),
    /// The file was replaced since it was opened: open it again.
    #[error("the ledger was replaced since it was opened")]
    Replaced,
    /// The kernel refused.
    #[error("{call} failed")]
    Kernel {
        /// The system call.
        call: &'static str,
        /// Its error.
        #[source]
        source: Errno,
    },
}

/// Why an operation on the ledger was refused. Nothing changed then.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum LedgerError {
    /// The GPU has not so many bytes left.
    #[error("{asked} bytes do not fit: {counted} of {capacity} are counted")]
    OutOfMemory {
        /// Held or earmarked, over all.
        counted: u64,
        /// Of the GPU.
        capacity: u64,
        /// Asked for.
        asked: u64,
    },
    /// More than there is to give.
    #[error("{asked} bytes cannot be earmarked, {held} are held")]
    NotHeld {
        /// By this participant.
        held: u64,
        /// To be earmarked.
        asked: u64,
    },
    /// The peer is dead, or another life has its record.
    #[error("{peer:?} is gone")]
    PeerDead {
        /// Who.
        peer: Peer,
    },
    /// No earmark of this nonce waits.
    #[error("no earmark {nonce} waits")]
    NoEarmark {
        /// Which.
        nonce: u64,
    },
    /// The earmark is of another size than was said.
    #[error("the earmark {nonce} is of {earmarked} bytes, which is not what was announced")]
    EarmarkSizeMismatch {
        /// Which.
        nonce: u64,
        /// Its bytes.
        earmarked: u64,
    },
    /// The borrower was faster, or has accepted it already.
    #[error("the earmark {nonce} was accepted")]
    AlreadyAccepted {
        /// Which.
        nonce: u64,
    },
    /// Zero, in use, or for an earmark to oneself.
    #[error("no earmark can have the nonce {nonce}: it is 0, in use, or would be for oneself")]
    InvalidNonce {
        /// Which.
        nonce: u64,
    },
    /// Too many transfers wait for [`Seat::clear`](super::Seat::clear) on one side.
    #[error("{limit} transfers wait already")]
    TooManyTransfers {
        /// At most.
        limit: usize,
    },
    /// Somebody has had the guard for longer than it takes; it may be frozen. Nothing was changed.
    #[error("the ledger is busy: {holder}, who took its guard last, has kept it for {waited_ms} ms")]
    Busy {
        /// Name and record of who took it last.
        holder: String,
        /// So long it was waited for, milliseconds.
        waited_ms: u64,
    },
    /// The file is not what it must be: cut short, emptied, or a record was changed by another than its owner. Nobody of
    /// this process trades by it any more.
    #[error("the ledger is damaged: {what}")]
    Damaged {
        /// What is wrong.
        what: &'static str,
    },
    /// More is counted than the GPU has: the ledger is wrong.
    #[error("{counted} bytes are counted, of them at most {unsettled} twice, in a capacity of {capacity}")]
    Overcounted {
        /// Held or earmarked, over all.
        counted: u64,
        /// Of these, what the death within a transfer may have counted twice.
        unsettled: u64,
        /// Of the GPU.
        capacity: u64,
    },
    /// More is dealt out in shares than the GPU has: the ledger is wrong.
    #[error("the shares sum to {shares} bytes, in a capacity of {capacity}")]
    SharesOvercommitted {
        /// Over all that live.
        shares: u64,
        /// Of the GPU.
        capacity: u64,
    },
    /// The turn is asked for, waited for or taken without a ticket.
    #[error("there is no ticket")]
    NoTicket,
    /// The turn is asked for while it is held.
    #[error("the turn is held already")]
    SliceAlreadyHeld,
    /// The turn is given up by who does not hold it.
    #[error("the turn is not held")]
    SliceNotHeld,
    /// The turn was taken over by another participant, because this one exceeded its deadline.
    #[error("the turn was taken over by another tenant after its deadline")]
    SliceTakenOver,
    /// The kernel refused.
    #[error("{call} failed")]
    Kernel {
        /// The system call.
        call: &'static str,
        /// Its error.
        #[source]
        source: Errno,
    },
}

/// For `map_err`.
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
