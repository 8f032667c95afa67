//! Why a message or an order does not fit the book.

use core::fmt;

use super::Nonce;
use crate::peers::Peer;

/// Why it was refused; nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoanError {
    /// No such grant, or none any more.
    UnknownNonce {
        /// Its name.
        nonce: Nonce,
    },
    /// The grant is with somebody else.
    WrongPeer {
        /// Its name.
        nonce: Nonce,
        /// With whom it is.
        expected: Peer,
        /// Who sent this.
        got: Peer,
    },
    /// An ask that was answered before, or is older than one that was.
    Replayed {
        /// Its name.
        nonce: Nonce,
        /// The newest one answered.
        answered: Nonce,
    },
    /// The answer to an ask comes after the grant.
    AlreadyGranted {
        /// Its name.
        nonce: Nonce,
    },
    /// A renewal, or a return, of what was only asked for.
    NotGranted {
        /// Its name.
        nonce: Nonce,
    },
    /// Nothing is left to renew: all of it was revoked, or has to leave.
    NotRenewable {
        /// Its name.
        nonce: Nonce,
    },
    /// Nothing to lend or to return.
    NoChunks {
        /// Its name.
        nonce: Nonce,
    },
    /// The lender needs it itself.
    BelowFloor {
        /// What it should lend, chunks.
        asked: u32,
        /// What it can lend, chunks.
        lendable: u32,
    },
    /// The answer is more than the question.
    MoreThanAsked {
        /// Its name.
        nonce: Nonce,
        /// What was asked for, chunks.
        asked: u32,
        /// What was granted, chunks.
        granted: u32,
    },
    /// More comes back than is away.
    MoreThanLent {
        /// Its name.
        nonce: Nonce,
        /// What is away, chunks.
        lent: u32,
        /// What should come back, chunks.
        returned: u32,
    },
    /// Some of it has come back, so it was accepted and cannot be taken back as an earmark.
    Accepted {
        /// Its name.
        nonce: Nonce,
    },
}

impl fmt::Display for LoanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoanError::UnknownNonce { nonce } => write!(f, "no grant {nonce} is in the book"),
            LoanError::WrongPeer { nonce, expected, got } => {
                let (of, from) = (expected.index, got.index);
                let lives = (expected.instance, got.instance);
                write!(
                    f,
                    "grant {nonce} is with participant {of} in life {}, not with {from} in life {}",
                    lives.0, lives.1
                )
            }
            LoanError::Replayed { nonce, answered } => {
                write!(f, "ask {nonce} is not newer than {answered}, which was answered")
            }
            LoanError::AlreadyGranted { nonce } => write!(f, "grant {nonce} has begun"),
            LoanError::NotGranted { nonce } => write!(f, "grant {nonce} was asked for and not given"),
            LoanError::NotRenewable { nonce } => write!(f, "all of grant {nonce} has to go back"),
            LoanError::NoChunks { nonce } => write!(f, "grant {nonce} is about no chunk"),
            LoanError::BelowFloor { asked, lendable } => {
                write!(f, "{asked} chunks are more than the {lendable} that can be lent above the floor")
            }
            LoanError::MoreThanAsked { nonce, asked, granted } => {
                write!(f, "grant {nonce} gives {granted} chunks where {asked} were asked for")
            }
            LoanError::MoreThanLent { nonce, lent, returned } => {
                write!(f, "grant {nonce} returns {returned} chunks where {lent} are away")
            }
            LoanError::Accepted { nonce } => write!(f, "the borrower has accepted grant {nonce}"),
        }
    }
}

impl core::error::Error for LoanError {}
