//! Trades memory with peers: whom the tenant asks, what it lends and when it revokes. It keeps the loan book and orders
//! transfers from the memory manager. Outgoing messages are [`PeerCommand`]s, incoming ones [`PeerEvent`]s, both plain
//! data.
//!
//! | event | action |
//! |---|---|
//! | KV is short, no memory is free | revoke own loans, else request a survey and ask one peer after the other |
//! | a peer asks | the memory manager reports what it can lend; the loan is recorded, vacated, earmarked, answered |
//! | the tenant has work and lacks layers | revoke own loans, and wait for them up to the bound |
//! | a loan is revoked or expires, or its lender exits | the memory manager returns it before any step |
//! | a new instance lacks chunks that the previous one lent | claim them, wait for the floor; the rest follows later |
//! | a borrowed loan is unused for a while | return it |

use alloc::vec::Vec;

use crate::action::{Action, Earmark};
use crate::ids::Nanos;
use crate::loans::TransferKind;
use crate::peers::loans::{LoanBook, LoanIn, LoanInState, LoanOut, ReturnOrder};
use crate::peers::next_use;

mod borrow_search;
mod check;
mod loan_control;
mod messages;
mod negotiation_policy;
mod on_ask;
mod on_event;
mod on_transfer;
mod pending_revocation;
mod revoke;
mod search;
#[cfg(test)]
mod tests;

pub use loan_control::{LoanControl, LoanState};
pub use messages::{PeerCommand, PeerEvent};
pub use negotiation_policy::NegotiationPolicy;
use pending_revocation::PendingRevocation;
use search::{AskBackoff, Search};
use sluice_common::random::mix;

/// Interval between checks for overdue loans, nanoseconds.
const OVERDUE_RETRY_NS: u64 = 1_000_000_000;

/// Interval between claims of a missing share, nanoseconds.
const CLAIM_RETRY_NS: u64 = 500_000_000;

/// Fixed constants of trade by name, like [`crate::memory_manager::CONSTANTS`].
pub const CONSTANTS: [(&str, u64); 6] = [
    ("pause_max_ns", pending_revocation::ASK_BACKOFF_MAX_NS),
    ("silence_max_ns", search::SILENCE_MAX_NS),
    ("overdue_again_ns", OVERDUE_RETRY_NS),
    ("claim_again_ns", CLAIM_RETRY_NS),
    ("next_use_periods_min", next_use::PERIODS_MIN as u64),
    ("next_use_periods_kept", next_use::PERIODS_KEPT as u64),
];

/// The state of a tenant's trade with its peers.
#[derive(Clone, Debug)]
pub struct LoanNegotiator {
    policy: NegotiationPolicy,
    book: LoanBook,
    search: Search,
    /// Peers that are not asked for a while.
    ask_backoffs: Vec<AskBackoff>,
    /// Since when all layers have memory; `None` while one lacks it.
    fully_resident_since: Option<Nanos>,
    /// No peer is asked before this time.
    next_ask_at: Nanos,
    /// Earmarks for this tenant that are not accepted yet.
    arriving: Vec<Arrival>,
    /// Revoked loans that are not returned yet.
    pending_revocations: Vec<PendingRevocation>,
    /// Whether a revoked loan is being waited for.
    awaits_loan_return: bool,
    /// Time of the next check for overdue loans.
    next_overdue_at: Nanos,
    /// Earliest time of the next renewals, because answers take time.
    next_renewal_at: Nanos,
    /// Time of the next claim of a missing share.
    next_claim_at: Nanos,
    /// Number of loans accepted.
    loans_accepted: u64,
    commands: Vec<PeerCommand>,
}

/// Bytes that a peer earmarked for this tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Arrival {
    earmark: Earmark,
    chunks: u32,
    kind: TransferKind,
    expires: Nanos,
    ordered: bool,
}

impl Arrival {
    /// Whether it repays a recorded loan. A stale message does not: the ledger has less by then, or nothing.
    fn is_repayment(&self, given: &[LoanOut]) -> bool {
        let Earmark { peer, nonce } = self.earmark;
        given.iter().any(|g| g.nonce == nonce && g.peer == peer && g.chunks >= self.chunks)
    }
}

impl LoanNegotiator {
    /// Returns the negotiator of a tenant without loans. `book` is the tenant's own.
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

    /// Returns the loan book.
    pub fn book(&self) -> &LoanBook {
        &self.book
    }

    /// Returns the number of loans accepted so far.
    pub fn loans_accepted(&self) -> u64 {
        self.loans_accepted
    }

    /// Whether a revoked loan is not returned yet.
    pub fn revoking(&self) -> bool {
        self.book.loans_out().iter().any(|given| given.revoked > 0)
    }

    /// Claims `chunks` missing chunks of the share, which peers hold as loans of a previous instance. Repeated at
    /// intervals, because messages can be lost.
    pub fn claim(&mut self, now: Nanos, chunks: u32) {
        if now >= self.next_claim_at {
            self.next_claim_at = now.plus(CLAIM_RETRY_NS);
            self.commands.push(PeerCommand::Claim { chunks });
        }
    }

    /// Sets the terms.
    pub fn set_policy(&mut self, terms: NegotiationPolicy) {
        self.policy = terms;
    }

    /// Returns the messages since the last call, in order.
    pub fn take_commands(&mut self) -> Vec<PeerCommand> {
        core::mem::take(&mut self.commands)
    }

    /// Whether time alone can change the state: an answer, a revocation or the end of a loan is pending.
    pub fn needs_ticks(&self) -> bool {
        self.search != Search::Idle
            || !self.arriving.is_empty()
            || !self.book.loans_in().is_empty()
            || !self.book.loans_out().is_empty()
    }

    /// Runs at every boundary, before the next step is prepared.
    pub fn boundary(&mut self, now: Nanos, loans: &mut dyn LoanControl, out: &mut Vec<Action>) {
        self.update_residence(now, loans);
        self.process_transfer_results(now, loans);
        let LoanState { floor, expected, .. } = loans.state();
        self.book.set_floor(floor);
        if expected > 0 {
            self.claim(now, expected);
        }
        let due = self.book.expired(now);
        self.send_debts(&due, loans);
        self.revoke_loans(now, loans);
        self.continue_search(now, loans);
        self.renew(now);
        self.take_back_overdue(now);
        self.return_spare_loans(loans);
        self.accept_next(loans, out);
    }

    /// Takes back loans that are overdue: if their borrower is gone, they may never have been accepted.
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

    /// Renews loans in use when less than half of their duration remains.
    fn renew(&mut self, now: Nanos) {
        let ttl_ns = self.policy.ttl_ns;
        if now < self.next_renewal_at {
            return;
        }
        let before = self.commands.len();
        let used = self.book.loans_in().iter().filter(|taken| taken.vacating() < taken.held());
        let old = used.filter(|taken| expires(taken).since(now) < ttl_ns / 2);
        let renew_command =
            |taken: &LoanIn| PeerCommand::Renew { peer: taken.peer, nonce: taken.nonce, ttl_ns };
        self.commands.extend(old.map(renew_command));
        if self.commands.len() > before {
            self.next_renewal_at = now.plus(ttl_ns / 8);
        }
    }

    /// Returns loans that the memory manager does not need.
    fn return_spare_loans(&mut self, loans: &mut dyn LoanControl) {
        let mut left = loans.unused_loan();
        if left == 0 {
            return;
        }
        let newest_first: Vec<_> = self.book.loans_in().iter().rev().copied().collect();
        for taken in newest_first {
            let LoanIn { nonce, peer, .. } = taken;
            let chunks = (taken.held() - taken.vacating()).min(left);
            if chunks > 0 && self.book.revoked(nonce, peer, taken.vacating() + chunks).is_ok() {
                loans.queue_transfer(Earmark { peer, nonce }, chunks, TransferKind::Return);
                left -= chunks;
            }
        }
    }

    /// Orders the transfers of due chunks that were not ordered yet.
    fn send_debts(&mut self, due: &[ReturnOrder], loans: &mut dyn LoanControl) {
        for vacate in due {
            let earmark = Earmark { peer: vacate.peer, nonce: vacate.nonce };
            let ordered = loans.debt_chunks(earmark);
            if let Some(chunks) = vacate.chunks.checked_sub(ordered).filter(|chunks| *chunks > 0) {
                loans.queue_transfer(earmark, chunks, TransferKind::Return);
            }
        }
    }

    /// Turns earmarked bytes into chunks, one earmark at a time.
    fn accept_next(&mut self, loans: &mut dyn LoanControl, out: &mut Vec<Action>) {
        if loans.state().is_blocked || self.arriving.iter().any(|arrival| arrival.ordered) {
            return;
        }
        let given = self.book.loans_out();
        self.arriving.retain(|arrival| arrival.kind == TransferKind::Lend || arrival.is_repayment(given));
        if let Some(arrival) = self.arriving.first_mut() {
            arrival.ordered = true;
            loans.accept(arrival.earmark, arrival.chunks, arrival.kind, out);
        }
    }

    /// Returns a digest of the state.
    pub fn digest(&self) -> u64 {
        let counts = [self.book.borrowed(), self.book.lent_out(), self.arriving.len() as u32];
        let searching = u64::from(self.search != Search::Idle) << 1 | u64::from(self.awaits_loan_return);
        counts.into_iter().fold(searching, |word, count| mix(word ^ u64::from(count)))
    }
}

fn expires(taken: &LoanIn) -> Nanos {
    match taken.state {
        LoanInState::Held { expires, .. } => expires,
        LoanInState::Asked { .. } => Nanos(u64::MAX),
    }
}
