//! A tenant among its neighbours: whom it asks, what it lends, when it takes back. It keeps the book of grants and tells
//! the memory manager what comes and goes; letters go out as [`PeerCommand`] and come in as [`PeerEvent`], both plain data.
//!
//! | what happens | who acts first |
//! |---|---|
//! | KV is short, nothing is free | the tenant takes back what it lent, else asks for a survey, then one neighbour after the other |
//! | a neighbour asks | the memory manager says what could go; the loan is entered, vacated, earmarked, answered |
//! | the tenant has work and lacks layers | it takes back what it lent, and waits for that no longer than the bound |
//! | a loan is revoked, or ran out, or its lender died | the memory manager owes it, before any step |
//! | a new life lacks what a former one had lent | it tells its neighbours and waits for its floor; the rest comes later |
//! | a borrowed loan was not needed for a while | it goes back |

use alloc::vec::Vec;

use crate::action::{Action, Earmark};
use crate::ids::Nanos;
use crate::memory_manager::{MemoryManager, TransferKind};
use crate::peers::Peer;
use crate::peers::loans::{LoanBook, LoanIn, LoanInState, LoanOut, ReturnOrder};
use crate::peers::next_use;
use crate::peers::victim::VictimRule;

mod borrow_search;
mod messages;
mod on_ask;
mod on_event;
mod on_transfer;
mod revoke;

use borrow_search::Search;
pub use messages::{PeerCommand, PeerEvent};

/// What the directive says about trading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NegotiationPolicy {
    /// Own priority.
    pub priority: i32,
    /// Those of neighbours. While it is active, a tenant lends nothing to who is below it.
    pub priorities: Vec<(Peer, i32)>,
    /// Whom to ask first.
    pub rule: VictimRule,
    /// Order of [`VictimRule::FixedOrder`] and of neighbours that cannot be read.
    pub order: Vec<Peer>,
    /// Nobody gives anything sooner after its layers came back, nanoseconds.
    pub min_residence_ns: u64,
    /// A borrower gives back within this time, nanoseconds.
    pub revoke_bound_ns: u64,
    /// An answer is awaited this long, nanoseconds. Default 20 ms.
    pub ask_patience_ns: u64,
    /// A loan lasts this long unless it is renewed, nanoseconds. Default 10 s.
    pub ttl_ns: u64,
    /// Nobody is asked again so soon after all said no, nanoseconds. Default 100 ms.
    pub retry_ns: u64,
}

impl Default for NegotiationPolicy {
    fn default() -> Self {
        NegotiationPolicy {
            priority: 0,
            priorities: Vec::new(),
            rule: VictimRule::default(),
            order: Vec::new(),
            min_residence_ns: 500_000_000,
            revoke_bound_ns: 200_000_000,
            ask_patience_ns: 20_000_000,
            ttl_ns: 10_000_000_000,
            retry_ns: 100_000_000,
        }
    }
}

/// How often loans whose time is over are looked for, nanoseconds.
const OVERDUE_RETRY_NS: u64 = 1_000_000_000;

/// How often a share that is missing is claimed, nanoseconds.
const CLAIM_RETRY_NS: u64 = 500_000_000;

/// Fixed constants of trade by name, as [`crate::memory_manager::CONSTANTS`].
pub const CONSTANTS: [(&str, u64); 6] = [
    ("pause_max_ns", revoke::ASK_BACKOFF_MAX_NS),
    ("silence_max_ns", borrow_search::SILENCE_MAX_NS),
    ("overdue_again_ns", OVERDUE_RETRY_NS),
    ("claim_again_ns", CLAIM_RETRY_NS),
    ("next_use_periods_min", next_use::PERIODS_MIN as u64),
    ("next_use_periods_kept", next_use::PERIODS_KEPT as u64),
];

/// A tenant among its neighbours.
#[derive(Clone, Debug)]
pub struct LoanNegotiator {
    policy: NegotiationPolicy,
    book: LoanBook,
    search: Search,
    /// Neighbours that are not asked for a while.
    ask_backoffs: Vec<borrow_search::AskBackoff>,
    /// Since when all layers have memory, where they do.
    fully_resident_since: Option<Nanos>,
    /// Nobody is asked before.
    next_ask_at: Nanos,
    /// Earmarks for this tenant that are not accepted yet: of whom, of which loan, how many, as what.
    arriving: Vec<Arrival>,
    /// Loans that were wanted back and have not come.
    pending_revocations: Vec<revoke::PendingRevocation>,
    /// One of them is waited for.
    awaits_loan_return: bool,
    /// Loans whose time is over are looked for again then.
    next_overdue_at: Nanos,
    /// Loans are prolonged again then: an answer takes its time.
    next_renewal_at: Nanos,
    /// What neighbours have of the share is asked for again then.
    next_claim_at: Nanos,
    /// Loans that have come.
    loans_accepted: u64,
    commands: Vec<PeerCommand>,
}

/// Bytes that a neighbour promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Arrival {
    earmark: Earmark,
    chunks: u32,
    claim: TransferKind,
    expires: Nanos,
    ordered: bool,
}

impl Arrival {
    /// It pays what is lent. What was told before does not: the ledger has less by now, or nothing.
    fn is_repayment(&self, given: &[LoanOut]) -> bool {
        let Earmark { peer, nonce } = self.earmark;
        given.iter().any(|g| g.nonce == nonce && g.peer == peer && g.chunks >= self.chunks)
    }
}

impl LoanNegotiator {
    /// A tenant with nothing lent and nothing borrowed. `book` is its own.
    pub fn new(book: LoanBook, terms: NegotiationPolicy) -> LoanNegotiator {
        LoanNegotiator {
            policy: terms,
            book,
            search: Search::Idle,
            ask_backoffs: Vec::new(),
            fully_resident_since: None,
            next_ask_at: Nanos(0),
            arriving: Vec::new(),
            pending_revocations: Vec::new(),
            awaits_loan_return: false,
            next_overdue_at: Nanos(0),
            next_renewal_at: Nanos(0),
            next_claim_at: Nanos(0),
            loans_accepted: 0,
            commands: Vec::new(),
        }
    }

    /// The book of grants, to look at.
    pub fn book(&self) -> &LoanBook {
        &self.book
    }

    /// Loans that have come so far.
    pub fn loans_accepted(&self) -> u64 {
        self.loans_accepted
    }

    /// Something that was revoked is still away.
    pub fn revoking(&self) -> bool {
        self.book.loans_out().iter().any(|given| given.revoked > 0)
    }

    /// Neighbours are told that so many chunks of the share are missing: they hold what a former life of this tenant had
    /// lent them. Told again from time to time, for letters get lost.
    pub fn claim(&mut self, now: Nanos, chunks: u32) {
        if now >= self.next_claim_at {
            self.next_claim_at = now.plus(CLAIM_RETRY_NS);
            self.commands.push(PeerCommand::Claim { chunks });
        }
    }

    /// Other terms from now on.
    pub fn set_policy(&mut self, terms: NegotiationPolicy) {
        self.policy = terms;
    }

    /// Letters since the last call, in order.
    pub fn take_commands(&mut self) -> Vec<PeerCommand> {
        core::mem::take(&mut self.commands)
    }

    /// Time alone can change something: an answer, a revocation or the end of a loan is awaited.
    pub fn needs_ticks(&self) -> bool {
        self.search != Search::Idle
            || !self.arriving.is_empty()
            || !self.book.loans_in().is_empty()
            || !self.book.loans_out().is_empty()
    }

    /// Called at every boundary, before the next step is prepared.
    pub fn boundary(&mut self, now: Nanos, manager: &mut MemoryManager, out: &mut Vec<Action>) {
        self.update_residence(now, manager);
        self.process_transfer_results(now, manager);
        self.book.set_floor(manager.unlent_floor_chunks());
        if manager.expected_chunks() > 0 {
            self.claim(now, manager.expected_chunks());
        }
        let due = self.book.expired(now);
        self.send_debts(&due, manager);
        self.recall(now, manager);
        self.continue_search(now, manager);
        self.renew(now);
        self.take_back_overdue(now);
        self.return_spare_loans(manager);
        self.accept_next(manager, out);
    }

    /// A loan whose time is over may never have been accepted: whoever waits for its answer has gone.
    fn take_back_overdue(&mut self, now: Nanos) {
        if now < self.next_overdue_at {
            return;
        }
        self.next_overdue_at = now.plus(OVERDUE_RETRY_NS);
        let overdue = self
            .book
            .overdue(now)
            .map(|given| PeerCommand::TakeBack { peer: given.peer, nonce: given.nonce });
        self.commands.extend(overdue);
    }

    /// Loans that are in use are prolonged in time: at half of what is left to them.
    fn renew(&mut self, now: Nanos) {
        let ttl_ns = self.policy.ttl_ns;
        if now < self.next_renewal_at {
            return;
        }
        let before = self.commands.len();
        let used = self.book.loans_in().iter().filter(|taken| taken.vacating() < taken.held());
        let old = used.filter(|taken| expires(taken).since(now) < ttl_ns / 2);
        let letter = |taken: &LoanIn| PeerCommand::Renew { peer: taken.peer, nonce: taken.nonce, ttl_ns };
        self.commands.extend(old.map(letter));
        if self.commands.len() > before {
            self.next_renewal_at = now.plus(ttl_ns / 8);
        }
    }

    /// A loan that the memory manager can do without goes back.
    fn return_spare_loans(&mut self, manager: &mut MemoryManager) {
        let mut left = manager.return_unused_loan();
        if left == 0 {
            return;
        }
        let newest_first: Vec<_> = self.book.loans_in().iter().rev().copied().collect();
        for taken in newest_first {
            let LoanIn { nonce, peer, .. } = taken;
            let chunks = (taken.held() - taken.vacating()).min(left);
            if chunks > 0 && self.book.revoked(nonce, peer, taken.vacating() + chunks).is_ok() {
                manager.queue_transfer(Earmark { peer, nonce }, chunks, TransferKind::Return);
                left -= chunks;
            }
        }
    }

    /// What has to leave and was not ordered yet.
    fn send_debts(&mut self, due: &[ReturnOrder], manager: &mut MemoryManager) {
        for vacate in due {
            let earmark = Earmark { peer: vacate.peer, nonce: vacate.nonce };
            let ordered = manager.debt_shortfall(earmark);
            if let Some(chunks) = vacate.chunks.checked_sub(ordered).filter(|chunks| *chunks > 0) {
                manager.queue_transfer(earmark, chunks, TransferKind::Return);
            }
        }
    }

    /// Bytes that wait for this tenant become chunks, one earmark after the other.
    fn accept_next(&mut self, manager: &mut MemoryManager, out: &mut Vec<Action>) {
        if manager.is_blocked() || self.arriving.iter().any(|arrival| arrival.ordered) {
            return;
        }
        let given = self.book.loans_out();
        self.arriving.retain(|arrival| arrival.claim == TransferKind::Lend || arrival.is_repayment(given));
        if let Some(arrival) = self.arriving.first_mut() {
            arrival.ordered = true;
            manager.accept(arrival.earmark, arrival.chunks, arrival.claim, out);
        }
    }

    /// A number that differs when anything here does.
    pub fn digest(&self) -> u64 {
        let counts = [self.book.borrowed(), self.book.lent_out(), self.arriving.len() as u32];
        let searching = u64::from(self.search != Search::Idle) << 1 | u64::from(self.awaits_loan_return);
        counts.into_iter().fold(searching, |word, count| crate::digest::mix(word ^ u64::from(count)))
    }
}

fn expires(taken: &LoanIn) -> Nanos {
    match taken.state {
        LoanInState::Held { expires, .. } => expires,
        LoanInState::Asked { .. } => Nanos(u64::MAX),
    }
}
