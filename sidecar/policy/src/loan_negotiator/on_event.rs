//! Handles messages from peers.

use alloc::vec::Vec;

use super::{Arrival, LoanControl, LoanNegotiator, PeerCommand, PeerEvent, Search};
use crate::action::Earmark;
use crate::ids::Nanos;
use crate::loans::TransferKind;
use crate::peers::Peer;
use crate::peers::loan_denied::LoanDenied;
use crate::peers::loans::{LoanOut, Nonce};
use crate::reason::Reason;

impl LoanNegotiator {
    /// Handles a message. A message that does not match the book has no effect on it.
    pub fn on_event(&mut self, now: Nanos, event: PeerEvent, loans: &mut dyn LoanControl) {
        self.update_residence(now, loans);
        // The message may concern a transfer that ended since the last boundary.
        self.process_transfer_results(now, loans);
        match event {
            PeerEvent::Survey(peers) => self.on_survey(now, &peers, loans),
            PeerEvent::Asked { peer, nonce, chunks, ttl_ns } => {
                self.on_ask(now, (peer, nonce), chunks, ttl_ns, loans)
            }
            PeerEvent::Withdrawn { peer, nonce } => self.on_withdrawn(peer, nonce, loans),
            PeerEvent::Revoked { peer, nonce, chunks } => {
                self.on_revoked(Earmark { peer, nonce }, chunks, loans)
            }
            PeerEvent::Granted { peer, nonce, chunks, ttl_ns } => {
                self.on_granted(now, Earmark { peer, nonce }, chunks, ttl_ns);
            }
            PeerEvent::Refused { peer, nonce, why } => self.on_refused(now, (peer, nonce), why, loans),
            PeerEvent::Prolonged { peer, nonce, ttl_ns } => {
                self.on_renewed_by_lender(now, peer, nonce, ttl_ns)
            }
            PeerEvent::Renewed { peer, nonce, ttl_ns } => {
                // A loan that must be returned is not extended.
                let _ = self.book.renewed(nonce, peer, now.plus(ttl_ns));
            }
            PeerEvent::Returned { peer, nonce, chunks } => self.on_returned(Earmark { peer, nonce }, chunks),
            PeerEvent::TookBack { nonce } => self.on_taken_back(nonce, loans),
            PeerEvent::Claimed { peer, nonce, chunks } => self.on_claimed((peer, nonce), chunks, loans),
            PeerEvent::Terms(terms) => self.set_policy(terms),
            PeerEvent::Died(peer) => self.on_peer_exit(peer, loans),
        }
    }

    /// Stops a loan that is still being vacated; takes back one that is earmarked and not accepted.
    fn on_withdrawn(&mut self, peer: Peer, nonce: Nonce, loans: &mut dyn LoanControl) {
        if !self.lends(Earmark { peer, nonce }) {
            return;
        }
        if loans.cancel_loan(Earmark { peer, nonce }) {
            // Nothing of it was transferred.
            let _ = self.book.on_taken_back(nonce);
        } else {
            self.commands.push(PeerCommand::TakeBack { peer, nonce });
        }
    }

    /// Handles a revocation. A loan that is being accepted now is returned after its arrival.
    fn on_revoked(&mut self, earmark: Earmark, chunks: u32, loans: &mut dyn LoanControl) {
        let Earmark { peer, nonce } = earmark;
        self.arriving.retain(|arrival| arrival.ordered || arrival.earmark != earmark);
        let arrives = self.arriving.iter().any(|arrival| arrival.earmark == earmark);
        match self.book.revoked(nonce, peer, chunks) {
            Ok(vacate) if vacate.chunks > 0 => self.send_debts(&[vacate], loans),
            _ if arrives || loans.debt_chunks(earmark) > 0 => {}
            _ => self.commands.push(PeerCommand::Return { peer, nonce, chunks: 0 }),
        }
    }

    fn on_granted(&mut self, now: Nanos, earmark: Earmark, chunks: u32, ttl_ns: u64) {
        let Earmark { peer, nonce } = earmark;
        if self.book.is_expected(nonce, peer, chunks).is_err() {
            // Too late: the lender takes it back.
            self.commands.push(PeerCommand::Withdraw { peer, nonce });
            return;
        }
        self.clear_timeouts(peer);
        self.search = Search::Idle;
        let expires = now.plus(ttl_ns);
        self.arriving.push(Arrival { earmark, chunks, kind: TransferKind::Lend, expires, ordered: false });
    }

    fn on_refused(
        &mut self,
        now: Nanos,
        (peer, nonce): (Peer, Nonce),
        why: Option<LoanDenied>,
        loans: &mut dyn LoanControl,
    ) {
        if self.book.refused(nonce, peer).is_ok() {
            loans.count(Reason::AskRefused);
            self.record_refusal(now, peer, why);
            self.ask_next(now, loans);
        }
    }

    /// Renews a loan that this lender does not want back, and sends the answer.
    fn on_renewed_by_lender(&mut self, now: Nanos, peer: Peer, nonce: Nonce, ttl_ns: u64) {
        let until = self.book.renew(nonce, peer, now.plus(ttl_ns.min(self.policy.ttl_ns)));
        self.commands.push(PeerCommand::Prolong {
            peer,
            nonce,
            ttl_ns: until.map_or(0, |until| until.since(now)),
        });
    }

    fn on_returned(&mut self, earmark: Earmark, chunks: u32) {
        let again = self.arriving.iter().any(|arrival| arrival.earmark == earmark);
        if self.lends(earmark) && !again {
            let expires = Nanos(u64::MAX);
            self.arriving.push(Arrival {
                earmark,
                chunks,
                kind: TransferKind::Return,
                expires,
                ordered: false,
            });
        }
    }

    /// Handles an earmark that the ledger returned: its bytes belong to no tenant, so its chunks are created again.
    fn on_taken_back(&mut self, nonce: Nonce, loans: &mut dyn LoanControl) {
        let struck = self.book.on_taken_back(nonce);
        // The ledger may be ahead of the backend: a transfer in progress recovers its share when it ends.
        if let Some(chunks) = struck.ok().filter(|_| !loans.is_lending(nonce)) {
            loans.recover_share(chunks);
        }
    }

    /// A record belongs to only one instance at a time, so earlier instances have exited, even if no exit was reported.
    fn on_claimed(&mut self, (peer, nonce): (Peer, Nonce), missing: u32, loans: &mut dyn LoanControl) {
        let chunks = self.book.loans_in_from(peer.index).min(missing);
        self.commands.push(PeerCommand::Owes { peer, nonce, chunks, within_ns: self.policy.revoke_bound_ns });
        let taken = self.book.loans_in().iter().map(|taken| taken.peer);
        let partners = taken.chain(self.book.loans_out().iter().map(|given| given.peer));
        let mut former: Vec<Peer> =
            partners.filter(|p| p.index == peer.index && p.instance != peer.instance).collect();
        former.sort_unstable();
        former.dedup();
        former.into_iter().for_each(|life| self.on_peer_exit(life, loans));
    }

    fn on_peer_exit(&mut self, peer: Peer, loans: &mut dyn LoanControl) {
        let after_exit = self.book.on_peer_exit(peer);
        self.clear_timeouts(peer);
        self.arriving.retain(|arrival| arrival.ordered || arrival.earmark.peer != peer);
        for given in &after_exit.freed {
            let chunks = self.ownerless_chunks(given, loans);
            loans.recover_share(chunks);
        }
        self.send_debts(&after_exit.vacate, loans);
    }

    /// Chunks of a loan that no tenant has after the exit of its borrower. What is under way to the borrower or back
    /// completes first, and is recovered or returned then.
    fn ownerless_chunks(&self, given: &LoanOut, loans: &mut dyn LoanControl) -> u32 {
        let earmark = Earmark { peer: given.peer, nonce: given.nonce };
        if loans.is_lending(given.nonce) || loans.cancel_loan(earmark) {
            return 0;
        }
        let comes = |arrival: &&Arrival| arrival.earmark == earmark && arrival.kind == TransferKind::Return;
        let coming: u32 = self.arriving.iter().filter(comes).map(|arrival| arrival.chunks).sum();
        given.chunks.saturating_sub(coming)
    }
}
