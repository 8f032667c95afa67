//! Looking for memory: a survey, then one neighbour after the other, each asked once.

use alloc::vec::Vec;

use super::{LoanNegotiator, PeerCommand, Terms};
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
    pub(super) fn search_on(&mut self, now: Nanos, manager: &mut MemoryManager) {
        match &self.search {
            Search::Idle => self.begin_search(now, manager),
            Search::Surveying { since } if now.since(*since) >= self.terms.ask_patience_ns => {
                self.end_search(now, manager);
            }
            Search::Asking { since, nonce, .. } => {
                let nonce = *nonce;
                let known = self.book.taken().iter().any(|taken| taken.nonce == nonce);
                if !known {
                    // Revoked before it was granted.
                    self.ask_next(now, manager);
                } else if now.since(*since) >= self.terms.ask_patience_ns {
                    if let Ok(peer) = self.book.timed_out(nonce) {
                        self.letters.push(PeerCommand::Withdraw { peer, nonce });
                        self.note_silence(now, peer);
                    }
                    self.ask_next(now, manager);
                }
            }
            _ => {}
        }
    }

    fn begin_search(&mut self, now: Nanos, manager: &mut MemoryManager) {
        if manager.borrow_request().is_none() || self.patient || self.loan_arrives() {
            return;
        }
        if now < self.asked_again_at {
            manager.on_borrow_denied();
            return;
        }
        self.search = Search::Surveying { since: now };
        self.letters.push(PeerCommand::Survey);
    }

    /// The bytes of a loan are on their way.
    fn loan_arrives(&self) -> bool {
        self.arriving.iter().any(|arrival| arrival.claim == TransferKind::Lend)
    }

    /// All were asked, or nobody can be.
    fn end_search(&mut self, now: Nanos, manager: &mut MemoryManager) {
        self.search = Search::Idle;
        self.asked_again_at = now.plus(self.terms.retry_ns);
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
        let ttl_ns = self.terms.ttl_ns;
        self.letters.push(PeerCommand::Ask { peer: victim.peer, nonce, chunks: victim.chunks, ttl_ns });
        self.search = Search::Asking { since: now, nonce, left };
    }

    /// Whom to ask next, and for what those who are left can give, if that serves. Looked at anew before each of them: who was
    /// asked before may have said no.
    fn next_victim(&self, left: &[PeerView], now: Nanos, manager: &mut MemoryManager) -> Option<Victim> {
        let need_chunks = manager.borrow_request()?;
        let expects = manager.params().expects_next_use();
        let asker = self.terms.asker(need_chunks, expects);
        let supply = victim::supply(left, &asker, now);
        let covered = supply.more_unknown || supply.chunks >= need_chunks;
        let need_chunks = if covered { need_chunks } else { manager.useful_loan_size(supply.chunks) };
        if need_chunks == 0 && !left.is_empty() {
            manager.note(Reason::NeighboursShort);
        }
        victim::order(left, &Borrower { need_chunks, ..asker }, now).first().copied()
    }

    /// The neighbours as they are now: those that may give something are asked one after the other.
    pub(super) fn surveyed(&mut self, now: Nanos, neighbours: &[PeerView], manager: &mut MemoryManager) {
        let Search::Surveying { since } = self.search else { return };
        let paused = |peer: Peer| self.paused.iter().any(|paused| paused.peer == peer && now < paused.until);
        let left = neighbours.iter().filter(|neighbour| !paused(neighbour.peer)).copied().collect();
        self.search = Search::Asking { since, nonce: Nonce(0), left };
        self.ask_next(now, manager);
    }

    /// Whoever does not answer in time is not asked for a while, each time for twice as long: every search would wait for it.
    fn note_silence(&mut self, now: Nanos, peer: Peer) {
        let known = self.paused.iter().position(|paused| paused.peer == peer);
        let before_ns = known.map_or(self.terms.retry_ns, |at| self.paused.swap_remove(at).pause_ns);
        let pause_ns = before_ns.saturating_mul(2).min(SILENCE_MAX_NS);
        self.paused.push(AskBackoff { peer, until: now.plus(pause_ns), pause_ns });
    }

    /// Whoever said no is not asked again before its answer can be another one. Who gave no answer that says anything is
    /// silent.
    pub(super) fn note_refusal(&mut self, now: Nanos, peer: Peer, why: Option<LoanDenied>) {
        let Terms { min_residence_ns, retry_ns, .. } = self.terms;
        let pause_ns = match why {
            None => return self.note_silence(now, peer),
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
        self.forget_silence(peer);
        self.paused.push(AskBackoff { peer, until: now.plus(pause_ns), pause_ns: retry_ns });
    }

    /// It has answered in time.
    pub(super) fn forget_silence(&mut self, peer: Peer) {
        self.paused.retain(|paused| paused.peer != peer);
    }
}

impl Terms {
    fn asker(&self, need_chunks: u32, expects: bool) -> Borrower<'_> {
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
