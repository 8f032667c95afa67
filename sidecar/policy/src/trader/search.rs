//! Looking for memory: a survey, then one neighbour after the other, each asked once.

use alloc::vec::Vec;

use super::{Letter, Terms, Trader};
use crate::brain::{Brain, Claim};
use crate::ids::Nanos;
use crate::neighbours::Peer;
use crate::neighbours::grants::Nonce;
use crate::neighbours::victim::{self, Asker, Neighbour, Victim};

/// A neighbour that did not answer is asked again after so long at the latest, nanoseconds.
const SILENCE_MAX_NS: u64 = 5_000_000_000;

/// How far the search for memory is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Search {
    /// Nobody is asked.
    #[default]
    Idle,
    /// The neighbours are being read.
    Surveying { since: Nanos, chunks: u32 },
    /// One is asked; those after it come next.
    Asking { since: Nanos, nonce: Nonce, next: Vec<Victim> },
}

/// A neighbour that did not answer in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Silent {
    peer: Peer,
    /// It is not asked before.
    until: Nanos,
    /// That was so long, nanoseconds.
    pause_ns: u64,
}

impl Trader {
    /// KV is short: a survey, then one neighbour after the other.
    pub(super) fn search_on(&mut self, now: Nanos, brain: &mut Brain) {
        match &self.search {
            Search::Idle => self.begin_search(now, brain),
            Search::Surveying { since, .. } if now.since(*since) >= self.terms.ask_patience_ns => {
                self.end_search(now, brain);
            }
            Search::Asking { since, nonce, .. } => {
                let nonce = *nonce;
                let known = self.book.taken().iter().any(|taken| taken.nonce == nonce);
                if !known {
                    // Revoked before it was granted.
                    self.ask_next(now, brain);
                } else if now.since(*since) >= self.terms.ask_patience_ns {
                    if let Ok(peer) = self.book.timed_out(nonce) {
                        self.letters.push(Letter::Withdraw { peer, nonce });
                        self.note_silence(now, peer);
                    }
                    self.ask_next(now, brain);
                }
            }
            _ => {}
        }
    }

    fn begin_search(&mut self, now: Nanos, brain: &mut Brain) {
        let Some(chunks) = brain.hungry() else { return };
        if self.patient || self.loan_arrives() {
            return;
        }
        if now < self.asked_again_at {
            brain.deny();
            return;
        }
        self.search = Search::Surveying { since: now, chunks };
        self.letters.push(Letter::Survey);
    }

    /// The bytes of a loan are on their way.
    fn loan_arrives(&self) -> bool {
        self.arriving.iter().any(|arrival| arrival.claim == Claim::Loan)
    }

    /// All were asked, or nobody can be.
    fn end_search(&mut self, now: Nanos, brain: &mut Brain) {
        self.search = Search::Idle;
        self.asked_again_at = now.plus(self.terms.retry_ns);
        brain.deny();
    }

    pub(super) fn ask_next(&mut self, now: Nanos, brain: &mut Brain) {
        let Search::Asking { next, .. } = &mut self.search else { return };
        if next.is_empty() || brain.hungry().is_none() {
            return self.end_search(now, brain);
        }
        let victim = next.remove(0);
        let next = core::mem::take(next);
        let nonce = self.book.ask(victim.peer, victim.chunks);
        let ttl_ns = self.terms.ttl_ns;
        self.letters.push(Letter::Ask { peer: victim.peer, nonce, chunks: victim.chunks, ttl_ns });
        self.search = Search::Asking { since: now, nonce, next };
    }

    /// The neighbours as they are now: those that may give something are asked one after the other.
    pub(super) fn surveyed(&mut self, now: Nanos, neighbours: &[Neighbour], brain: &mut Brain) {
        let Search::Surveying { since, chunks } = self.search else { return };
        let silent = |peer: Peer| self.silent.iter().any(|silent| silent.peer == peer && now < silent.until);
        let heard: Vec<_> = neighbours.iter().filter(|neighbour| !silent(neighbour.peer)).copied().collect();
        let next = victims(&heard, &self.terms, chunks, now);
        self.search = Search::Asking { since, nonce: Nonce(0), next };
        self.ask_next(now, brain);
    }

    /// Whoever does not answer in time is not asked for a while, each time for twice as long: every search would wait for it.
    fn note_silence(&mut self, now: Nanos, peer: Peer) {
        let known = self.silent.iter().position(|silent| silent.peer == peer);
        let before_ns = known.map_or(self.terms.retry_ns, |at| self.silent.swap_remove(at).pause_ns);
        let pause_ns = before_ns.saturating_mul(2).min(SILENCE_MAX_NS);
        self.silent.push(Silent { peer, until: now.plus(pause_ns), pause_ns });
    }

    /// It has answered in time.
    pub(super) fn forget_silence(&mut self, peer: Peer) {
        self.silent.retain(|silent| silent.peer != peer);
    }
}

fn victims(neighbours: &[Neighbour], terms: &Terms, chunks: u32, now: Nanos) -> Vec<Victim> {
    let asker = Asker {
        priority: terms.priority,
        need_chunks: chunks,
        rule: terms.rule,
        order: &terms.order,
        min_residence_ns: terms.min_residence_ns,
    };
    victim::order(neighbours, &asker, now)
}
