//! Records one tenant's loans: what it lent, what it borrowed, and the budget that follows.
//!
//! The book makes no device decisions: budgets follow the ledger file, and the caller keeps these orders:
//!
//! - Lender, to lend: [`LoanBook::lent`]; vacate down to the budget; earmark; answer. [`LoanBook::on_taken_back`] when
//!   the ledger returned the earmark, or if none was written.
//! - Borrower, to take: [`LoanBook::is_expected`]; accept the earmark; [`LoanBook::granted`].
//! - Borrower, to return: vacate; [`LoanBook::on_gave_back`]; earmark under the loan's nonce.
//! - Lender, to take back: accept that earmark; [`LoanBook::returned`], once for each accepted earmark.
//!
//! Time alone moves no memory: the borrower vacates an expired loan, and the loan stays lent until the ledger shows its
//! return. A tenant lends only from its own share, never borrowed chunks, so a revocation never depends on a third
//! tenant.
//!
//! A message that does not match the book is rejected with a [`LoanError`] and changes nothing.

use alloc::vec::Vec;
use core::fmt;

use super::Peer;
use crate::ids::Nanos;

mod borrower;
mod error;
mod floor;
mod lender;

pub use error::LoanError;
pub(crate) use floor::chunks_above_floor;

/// Low bits of a nonce, which count the loans of one instance.
const COUNT_BITS: u32 = 40;

/// Identifies a loan; chosen by the borrower. Never 0 and never reused: the low bits of the instance above a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nonce(pub u64);

impl fmt::Display for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// A loan on the lender's side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoanOut {
    /// The loan's identifier.
    pub nonce: Nonce,
    /// The borrower.
    pub peer: Peer,
    /// Chunks not returned yet.
    pub chunks: u32,
    /// Chunks returned.
    pub returned_chunks: u32,
    /// Chunks not returned yet that were revoked.
    pub revoked: u32,
    /// When the borrower vacates without a revocation.
    pub expires: Nanos,
}

/// A loan on the borrower's side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoanIn {
    /// The loan's identifier.
    pub nonce: Nonce,
    /// The lender.
    pub peer: Peer,
    /// Its progress.
    pub state: LoanInState,
}

/// Progress of a loan on the borrower's side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoanInState {
    /// The answer is pending.
    Asked {
        /// Requested chunks.
        chunks: u32,
    },
    /// The earmark was accepted.
    Held {
        /// Chunks not returned yet.
        chunks: u32,
        /// The part of `chunks` to vacate: revoked, expired, or the lender exited.
        vacating: u32,
        /// When all of it must be vacated unless it is renewed.
        expires: Nanos,
        /// Whether the lender exited: vacated chunks are released, not earmarked.
        orphaned: bool,
    },
}

/// An order to vacate chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReturnOrder {
    /// The loan.
    pub nonce: Nonce,
    /// Its lender.
    pub peer: Peer,
    /// Number of chunks; 0 if none of the loan is held.
    pub chunks: u32,
}

/// A revocation to send to a borrower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recall {
    /// The loan.
    pub nonce: Nonce,
    /// Its borrower.
    pub peer: Peer,
    /// Chunks to return, including those revoked before.
    pub chunks: u32,
}

/// Vacated chunks that leave the borrower's budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReturnEffect {
    /// The loan; also the earmark's nonce.
    pub nonce: Nonce,
    /// The peer to earmark them for; `None` if the lender exited and they are only released.
    pub to: Option<Peer>,
    /// Number of chunks.
    pub chunks: u32,
}

/// Effect of a peer's exit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadPeerLoans {
    /// Loans given to the exited peer, with the chunks that are back in the budget.
    pub freed: Vec<LoanOut>,
    /// Chunks borrowed from the exited peer, to vacate: its next instance waits for them.
    pub vacate: Vec<ReturnOrder>,
}

/// The book. All counts are chunks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoanBook {
    own_peer: Peer,
    share: u32,
    floor: u32,
    /// Number of nonces chosen.
    count: u64,
    loans_out: Vec<LoanOut>,
    loans_in: Vec<LoanIn>,
    /// The newest nonce answered per borrower: an instance chooses increasing nonces, so an older one is a replay.
    answered: Vec<(Peer, Nonce)>,
}

impl LoanBook {
    /// Returns an empty book of this instance.
    ///
    /// `share` is what the tenant may hold without borrowing. A new instance opens its book only when no peer holds
    /// loans of its previous instance: see [`LoanBook::loans_in_from`] of the peers. `floor` is what it never lends.
    ///
    /// # Panics
    /// If the floor is above the share.
    pub fn new(me: Peer, share: u32, floor: u32) -> LoanBook {
        assert!(floor <= share, "a floor of {floor} chunks is within the share of {share}");
        LoanBook {
            own_peer: me,
            share,
            floor,
            count: 0,
            loans_out: Vec::new(),
            loans_in: Vec::new(),
            answered: Vec::new(),
        }
    }

    /// Returns the book's owner.
    pub const fn me(&self) -> Peer {
        self.own_peer
    }

    /// Returns what the tenant may hold without borrowing.
    pub const fn share(&self) -> u32 {
        self.share
    }

    /// Returns what the tenant never lends.
    pub const fn floor(&self) -> u32 {
        self.floor
    }

    /// Returns the current budget: share + borrowed - lent. It is at least the floor, unless [`LoanBook::set_floor`]
    /// raised the floor.
    pub fn budget(&self) -> u32 {
        self.own_chunks() + self.borrowed()
    }

    /// Returns the chunks lent and not returned, including those being transferred.
    pub fn lent_out(&self) -> u32 {
        self.loans_out.iter().map(|given| given.chunks).sum()
    }

    /// Returns the chunks borrowed and not returned.
    pub fn borrowed(&self) -> u32 {
        self.loans_in.iter().map(LoanIn::held).sum()
    }

    /// Returns the loans given, oldest first.
    pub fn loans_out(&self) -> &[LoanOut] {
        &self.loans_out
    }

    /// Returns the loans taken or requested, in the order of the requests.
    pub fn loans_in(&self) -> &[LoanIn] {
        &self.loans_in
    }

    /// Returns the chunks borrowed from the record `index`, from any instance.
    pub fn loans_in_from(&self, index: u32) -> u32 {
        self.loans_in.iter().filter(|taken| taken.peer.index == index).map(LoanIn::held).sum()
    }

    /// Sets the share. Lowers the floor to it if necessary; the floor then stays lower until it is set again.
    ///
    /// # Panics
    /// If more chunks are lent.
    pub fn set_share(&mut self, share: u32) {
        let lent = self.lent_out();
        assert!(lent <= share, "{lent} chunks that are lent are within the share of {share}");
        (self.share, self.floor) = (share, self.floor.min(share));
    }

    /// Sets the floor: 0 for a sleeping tenant, which lends its floor too; waking raises it again.
    ///
    /// # Panics
    /// If the floor is above the share.
    pub fn set_floor(&mut self, floor: u32) {
        assert!(floor <= self.share, "a floor of {floor} chunks is within the share of {}", self.share);
        self.floor = floor;
    }

    /// Handles the exit of both processes of a peer, as the ledger shows it. Its loans are free again, including
    /// earmarks it had not accepted; chunks borrowed from it must be vacated.
    pub fn on_peer_exit(&mut self, peer: Peer) -> DeadPeerLoans {
        self.answered.retain(|(borrower, _)| *borrower != peer);
        let freed = self.loans_out.extract_if(.., |given| given.peer == peer).collect();
        self.loans_in.retain(|taken| taken.peer != peer || taken.held() > 0);
        let orphans = self.loans_in.iter_mut().filter(|taken| taken.peer == peer);
        DeadPeerLoans { freed, vacate: orphans.map(LoanIn::orphan).collect() }
    }

    /// Returns the share less the loans given.
    fn own_chunks(&self) -> u32 {
        self.share.checked_sub(self.lent_out()).expect("loans are at most the share")
    }
}

impl LoanIn {
    /// Returns the chunks in the borrower's budget.
    pub fn held(&self) -> u32 {
        match self.state {
            LoanInState::Asked { .. } => 0,
            LoanInState::Held { chunks, .. } => chunks,
        }
    }

    /// Returns the chunks to vacate.
    pub fn vacating(&self) -> u32 {
        match self.state {
            LoanInState::Asked { .. } => 0,
            LoanInState::Held { vacating, .. } => vacating,
        }
    }

    fn orphan(&mut self) -> ReturnOrder {
        if let LoanInState::Held { chunks, vacating, orphaned, .. } = &mut self.state {
            (*vacating, *orphaned) = (*chunks, true);
        }
        self.vacate()
    }

    fn vacate(&self) -> ReturnOrder {
        ReturnOrder { nonce: self.nonce, peer: self.peer, chunks: self.vacating() }
    }
}
