//! Messages between peers, as plain data.

use alloc::vec::Vec;

use crate::loan_negotiator::NegotiationPolicy;
use crate::peers::Peer;
use crate::peers::loan_denied::LoanDenied;
use crate::peers::loans::Nonce;
use crate::peers::victim::PeerView;

/// An incoming message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerEvent {
    /// The peers' current states, in answer to [`PeerCommand::Survey`].
    Survey(Vec<PeerView>),
    /// A peer asks for a loan.
    Asked {
        /// The peer.
        peer: Peer,
        /// The loan's identifier.
        nonce: Nonce,
        /// Maximum number of chunks.
        chunks: u32,
        /// Duration, nanoseconds.
        ttl_ns: u64,
    },
    /// A peer no longer waits for an answer.
    Withdrawn {
        /// The peer.
        peer: Peer,
        /// The loan.
        nonce: Nonce,
    },
    /// A lender revokes a loan.
    Revoked {
        /// The lender.
        peer: Peer,
        /// The loan.
        nonce: Nonce,
        /// Chunks to return.
        chunks: u32,
    },
    /// A lender earmarked chunks for this tenant.
    Granted {
        /// The lender.
        peer: Peer,
        /// The loan.
        nonce: Nonce,
        /// Number of chunks.
        chunks: u32,
        /// Duration, nanoseconds.
        ttl_ns: u64,
    },
    /// An asked peer denied, or cannot be reached.
    Refused {
        /// The peer.
        peer: Peer,
        /// The loan.
        nonce: Nonce,
        /// The reason; `None` if the peer gave none, so that the time of a retry is unknown.
        why: Option<LoanDenied>,
    },
    /// A borrower still needs a loan.
    Prolonged {
        /// The borrower.
        peer: Peer,
        /// The loan.
        nonce: Nonce,
        /// Duration from now, nanoseconds.
        ttl_ns: u64,
    },
    /// A lender renewed a loan.
    Renewed {
        /// The lender.
        peer: Peer,
        /// The loan.
        nonce: Nonce,
        /// Duration from now, nanoseconds.
        ttl_ns: u64,
    },
    /// A borrower earmarked chunks of a loan for this tenant.
    Returned {
        /// The borrower.
        peer: Peer,
        /// The loan.
        nonce: Nonce,
        /// Number of chunks.
        chunks: u32,
    },
    /// The ledger returned an unaccepted earmark to this lender.
    TookBack {
        /// The loan.
        nonce: Nonce,
    },
    /// A new instance of a peer lacks a part of its share: loans of its previous instance must be returned.
    Claimed {
        /// The peer.
        peer: Peer,
        /// The claim's identifier.
        nonce: Nonce,
        /// Missing chunks.
        chunks: u32,
    },
    /// The directive changed.
    Terms(NegotiationPolicy),
    /// Both processes of a peer exited, as the ledger shows.
    Died(Peer),
}

/// An outgoing message.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PeerCommand {
    /// Read the peers' states.
    Survey,
    /// To a peer: ask for a loan.
    Ask {
        /// The peer.
        peer: Peer,
        /// The loan's identifier.
        nonce: Nonce,
        /// Maximum number of chunks.
        chunks: u32,
        /// Duration, nanoseconds.
        ttl_ns: u64,
    },
    /// To an asked peer: withdraw the request.
    Withdraw {
        /// The peer.
        peer: Peer,
        /// The loan.
        nonce: Nonce,
    },
    /// To a borrower that asked: chunks are earmarked for it.
    Answer {
        /// The borrower.
        peer: Peer,
        /// The loan.
        nonce: Nonce,
        /// Chunks, at least one.
        chunks: u32,
        /// Duration, nanoseconds.
        ttl_ns: u64,
    },
    /// To a borrower that asked: a denial.
    Refuse {
        /// The borrower.
        peer: Peer,
        /// The loan.
        nonce: Nonce,
        /// The reason.
        why: LoanDenied,
    },
    /// To the ledger: take back an earmark that its borrower has not accepted.
    TakeBack {
        /// The borrower.
        peer: Peer,
        /// The loan.
        nonce: Nonce,
    },
    /// To a borrower: revoke a loan.
    Revoke {
        /// The borrower.
        peer: Peer,
        /// The loan.
        nonce: Nonce,
        /// Chunks to return.
        chunks: u32,
    },
    /// To a lender: chunks of the loan are earmarked for it; 0 if there is no such loan.
    Return {
        /// The lender.
        peer: Peer,
        /// The loan.
        nonce: Nonce,
        /// Number of chunks.
        chunks: u32,
    },
    /// To a borrower that asked for a renewal: the answer.
    Prolong {
        /// The borrower.
        peer: Peer,
        /// The loan.
        nonce: Nonce,
        /// Duration from now, nanoseconds; 0 if the loan is not renewed, or there is no such loan.
        ttl_ns: u64,
    },
    /// To all peers: claim missing chunks of the share. A peer that holds loans of a previous instance of this tenant
    /// returns them.
    Claim {
        /// Number of chunks.
        chunks: u32,
    },
    /// To a peer that claims its share: chunks that will be returned to it; 0 if there are none.
    Owes {
        /// The peer.
        peer: Peer,
        /// The claim's identifier.
        nonce: Nonce,
        /// Chunks.
        chunks: u32,
        /// Maximum time until the return, nanoseconds.
        within_ns: u64,
    },
    /// To a lender: ask for a renewal.
    Renew {
        /// The lender.
        peer: Peer,
        /// The loan.
        nonce: Nonce,
        /// Duration, nanoseconds.
        ttl_ns: u64,
    },
}
