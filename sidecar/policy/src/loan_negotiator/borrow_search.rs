//! Looking for memory: a survey, then one neighbour after the other, each asked once.

use alloc::vec::Vec;

use super::{LoanNegotiator, NegotiationPolicy, PeerCommand};
use crate::ids::Nanos;
use crate::memory_manager::{MemoryManager, TransferKind};
use crate::peers::Peer;
use crate::peers::loan_denied::LoanDenied;
use crate::peers::loans::Nonce;
use crate::peers::victim::{self, Borrower, PeerView, Victim};
use crate::reason::Reason;

/// A neighbour that did not answer is asked again after so long at the latest, nanoseconds.
pub(super) const SILENCE_MAX_NS: u64 = 5_000_000_000;

/// How far the search for memory is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Search {
    /// Nobody is asked.
    #[default]
    Idle,
    /// The neighbours are being read.
    Surveying { since: Nanos },
    /// One is asked; those who were not asked yet may come next.
    Asking { since: Nanos, nonce: Nonce, left: Vec<PeerView> },
}

/// A neighbour that said no, or did not answer in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AskBackoff {
    peer: Peer,
    /// It is not asked before.
    until: Nanos,
    /// If it is silent then, the next pause is twice as long, nanoseconds.
    pause_ns: u64,
}

impl LoanNegotiator {
    /// KV is short: a survey, then one neighbour after the other.
    pub(super) fn continue_search(&mut self, now: Nanos, manager: &mut MemoryManager) {
        match &self.search {
            Search::Idle => self.begin_search(now, manager),
            Search::Surveying { since } if now.since(*since) >= self.policy.ask_patience_ns => {
                self.end_search(now, manager);
            }
            Search::Asking { since, nonce, .. } => {
                let nonce = *nonce;
                let known = self.book.loans_in().iter().any(|taken| taken.nonce == nonce);
                if !known {
                    // Revoked before it was granted.
                    self.ask_next(now, manager);
                } else if now.since(*since) >= self.policy.ask_patience_ns {
                    if let Ok(peer) = self.book.timed_out(nonce) {
                        self.commands.push(PeerCommand::Withdraw { peer, nonce });
                        self.record_timeout(now, peer);
                    }
                    self.ask_next(now, manager);
                }
            }
            _ => {}
        }
    }

    fn begin_search(&mut self, now: Nanos, manager: &mut MemoryManager) {
        if manager.borrow_request().is_none() || self.awaits_loan_return || self.is_loan_arriving() {
            return;
        }
        if now < self.next_ask_at {
            manager.on_borrow_denied();
            return;
        }
        self.search = Search::Surveying { since: now };
        self.commands.push(PeerCommand::Survey);
    }

    /// The bytes of a loan are on their way.
    fn is_loan_arriving(&self) -> bool {
        self.arriving.iter().any(|arrival| arrival.claim == TransferKind::Lend)
    }

    /// All were asked, or nobody can be.
    fn end_search(&mut self, now: Nanos, manager: &mut MemoryManager) {
        self.search = Search::Idle;
        self.next_ask_at = now.plus(self.policy.retry_ns);
        manager.on_borrow_denied();
    }

    pub(super) fn ask_next(&mut self, now: Nanos, manager: &mut MemoryManager) {
        let Search::Asking { left, .. } = &mut self.search else { return };
        let mut left = core::mem::take(left);
        let Some(victim) = self.next_victim(&left, now, manager) else {
            return self.end_search(now, manager);
        };
        left.retain(|neighbour| neighbour.peer != victim.peer);
        let nonce = self.book.ask(victim.peer, victim.chunks);
        let ttl_ns = self.policy.ttl_ns;
        self.commands.push(PeerCommand::Ask { peer: victim.peer, nonce, chunks: victim.chunks, ttl_ns });
        self.search = Search::Asking { since: now, nonce, left };
    }

    /// Whom to ask next, and for what those who are left can give, if that serves. Looked at anew before each of them: who was
    /// asked before may have said no.
    fn next_victim(&self, left: &[PeerView], now: Nanos, manager: &mut MemoryManager) -> Option<Victim> {
        let need_chunks = manager.borrow_request()?;
        let expects = manager.params().expects_next_use();
        let asker = self.policy.borrower(need_chunks, expects);
        let supply = victim::supply(left, &asker, now);
        let covered = supply.more_unknown || supply.chunks >= need_chunks;
        let need_chunks = if covered { need_chunks } else { manager.useful_loan_size(supply.chunks) };
        if need_chunks == 0 && !left.is_empty() {
            manager.record_shortfall(Reason::NeighboursShort);
        }
        victim::order(left, &Borrower { need_chunks, ..asker }, now).first().copied()
    }

    /// The neighbours as they are now: those that may give something are asked one after the other.
    pub(super) fn is_survey_complete(
        &mut self,
        now: Nanos,
        neighbours: &[PeerView],
        manager: &mut MemoryManager,
    ) {
        let Search::Surveying { since } = self.search else { return };
        let paused =
            |peer: Peer| self.ask_backoffs.iter().any(|paused| paused.peer == peer && now < paused.until);
        let left = neighbours.iter().filter(|neighbour| !paused(neighbour.peer)).copied().collect();
        self.search = Search::Asking { since, nonce: Nonce(0), left };
        self.ask_next(now, manager);
    }

    /// Whoever does not answer in time is not asked for a while, each time for twice as long: every search would wait for it.
    fn record_timeout(&mut self, now: Nanos, peer: Peer) {
        let known = self.ask_backoffs.iter().position(|paused| paused.peer == peer);
        let before_ns = known.map_or(self.policy.retry_ns, |at| self.ask_backoffs.swap_remove(at).pause_ns);
        let pause_ns = before_ns.saturating_mul(2).min(SILENCE_MAX_NS);
        self.ask_backoffs.push(AskBackoff { peer, until: now.plus(pause_ns), pause_ns });
    }

    /// Whoever said no is not asked again before its answer can be another one. Who gave no answer that says anything is
    /// silent.
    pub(super) fn record_refusal(&mut self, now: Nanos, peer: Peer, why: Option<LoanDenied>) {
        let NegotiationPolicy { min_residence_ns, retry_ns, .. } = self.policy;
        let pause_ns = match why {
            None => return self.record_timeout(now, peer),
            Some(LoanDenied::MinResidence { left_ns }) => left_ns.min(min_residence_ns),
            Some(LoanDenied::NotTraded) => SILENCE_MAX_NS,
            Some(
                LoanDenied::Active
                | LoanDenied::AtCap
                | LoanDenied::AtFloor
                | LoanDenied::Nothing
                | LoanDenied::Busy,
            ) => retry_ns,
        };
        self.clear_timeouts(peer);
        self.ask_backoffs.push(AskBackoff { peer, until: now.plus(pause_ns), pause_ns: retry_ns });
    }

    /// It has answered in time.
    pub(super) fn clear_timeouts(&mut self, peer: Peer) {
        self.ask_backoffs.retain(|paused| paused.peer != peer);
    }
}

impl NegotiationPolicy {
    fn borrower(&self, need_chunks: u32, expects: bool) -> Borrower<'_> {
        Borrower {
            priority: self.priority,
            need_chunks,
            rule: self.rule,
            order: &self.order,
            min_residence_ns: self.min_residence_ns,
            expects,
        }
    }
}
