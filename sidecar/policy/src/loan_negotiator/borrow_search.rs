//! Searches for memory: a survey, then one peer after the other, each asked once.

use super::search::{AskBackoff, SILENCE_MAX_NS, Search};
use super::{LoanControl, LoanNegotiator, NegotiationPolicy, PeerCommand};
use crate::ids::Nanos;
use crate::loans::TransferKind;
use crate::peers::Peer;
use crate::peers::loan_denied::LoanDenied;
use crate::peers::loans::Nonce;
use crate::peers::victim::{self, Borrower, NextUseEstimate, PeerView, Victim};
use crate::reason::Reason;

impl LoanNegotiator {
    /// Starts a search if KV is short, and continues the current one.
    pub(super) fn continue_search(&mut self, now: Nanos, loans: &mut dyn LoanControl) {
        match &self.search {
            Search::Idle => self.begin_search(now, loans),
            Search::Surveying { since } if now.since(*since) >= self.policy.ask_patience_ns => {
                self.end_search(now, loans);
            }
            Search::Asking { since, nonce, .. } => {
                let nonce = *nonce;
                let known = self.book.loans_in().iter().any(|taken| taken.nonce == nonce);
                if !known {
                    // The request was revoked before it was granted.
                    self.ask_next(now, loans);
                } else if now.since(*since) >= self.policy.ask_patience_ns {
                    if let Ok(peer) = self.book.timed_out(nonce) {
                        self.commands.push(PeerCommand::Withdraw { peer, nonce });
                        self.record_timeout(now, peer);
                    }
                    self.ask_next(now, loans);
                }
            }
            _ => {}
        }
    }

    fn begin_search(&mut self, now: Nanos, loans: &mut dyn LoanControl) {
        if loans.borrow_request().is_none() || self.awaits_loan_return || self.is_loan_arriving() {
            return;
        }
        if now < self.next_ask_at {
            loans.on_borrow_denied();
            return;
        }
        self.search = Search::Surveying { since: now };
        self.commands.push(PeerCommand::Survey);
    }

    /// Whether the bytes of a loan are being transferred.
    fn is_loan_arriving(&self) -> bool {
        self.arriving.iter().any(|arrival| arrival.kind == TransferKind::Lend)
    }

    /// Ends a search without a loan.
    fn end_search(&mut self, now: Nanos, loans: &mut dyn LoanControl) {
        self.search = Search::Idle;
        self.next_ask_at = now.plus(self.policy.retry_ns);
        loans.on_borrow_denied();
    }

    pub(super) fn ask_next(&mut self, now: Nanos, loans: &mut dyn LoanControl) {
        let Search::Asking { left, .. } = &mut self.search else { return };
        let mut left = core::mem::take(left);
        let Some(victim) = self.next_victim(&left, now, loans) else {
            return self.end_search(now, loans);
        };
        left.retain(|view| view.peer != victim.peer);
        let nonce = self.book.ask(victim.peer, victim.chunks);
        let ttl_ns = self.policy.ttl_ns;
        self.commands.push(PeerCommand::Ask { peer: victim.peer, nonce, chunks: victim.chunks, ttl_ns });
        self.search = Search::Asking { since: now, nonce, left };
    }

    /// Returns the next peer to ask and the chunks to ask for, if the remaining supply is useful. Evaluated again
    /// before each request, because a denial reduces the supply.
    fn next_victim(&self, left: &[PeerView], now: Nanos, loans: &mut dyn LoanControl) -> Option<Victim> {
        let need_chunks = loans.borrow_request()?;
        let borrower = self.policy.borrower(need_chunks, loans.state().next_use);
        let supply = victim::supply(left, &borrower, now);
        let covered = supply.more_unknown || supply.chunks >= need_chunks;
        let need_chunks = if covered { need_chunks } else { loans.useful_loan_size(supply.chunks) };
        if need_chunks == 0 && !left.is_empty() {
            loans.count(Reason::PeersShort);
        }
        victim::order(left, &Borrower { need_chunks, ..borrower }, now).first().copied()
    }

    /// Handles a survey's result: asks the peers that may lend, one after the other.
    pub(super) fn on_survey(&mut self, now: Nanos, peers: &[PeerView], loans: &mut dyn LoanControl) {
        let Search::Surveying { since } = self.search else { return };
        let paused =
            |peer: Peer| self.ask_backoffs.iter().any(|paused| paused.peer == peer && now < paused.until);
        let left = peers.iter().filter(|view| !paused(view.peer)).copied().collect();
        self.search = Search::Asking { since, nonce: Nonce(0), left };
        self.ask_next(now, loans);
    }

    /// Excludes a peer that did not answer in time, for twice as long each time, because every search would wait for
    /// it.
    fn record_timeout(&mut self, now: Nanos, peer: Peer) {
        let known = self.ask_backoffs.iter().position(|paused| paused.peer == peer);
        let before_ns = known.map_or(self.policy.retry_ns, |at| self.ask_backoffs.swap_remove(at).pause_ns);
        let pause_ns = before_ns.saturating_mul(2).min(SILENCE_MAX_NS);
        self.ask_backoffs.push(AskBackoff { peer, until: now.plus(pause_ns), pause_ns });
    }

    /// Excludes a peer that denied until its answer can change. A denial without a reason counts as no answer.
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

    /// Removes the peer's exclusion.
    pub(super) fn clear_timeouts(&mut self, peer: Peer) {
        self.ask_backoffs.retain(|paused| paused.peer != peer);
    }
}

impl NegotiationPolicy {
    fn borrower(&self, need_chunks: u32, next_use: NextUseEstimate) -> Borrower<'_> {
        Borrower {
            priority: self.priority,
            need_chunks,
            rule: self.rule,
            order: &self.order,
            min_residence_ns: self.min_residence_ns,
            next_use,
        }
    }
}
