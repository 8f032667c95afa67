//! What neighbours say.

use alloc::vec::Vec;

use super::{Arrival, LoanNegotiator, PeerCommand, PeerEvent, Search};
use crate::action::Earmark;
use crate::ids::Nanos;
use crate::memory_manager::{MemoryManager, TransferKind};
use crate::peers::Peer;
use crate::peers::loan_denied::LoanDenied;
use crate::peers::loans::Nonce;
use crate::reason::Reason;

impl LoanNegotiator {
    /// A neighbour said something. What does not fit the book changes nothing.
    pub fn on_event(&mut self, now: Nanos, news: PeerEvent, manager: &mut MemoryManager) {
        self.note_residence(now, manager);
        // News may be about what has ended since the last boundary.
        self.take_outcomes(now, manager);
        match news {
            PeerEvent::Survey(neighbours) => self.surveyed(now, &neighbours, manager),
            PeerEvent::Asked { peer, nonce, chunks, ttl_ns } => {
                self.asked(now, (peer, nonce), chunks, ttl_ns, manager)
            }
            PeerEvent::Withdrawn { peer, nonce } => self.withdrawn(peer, nonce, manager),
            PeerEvent::Revoked { peer, nonce, chunks } => {
                self.revoked(Earmark { peer, nonce }, chunks, manager)
            }
            PeerEvent::Granted { peer, nonce, chunks, ttl_ns } => {
                self.granted(now, Earmark { peer, nonce }, chunks, ttl_ns);
            }
            PeerEvent::Refused { peer, nonce, why } => self.refused(now, (peer, nonce), why, manager),
            PeerEvent::Prolonged { peer, nonce, ttl_ns } => self.prolonged(now, peer, nonce, ttl_ns),
            PeerEvent::Renewed { peer, nonce, ttl_ns } => {
                // A loan that has to go back meanwhile goes back.
                let _ = self.book.renewed(nonce, peer, now.plus(ttl_ns));
            }
            PeerEvent::Returned { peer, nonce, chunks } => self.returned(Earmark { peer, nonce }, chunks),
            PeerEvent::TookBack { nonce } => self.took_back(nonce, manager),
            PeerEvent::Claimed { peer, nonce, chunks } => self.claimed((peer, nonce), chunks, manager),
            PeerEvent::Terms(terms) => self.set_terms(terms),
            PeerEvent::Died(peer) => self.died(peer, manager),
        }
    }

    /// A loan that is still being vacated is stopped; one that is earmarked is taken back, if it was not accepted.
    fn withdrawn(&mut self, peer: Peer, nonce: Nonce, manager: &mut MemoryManager) {
        if !self.lends(Earmark { peer, nonce }) {
            return;
        }
        if manager.withdraw(Earmark { peer, nonce }) {
            // Nothing of it had left.
            let _ = self.book.took_back(nonce);
        } else {
            self.letters.push(PeerCommand::TakeBack { peer, nonce });
        }
    }

    /// A loan whose bytes are being accepted at this moment goes back when they have come.
    fn revoked(&mut self, earmark: Earmark, chunks: u32, manager: &mut MemoryManager) {
        let Earmark { peer, nonce } = earmark;
        self.arriving.retain(|arrival| arrival.ordered || arrival.earmark != earmark);
        let arrives = self.arriving.iter().any(|arrival| arrival.earmark == earmark);
        match self.book.revoked(nonce, peer, chunks) {
            Ok(vacate) if vacate.chunks > 0 => self.owe(&[vacate], manager),
            _ if arrives || manager.owed_for(earmark) > 0 => {}
            _ => self.letters.push(PeerCommand::Return { peer, nonce, chunks: 0 }),
        }
    }

    fn granted(&mut self, now: Nanos, earmark: Earmark, chunks: u32, ttl_ns: u64) {
        let Earmark { peer, nonce } = earmark;
        if self.book.expects(nonce, peer, chunks).is_err() {
            // Too late: the lender takes it back.
            self.letters.push(PeerCommand::Withdraw { peer, nonce });
            return;
        }
        self.forget_silence(peer);
        self.search = Search::Idle;
        let expires = now.plus(ttl_ns);
        self.arriving.push(Arrival { earmark, chunks, claim: TransferKind::Lend, expires, ordered: false });
    }

    fn refused(
        &mut self,
        now: Nanos,
        (peer, nonce): (Peer, Nonce),
        why: Option<LoanDenied>,
        manager: &mut MemoryManager,
    ) {
        if self.book.refused(nonce, peer).is_ok() {
            manager.note(Reason::AskRefused);
            self.note_refusal(now, peer, why);
            self.ask_next(now, manager);
        }
    }

    /// A lender prolongs what it does not want back.
    fn prolonged(&mut self, now: Nanos, peer: Peer, nonce: Nonce, ttl_ns: u64) {
        let until = self.book.renew(nonce, peer, now.plus(ttl_ns.min(self.terms.ttl_ns)));
        self.letters.push(PeerCommand::Prolong {
            peer,
            nonce,
            ttl_ns: until.map_or(0, |until| until.since(now)),
        });
    }

    fn returned(&mut self, earmark: Earmark, chunks: u32) {
        let again = self.arriving.iter().any(|arrival| arrival.earmark == earmark);
        if self.lends(earmark) && !again {
            let expires = Nanos(u64::MAX);
            self.arriving.push(Arrival {
                earmark,
                chunks,
                claim: TransferKind::Return,
                expires,
                ordered: false,
            });
        }
    }

    /// The ledger gave an earmark back, so its bytes are nobody's: they are created anew.
    fn took_back(&mut self, nonce: Nonce, manager: &mut MemoryManager) {
        let struck = self.book.took_back(nonce);
        // The ledger may be ahead of the backend: what is still being made is regained when that has ended.
        if let Some(chunks) = struck.ok().filter(|_| !manager.lending(nonce)) {
            manager.recover_share(chunks);
        }
    }

    /// Who has a record now is not who had it before: those lives are over, whether their death was seen or not.
    fn claimed(&mut self, (peer, nonce): (Peer, Nonce), missing: u32, manager: &mut MemoryManager) {
        let chunks = self.book.taken_from(peer.index).min(missing);
        self.letters.push(PeerCommand::Owes { peer, nonce, chunks, within_ns: self.terms.revoke_bound_ns });
        let taken = self.book.taken().iter().map(|taken| taken.peer);
        let partners = taken.chain(self.book.given().iter().map(|given| given.peer));
        let mut former: Vec<Peer> =
            partners.filter(|p| p.index == peer.index && p.instance != peer.instance).collect();
        former.sort_unstable();
        former.dedup();
        former.into_iter().for_each(|life| self.died(life, manager));
    }

    fn died(&mut self, peer: Peer, manager: &mut MemoryManager) {
        let bereaved = self.book.peer_died(peer);
        self.forget_silence(peer);
        self.arriving.retain(|arrival| arrival.ordered || arrival.earmark.peer != peer);
        let coming =
            |arrival: &&Arrival| arrival.earmark.peer == peer && arrival.claim == TransferKind::Return;
        let coming: u32 = self.arriving.iter().filter(coming).map(|arrival| arrival.chunks).sum();
        // A loan that is being made to the dead ends as one that was given: its bytes come back then.
        let elsewhere = manager.forget_loans(peer) + coming;
        if let Some(chunks) = bereaved.freed_chunks.checked_sub(elsewhere).filter(|chunks| *chunks > 0) {
            manager.recover_share(chunks);
        }
        self.owe(&bereaved.vacate, manager);
    }
}
