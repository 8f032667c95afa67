//! What neighbours say to each other, as plain data.

use alloc::vec::Vec;

use crate::loan_negotiator::NegotiationPolicy;
use crate::peers::Peer;
use crate::peers::loan_denied::LoanDenied;
use crate::peers::loans::Nonce;
use crate::peers::victim::PeerView;

/// What comes in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerEvent {
    /// The neighbours as they are now: the answer to [`PeerCommand::Survey`].
    Survey(Vec<PeerView>),
    /// A neighbour asks for a loan.
    Asked {
        /// Who.
        peer: Peer,
        /// Its name for the loan.
        nonce: Nonce,
        /// At most so much.
        chunks: u32,
        /// For so long, nanoseconds.
        ttl_ns: u64,
    },
    /// A neighbour no longer waits for an answer.
    Withdrawn {
        /// Who.
        peer: Peer,
        /// The loan.
        nonce: Nonce,
    },
    /// A lender wants it back.
    Revoked {
        /// Who.
        peer: Peer,
        /// The loan.
        nonce: Nonce,
        /// So much of it.
        chunks: u32,
    },
    /// A lender has earmarked chunks for this tenant.
    Granted {
        /// Who.
        peer: Peer,
        /// The loan.
        nonce: Nonce,
        /// So much.
        chunks: u32,
        /// For so long, nanoseconds.
        ttl_ns: u64,
    },
    /// A neighbour that was asked gives nothing, or cannot be reached.
    Refused {
        /// Who.
        peer: Peer,
        /// The loan.
        nonce: Nonce,
        /// Why, where it says so: else nobody knows when to ask again.
        why: Option<LoanDenied>,
    },
    /// A borrower still needs a loan.
    Prolonged {
        /// Who.
        peer: Peer,
        /// The loan.
        nonce: Nonce,
        /// For so long from now on, nanoseconds.
        ttl_ns: u64,
    },
    /// A lender prolonged a loan.
    Renewed {
        /// Who.
        peer: Peer,
        /// The loan.
        nonce: Nonce,
        /// For so long from now on, nanoseconds.
        ttl_ns: u64,
    },
    /// A borrower has earmarked chunks of a loan for this tenant.
    Returned {
        /// Who.
        peer: Peer,
        /// The loan.
        nonce: Nonce,
        /// So much of it.
        chunks: u32,
    },
    /// An earmark that its borrower had not accepted is the lender's again.
    TookBack {
        /// The loan.
        nonce: Nonce,
    },
    /// A neighbour has begun a new life and lacks a part of its share: what its former life had lent goes back.
    Claimed {
        /// Who.
        peer: Peer,
        /// Its name for the claim.
        nonce: Nonce,
        /// So much is missing.
        chunks: u32,
    },
    /// The directive has changed.
    Terms(NegotiationPolicy),
    /// Both processes of a neighbour are gone, as the ledger shows.
    Died(Peer),
}

/// What goes out.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PeerCommand {
    /// Read the neighbours' live state.
    Survey,
    /// To a neighbour: a loan, please.
    Ask {
        /// Whom.
        peer: Peer,
        /// Name of the loan.
        nonce: Nonce,
        /// At most so much.
        chunks: u32,
        /// For so long, nanoseconds.
        ttl_ns: u64,
    },
    /// To that neighbour: the answer is no longer awaited.
    Withdraw {
        /// Whom.
        peer: Peer,
        /// The loan.
        nonce: Nonce,
    },
    /// To a neighbour that asked: so much is earmarked.
    Answer {
        /// Whom.
        peer: Peer,
        /// The loan.
        nonce: Nonce,
        /// Chunks, at least one.
        chunks: u32,
        /// For so long, nanoseconds.
        ttl_ns: u64,
    },
    /// To a neighbour that asked: nothing.
    Refuse {
        /// Whom.
        peer: Peer,
        /// The loan.
        nonce: Nonce,
        /// Why.
        why: LoanDenied,
    },
    /// Take an earmark back from the ledger that its borrower has not accepted.
    TakeBack {
        /// For whom it was.
        peer: Peer,
        /// The loan.
        nonce: Nonce,
    },
    /// To a borrower: give it back.
    Revoke {
        /// Whom.
        peer: Peer,
        /// The loan.
        nonce: Nonce,
        /// So much of it.
        chunks: u32,
    },
    /// To a lender: so much of the loan is earmarked for you; 0 = no such loan is here.
    Return {
        /// Whom.
        peer: Peer,
        /// The loan.
        nonce: Nonce,
        /// So much of it.
        chunks: u32,
    },
    /// To a borrower that wants a loan for longer: for so long, or not.
    Prolong {
        /// Whom.
        peer: Peer,
        /// The loan.
        nonce: Nonce,
        /// For so long from now on, nanoseconds; 0 = it ends as it was agreed, or no such loan is here.
        ttl_ns: u64,
    },
    /// To all neighbours: so many chunks of the own share are missing. Whoever has something of a former life of this
    /// tenant gives it back.
    Claim {
        /// How many.
        chunks: u32,
    },
    /// To a neighbour that claims its share: so much of it is here and goes back; 0 = nothing is.
    Owes {
        /// Whom.
        peer: Peer,
        /// Its name for the claim.
        nonce: Nonce,
        /// Chunks.
        chunks: u32,
        /// Within so long, nanoseconds.
        within_ns: u64,
    },
    /// To a lender: for longer, please.
    Renew {
        /// Whom.
        peer: Peer,
        /// The loan.
        nonce: Nonce,
        /// For so long, nanoseconds.
        ttl_ns: u64,
    },
}
