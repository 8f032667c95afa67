//! The tenants' messages, and their handling.

use std::fmt::Debug;

use sluice_policy::ids::Nanos;
use sluice_policy::peers::Peer;
use sluice_policy::peers::loans::{LoanBook, LoanError, Nonce};

use super::{Earmark, Flaw, LoanSimulation, TTL_NS, attempt};

#[derive(Clone, Copy, Debug)]
pub enum MessageBody {
    Ask(u32),
    Granted(u32, Nanos),
    Refused,
    Cancel,
    Revoke(u32),
    Renew,
    Renewed(Nanos),
}

#[derive(Clone, Copy, Debug)]
pub struct Message {
    from: Peer,
    to: Peer,
    nonce: Nonce,
    pub body: MessageBody,
}

impl LoanSimulation {
    pub fn send(&mut self, from: Peer, to: Peer, nonce: Nonce, body: MessageBody) {
        self.network.push(Message { from, to, nonce, body });
    }

    pub fn deliver(&mut self, pick: usize, fate: u32) {
        if self.network.is_empty() {
            return;
        }
        let at = pick % self.network.len();
        let message = self.network[at];
        if !fate.is_multiple_of(4) {
            self.network.swap_remove(at); // otherwise it is delivered again
        }
        if !fate.is_multiple_of(5) && self.instance_of(message.to) {
            self.receive(message);
        }
    }

    fn receive(&mut self, message: Message) {
        let Message { from, to: me, nonce, body } = message;
        match body {
            MessageBody::Ask(chunks) => self.answer(message, chunks),
            MessageBody::Granted(chunks, expires) => self.accept(message, chunks, expires),
            MessageBody::Cancel => self.take_back(me, nonce),
            MessageBody::Renew => {
                let until = Nanos(self.now + TTL_NS);
                let book = self.book(me).expect("it lives");
                if let Ok(until) = attempt(book, |book| book.renew(nonce, from, until)) {
                    self.send(me, from, nonce, MessageBody::Renewed(until));
                }
            }
            MessageBody::Refused => self.record(me, |book| book.refused(nonce, from)),
            MessageBody::Revoke(chunks) => self.record(me, |book| book.revoked(nonce, from, chunks)),
            MessageBody::Renewed(until) => self.record(me, |book| book.renewed(nonce, from, until)),
        }
    }

    fn record<T: Debug>(&mut self, me: Peer, order: impl FnOnce(&mut LoanBook) -> Result<T, LoanError>) {
        let _ = attempt(self.book(me).expect("it lives"), order);
    }

    fn answer(&mut self, ask: Message, chunks: u32) {
        let (me, borrower, nonce) = (ask.to, ask.from, ask.nonce);
        if !self.instance_of(borrower) {
            return; // the ledger writes no earmark for an exited instance
        }
        let expires = Nanos(self.now + TTL_NS);
        let book = self.book(me).expect("it lives");
        let chunks = chunks.min(book.unlent_chunks_above_floor());
        match attempt(book, |book| book.lent(nonce, borrower, chunks, expires)) {
            Ok(()) => {
                self.earmarks.push(Earmark { owner: me, to: borrower, nonce, chunks, returns: false });
                self.send(me, borrower, nonce, MessageBody::Granted(chunks, expires));
            }
            Err(LoanError::NoChunks { .. }) => self.send(me, borrower, nonce, MessageBody::Refused),
            Err(LoanError::Replayed { .. }) => {}
            Err(misfit) => panic!("{misfit}"),
        }
    }

    fn accept(&mut self, answer: Message, chunks: u32, expires: Nanos) {
        let (me, lender, nonce) = (answer.to, answer.from, answer.nonce);
        if self.book(me).expect("it lives").is_expected(nonce, lender, chunks).is_err() {
            return;
        }
        let (accepted, trusts) = (self.take(lender, nonce, false), self.flaw == Flaw::TrustsTheAnswer);
        let book = self.book(me).expect("it lives");
        if let Some(earmark) = accepted {
            assert_eq!((earmark.to, earmark.chunks), (me, chunks));
        }
        if accepted.is_some() || trusts {
            attempt(book, |book| book.granted(nonce, lender, chunks, expires)).expect("it was expected");
        } else {
            assert_eq!(attempt(book, |book| book.timed_out(nonce)), Ok(lender), "its earmark is gone");
        }
    }
}
