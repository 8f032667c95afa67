//! Errors of messages and orders that do not match the loan book.

use core::fmt;

use super::Nonce;
use crate::peers::Peer;

/// Why the book rejected an operation; the book is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoanError {
    /// The loan does not exist, or no longer exists.
    UnknownNonce {
        /// The loan's identifier.
        nonce: Nonce,
    },
    /// The loan belongs to another peer.
    WrongPeer {
        /// The loan's identifier.
        nonce: Nonce,
        /// The loan's peer.
        expected: Peer,
        /// The sender.
        got: Peer,
    },
    /// A request that was answered before, or that is older than an answered one.
    Replayed {
        /// The request's identifier.
        nonce: Nonce,
        /// The newest nonce answered.
        answered: Nonce,
    },
    /// An answer to a loan that was already granted.
    AlreadyGranted {
        /// The loan's identifier.
        nonce: Nonce,
    },
    /// A renewal or return of a loan that was only requested.
    NotGranted {
        /// The loan's identifier.
        nonce: Nonce,
    },
    /// Nothing to renew: all of it was revoked or must be vacated.
    NotRenewable {
        /// The loan's identifier.
        nonce: Nonce,
    },
    /// A loan or a return of zero chunks.
    NoChunks {
        /// The loan's identifier.
        nonce: Nonce,
    },
    /// The loan would cut into the lender's floor.
    BelowFloor {
        /// Chunks requested.
        asked: u32,
        /// Chunks that can be lent.
        lendable: u32,
    },
    /// The answer grants more than was requested.
    MoreThanAsked {
        /// The loan's identifier.
        nonce: Nonce,
        /// Chunks requested.
        asked: u32,
        /// Chunks granted.
        granted: u32,
    },
    /// More chunks are returned than are lent.
    MoreThanLent {
        /// The loan's identifier.
        nonce: Nonce,
        /// Chunks lent.
        lent: u32,
        /// Chunks returned.
        returned: u32,
    },
    /// Part of the loan was returned, so the borrower accepted it and its earmark cannot be taken back.
    Accepted {
        /// The loan's identifier.
        nonce: Nonce,
    },
}

impl fmt::Display for LoanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoanError::UnknownNonce { nonce } => write!(f, "there is no grant {nonce}"),
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
                write!(f, "request {nonce} is not newer than the answered request {answered}")
            }
            LoanError::AlreadyGranted { nonce } => write!(f, "the transfer of grant {nonce} has started"),
            LoanError::NotGranted { nonce } => write!(f, "grant {nonce} was requested but not given"),
            LoanError::NotRenewable { nonce } => write!(f, "all of grant {nonce} must be returned"),
            LoanError::NoChunks { nonce } => write!(f, "grant {nonce} has no chunk"),
            LoanError::BelowFloor { asked, lendable } => {
                write!(f, "{asked} chunks exceed the {lendable} chunks that can be lent above the floor")
            }
            LoanError::MoreThanAsked { nonce, asked, granted } => {
                write!(f, "grant {nonce} has {granted} chunks, but {asked} were requested")
            }
            LoanError::MoreThanLent { nonce, lent, returned } => {
                write!(f, "grant {nonce} returns {returned} chunks, but {lent} are lent")
            }
            LoanError::Accepted { nonce } => write!(f, "the borrower has accepted grant {nonce}"),
        }
    }
}

impl core::error::Error for LoanError {}
