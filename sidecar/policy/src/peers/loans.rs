//! The book of grants of one tenant: what it lent, what it borrowed, and so what it may hold.
//!
//! The book decides nothing about devices: budgets follow what the ledger file says, and the caller keeps this order.
//!
//! | side | order |
//! |---|---|
//! | lender, to lend | [`LoanBook::lent`]; vacate down to the budget; earmark; answer. [`LoanBook::took_back`] when the ledger gave the earmark back, or none was written |
//! | borrower, to take | [`LoanBook::expects`]; accept the earmark; [`LoanBook::granted`] |
//! | borrower, to return | vacate; [`LoanBook::gave_back`]; earmark under the grant's nonce |
//! | lender, to have it back | accept that earmark; [`LoanBook::returned`], once for each accepted earmark |
//!
//! Time moves no byte: a grant that ran out is vacated by its borrower and stays lent until the ledger shows it. Only a
//! tenant's own share is lent on, so what it borrowed can always be taken away from it, and no chain forms.
//!
//! A message that does not fit is refused with a [`LoanError`] and changes nothing.

use alloc::vec::Vec;
use core::fmt;

use super::Peer;
use crate::ids::Nanos;

mod borrower;
mod error;
mod lender;

pub use error::LoanError;

/// Bits of a nonce that count within a life.
const COUNT_BITS: u32 = 40;

/// Names a grant, chosen by the borrower. Never 0 and never reused: the low bits of the life's instance over a count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nonce(pub u64);

impl fmt::Display for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// A grant on the lender's side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoanOut {
    /// Its name.
    pub nonce: Nonce,
    /// The borrower.
    pub peer: Peer,
    /// Chunks that have not come back.
    pub chunks: u32,
    /// Chunks that have come back.
    pub returned_chunks: u32,
    /// Of those that have not come back, how many were revoked.
    pub revoked: u32,
    /// When the borrower vacates by itself.
    pub expires: Nanos,
}

/// A grant on the borrower's side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoanIn {
    /// Its name.
    pub nonce: Nonce,
    /// The lender.
    pub peer: Peer,
    /// How far it is.
    pub state: LoanInState,
}

/// How far a borrowed grant is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoanInState {
    /// The answer is awaited.
    Asked {
        /// For so many chunks.
        chunks: u32,
    },
    /// The earmark was accepted.
    Held {
        /// Chunks that were not given back.
        chunks: u32,
        /// Of these, how many have to leave: revoked, expired, or the lender is dead.
        vacating: u32,
        /// When all of it has to leave unless it is renewed.
        expires: Nanos,
        /// The lender is dead: what leaves is released, not earmarked.
        orphaned: bool,
    },
}

/// Chunks to vacate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReturnOrder {
    /// Of this grant.
    pub nonce: Nonce,
    /// Its lender.
    pub peer: Peer,
    /// How many; 0 where nothing of it is held.
    pub chunks: u32,
}

/// What to ask of a borrower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recall {
    /// Of this grant.
    pub nonce: Nonce,
    /// Its borrower.
    pub peer: Peer,
    /// Chunks to give back, those recalled before included.
    pub chunks: u32,
}

/// Chunks that were vacated and leave the borrower's budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReturnEffect {
    /// Of this grant; the earmark's name too.
    pub nonce: Nonce,
    /// Whom to earmark them for; none where the lender is dead and they are only released.
    pub to: Option<Peer>,
    /// How many.
    pub chunks: u32,
}

/// What a death changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadPeerLoans {
    /// Chunks lent to the dead that are back in the budget.
    pub freed_chunks: u32,
    /// What was borrowed from the dead: its next life waits for it.
    pub vacate: Vec<ReturnOrder>,
}

/// The book. Chunks everywhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoanBook {
    own_peer: Peer,
    share: u32,
    floor: u32,
    /// Nonces chosen so far.
    count: u64,
    loans_out: Vec<LoanOut>,
    loans_in: Vec<LoanIn>,
    /// The newest nonce answered for each borrower: a life chooses rising ones, so an older one is a replay.
    answered: Vec<(Peer, Nonce)>,
}

impl LoanBook {
    /// An empty book of this life.
    ///
    /// `share`: what it may hold without asking. A new life opens its book when nobody holds anything of its former one
    /// any more: [`LoanBook::taken_from`] of the others.
    /// `floor`: what it never lends.
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

    /// Whose book it is.
    pub const fn me(&self) -> Peer {
        self.own_peer
    }

    /// What it may hold without asking.
    pub const fn share(&self) -> u32 {
        self.share
    }

    /// What it never lends.
    pub const fn floor(&self) -> u32 {
        self.floor
    }

    /// What it may hold now: share + borrowed - lent. At least its floor, except after [`LoanBook::set_floor`] raised it.
    pub fn budget(&self) -> u32 {
        self.own_chunks() + self.borrowed()
    }

    /// Chunks lent that have not come back, those on their way included.
    pub fn lent_out(&self) -> u32 {
        self.loans_out.iter().map(|given| given.chunks).sum()
    }

    /// Chunks borrowed and not given back.
    pub fn borrowed(&self) -> u32 {
        self.loans_in.iter().map(LoanIn::held).sum()
    }

    /// Grants given, in the order of their beginning.
    pub fn loans_out(&self) -> &[LoanOut] {
        &self.loans_out
    }

    /// Grants taken or asked for, in the order of asking.
    pub fn loans_in(&self) -> &[LoanIn] {
        &self.loans_in
    }

    /// Chunks held of the record `index`, whichever life lent them.
    pub fn loans_in_from(&self, index: u32) -> u32 {
        self.loans_in.iter().filter(|taken| taken.peer.index == index).map(LoanIn::held).sum()
    }

    /// Changes what it may hold without asking. The floor is no larger, until it is set anew.
    ///
    /// # Panics
    /// If more is lent.
    pub fn set_share(&mut self, share: u32) {
        let lent = self.lent_out();
        assert!(lent <= share, "{lent} chunks that are lent are within the share of {share}");
        (self.share, self.floor) = (share, self.floor.min(share));
    }

    /// Changes the floor: a hibernated tenant lends it too (0), one that wakes needs it again.
    ///
    /// # Panics
    /// If the floor is above the share.
    pub fn set_floor(&mut self, floor: u32) {
        assert!(floor <= self.share, "a floor of {floor} chunks is within the share of {}", self.share);
        self.floor = floor;
    }

    /// Somebody's both processes are dead, as the ledger shows. What it borrowed is free again, an earmark that it had
    /// not accepted included; what was borrowed from it has to leave.
    pub fn on_peer_exit(&mut self, peer: Peer) -> DeadPeerLoans {
        self.answered.retain(|(borrower, _)| *borrower != peer);
        let before = self.lent_out();
        self.loans_out.retain(|given| given.peer != peer);
        self.loans_in.retain(|taken| taken.peer != peer || taken.held() > 0);
        let freed_chunks = before - self.lent_out();
        let orphans = self.loans_in.iter_mut().filter(|taken| taken.peer == peer);
        DeadPeerLoans { freed_chunks, vacate: orphans.map(LoanIn::orphan).collect() }
    }

    /// Its own share, less what it lent.
    fn own_chunks(&self) -> u32 {
        self.share.checked_sub(self.lent_out()).expect("no more is lent than the share")
    }
}

impl LoanIn {
    /// Chunks in the borrower's budget.
    pub fn held(&self) -> u32 {
        match self.state {
            LoanInState::Asked { .. } => 0,
            LoanInState::Held { chunks, .. } => chunks,
        }
    }

    /// Chunks that have to leave.
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
