//! Tenants that exchange messages with loss, duplication, reordering and exits, over a ledger that is always correct.

use std::fmt::Debug;

use sluice_policy::ids::Nanos;
use sluice_policy::peers::Peer;
use sluice_policy::peers::loans::{LoanBook, LoanError, Nonce};

use network::{Message, MessageBody};

pub mod network;

const TTL_NS: u64 = 50;

/// A disabled safety mechanism.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    None,
    /// The lender counts its bytes as its own at expiry.
    ExpiryTransfers,
    /// The borrower accepts an answer without its earmark.
    TrustsTheAnswer,
    /// The lender counts an earmark that it reads twice as two.
    ReturnedTwice,
    /// A new instance does not wait until its previous instance's memory is vacated.
    RestartsAtOnce,
}

/// An earmark in the record of `owner`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Earmark {
    owner: Peer,
    to: Peer,
    nonce: Nonce,
    chunks: u32,
    /// Whether it returns to the lender.
    pub returns: bool,
}

pub struct Tenant {
    pub share: u32,
    floor: u32,
    /// `None` while it is not running.
    pub book: Option<LoanBook>,
    /// Exits that were not reported to it yet.
    exit_notices: Vec<Peer>,
}

pub struct LoanSimulation {
    flaw: Flaw,
    now: u64,
    instances: u64,
    pub tenants: Vec<Tenant>,
    pub earmarks: Vec<Earmark>,
    pub network: Vec<Message>,
}

impl LoanSimulation {
    pub fn new(shares: &[(u32, u32)], flaw: Flaw) -> LoanSimulation {
        let tenant = |(index, (share, floor)): (usize, &(u32, u32))| {
            let me = Peer { index: index as u32, instance: index as u64 + 1 };
            let book = Some(LoanBook::new(me, *share, *floor));
            Tenant { share: *share, floor: *floor, book, exit_notices: Vec::new() }
        };
        let tenants: Vec<Tenant> = shares.iter().enumerate().map(tenant).collect();
        let instances = tenants.len() as u64;
        LoanSimulation { flaw, now: 0, instances, tenants, earmarks: Vec::new(), network: Vec::new() }
    }

    fn capacity(&self) -> u32 {
        self.tenants.iter().map(|tenant| tenant.share).sum()
    }

    /// Returns the budgets of the running tenants and the chunks in transfer between them.
    fn promised(&self) -> u32 {
        let budgets: u32 = self.books().map(LoanBook::budget).sum();
        budgets + self.earmarks.iter().map(|earmark| earmark.chunks).sum::<u32>()
    }

    pub fn books(&self) -> impl Iterator<Item = &LoanBook> {
        self.tenants.iter().filter_map(|tenant| tenant.book.as_ref())
    }

    fn me(&self, index: usize) -> Option<Peer> {
        self.tenants[index].book.as_ref().map(LoanBook::me)
    }

    /// Returns the book of this instance.
    fn book(&mut self, peer: Peer) -> Option<&mut LoanBook> {
        let book = self.tenants[peer.index as usize].book.as_mut();
        book.filter(|book| book.me() == peer)
    }

    fn instance_of(&self, peer: Peer) -> bool {
        self.me(peer.index as usize) == Some(peer)
    }

    /// Removes an earmark from the ledger, if it exists.
    fn take(&mut self, owner: Peer, nonce: Nonce, returns: bool) -> Option<Earmark> {
        let same = |e: &Earmark| e.owner == owner && e.nonce == nonce && e.returns == returns;
        let at = self.earmarks.iter().position(same)?;
        Some(self.earmarks.remove(at))
    }

    // Operations of the tenants.

    fn ask(&mut self, me: Peer, of: usize, chunks: u32) {
        let Some(lender) = self.me(of).filter(|lender| *lender != me) else { return };
        let nonce = self.book(me).expect("it lives").ask(lender, chunks);
        self.send(me, lender, nonce, MessageBody::Ask(chunks));
    }

    fn withdraw(&mut self, me: Peer, pick: usize) {
        let book = self.book(me).expect("it lives");
        let Some(nonce) = pick_from(book.loans_in(), pick).map(|taken| taken.nonce) else { return };
        if let Ok(lender) = attempt(book, |book| book.timed_out(nonce)) {
            self.send(me, lender, nonce, MessageBody::Cancel);
        }
    }

    fn revoke(&mut self, me: Peer, pick: usize, chunks: u32) {
        let book = self.book(me).expect("it lives");
        let Some(nonce) = pick_from(book.loans_out(), pick).map(|given| given.nonce) else { return };
        let recall = attempt(book, |book| book.revoke(nonce, chunks)).expect("it is in the book");
        self.send(me, recall.peer, nonce, MessageBody::Revoke(recall.chunks));
    }

    fn ask_to_renew(&mut self, me: Peer, pick: usize) {
        let book = self.book(me).expect("it lives");
        let Some(taken) = pick_from(book.loans_in(), pick).copied() else { return };
        self.send(me, taken.peer, taken.nonce, MessageBody::Renew);
    }

    /// Returns chunks of a loan; the ledger has one earmark per nonce at a time.
    fn give_back(&mut self, me: Peer, pick: usize, chunks: u32) {
        let book = self.book(me).expect("it lives");
        let Some(nonce) = pick_from(book.loans_in(), pick).map(|taken| taken.nonce) else { return };
        self.give_back_of(me, nonce, chunks);
    }

    fn give_back_of(&mut self, me: Peer, nonce: Nonce, chunks: u32) {
        let waits = |e: &Earmark| e.owner == me && e.nonce == nonce;
        if self.earmarks.iter().any(waits) {
            return;
        }
        let book = self.book(me).expect("it lives");
        let Ok(gave) = attempt(book, |book| book.on_gave_back(nonce, chunks)) else { return };
        if let Some(to) = gave.to.filter(|lender| self.instance_of(*lender)) {
            self.earmarks.push(Earmark { owner: me, to, nonce, chunks: gave.chunks, returns: true });
        }
    }

    /// Accepts the chunks returned to this tenant.
    fn collect(&mut self, me: Peer) {
        let mine = |e: &&Earmark| e.to == me && e.returns;
        for earmark in self.earmarks.iter().filter(mine).copied().collect::<Vec<_>>() {
            self.take(earmark.owner, earmark.nonce, true).expect("no other tenant takes it");
            let book = self.book(me).expect("it lives");
            // A peer whose exit was reported returns nothing: its loans were already freed.
            let _ = attempt(book, |book| book.returned(earmark.nonce, earmark.owner, earmark.chunks));
            if self.flaw == Flaw::ReturnedTwice {
                let book = self.book(me).expect("it lives");
                let _ = attempt(book, |book| book.returned(earmark.nonce, earmark.owner, earmark.chunks));
            }
        }
    }

    /// Takes back overdue earmarks that were not accepted.
    fn take_overdue_back(&mut self, me: Peer) {
        let now = Nanos(self.now);
        let overdue: Vec<Nonce> =
            self.book(me).expect("it lives").overdue(now).map(|given| given.nonce).collect();
        for nonce in overdue {
            self.take_back(me, nonce);
        }
    }

    fn take_back(&mut self, me: Peer, nonce: Nonce) {
        let found = self.take(me, nonce, false);
        if let Some(earmark) = found {
            let book = self.book(me).expect("it lives");
            assert_eq!(attempt(book, |book| book.on_taken_back(nonce)), Ok(earmark.chunks));
        } else if self.flaw == Flaw::ExpiryTransfers {
            let book = self.book(me).expect("it lives");
            let _ = attempt(book, |book| book.on_taken_back(nonce));
        }
    }

    fn expire(&mut self, me: Peer) {
        let now = Nanos(self.now);
        let book = self.book(me).expect("it lives");
        for vacate in book.expired(now) {
            let taken = book.loans_in().iter().find(|taken| taken.nonce == vacate.nonce);
            assert_eq!(taken.map(|taken| (taken.peer, taken.vacating())), Some((vacate.peer, vacate.chunks)));
        }
    }

    // Exit and restart.

    fn kill(&mut self, index: usize) {
        let Some(dead) = self.me(index) else { return };
        self.tenants[index].book = None;
        self.tenants[index].exit_notices.clear();
        self.earmarks.retain(|e| e.owner != dead && !(e.returns && e.to == dead));
        for tenant in self.tenants.iter_mut().filter(|tenant| tenant.book.is_some()) {
            tenant.exit_notices.push(dead);
        }
    }

    fn remove_exited(&mut self, me: Peer, pick: usize) {
        let obituaries = &mut self.tenants[me.index as usize].exit_notices;
        if obituaries.is_empty() {
            return;
        }
        let dead = obituaries.remove(pick % obituaries.len());
        // The ledger no longer counts earmarks for an exited peer; the lender takes them back.
        self.earmarks.retain(|e| !(e.owner == me && e.to == dead));
        let book = self.book(me).expect("it lives");
        let before = book.budget();
        let after_exit = book.on_peer_exit(dead);
        let freed: u32 = after_exit.freed.iter().map(|given| given.chunks).sum();
        assert_eq!(book.budget(), before + freed);
    }

    fn restart(&mut self, index: usize) {
        let held: u32 = self.books().map(|book| book.loans_in_from(index as u32)).sum();
        if self.tenants[index].book.is_some() || (held > 0 && self.flaw != Flaw::RestartsAtOnce) {
            return;
        }
        self.instances += 1;
        let me = Peer { index: index as u32, instance: self.instances };
        let tenant = &mut self.tenants[index];
        tenant.book = Some(LoanBook::new(me, tenant.share, tenant.floor));
    }

    // Runs.

    pub fn apply(&mut self, word: u64) {
        let (kind, index, pick) =
            (word % 16, (word >> 8) as usize % self.tenants.len(), (word >> 16) as usize);
        let chunks = 1 + (word >> 32) as u32 % 12;
        match (kind, self.me(index)) {
            (0..=3, _) => self.deliver(pick, (word >> 40) as u32),
            (4, _) => self.now += (word >> 40) % TTL_NS,
            (5, _) if word >> 48 & 7 == 0 => self.kill(index),
            (6, _) => self.restart(index),
            (7 | 8, Some(me)) => self.ask(me, pick % self.tenants.len(), chunks),
            (9, Some(me)) => self.withdraw(me, pick),
            (10, Some(me)) => self.revoke(me, pick, chunks),
            (11, Some(me)) => self.ask_to_renew(me, pick),
            (12, Some(me)) => self.give_back(me, pick, chunks),
            (13, Some(me)) => self.collect(me),
            (14, Some(me)) => {
                self.expire(me);
                self.take_overdue_back(me);
            }
            (15, Some(me)) => self.remove_exited(me, pick),
            _ => {}
        }
    }

    /// Checks that no byte is promised twice, that none is lost while all tenants run and know of all exits, and that
    /// no tenant is below its floor.
    fn check_invariants(&self) -> Result<(), String> {
        let (promised, capacity) = (self.promised(), self.capacity());
        let settled = self.tenants.iter().all(|t| t.book.is_some() && t.exit_notices.is_empty());
        if promised > capacity || (settled && promised < capacity) {
            return Err(format!("{promised} of {capacity} chunks are promised"));
        }
        let low = self.books().find(|book| book.budget() < book.floor());
        low.map_or(Ok(()), |book| Err(format!("participant {} is below its floor", book.me().index)))
    }

    pub fn run(&mut self, words: &[u64]) -> Result<(), String> {
        for word in words {
            self.apply(*word);
            self.check_invariants()?;
        }
        Ok(())
    }

    /// Drops all messages and lets all timers expire; each tenant acts on its own.
    pub fn settle(&mut self) -> Result<(), String> {
        self.network.clear();
        for _ in 0..3 {
            self.now += 2 * TTL_NS;
            for index in 0..self.tenants.len() {
                self.restart(index);
                if let Some(me) = self.me(index) {
                    self.settle_one(me);
                }
                self.check_invariants()?;
            }
            self.network.clear();
        }
        Ok(())
    }

    fn settle_one(&mut self, me: Peer) {
        while !self.tenants[me.index as usize].exit_notices.is_empty() {
            self.remove_exited(me, 0);
        }
        for pick in (0..self.book(me).expect("it lives").loans_in().len()).rev() {
            self.withdraw(me, pick);
        }
        self.expire(me);
        let taken = self.book(me).expect("it lives").loans_in().iter();
        let vacating: Vec<_> = taken.map(|taken| (taken.nonce, taken.vacating())).collect();
        for (nonce, chunks) in vacating.into_iter().filter(|(_, chunks)| *chunks > 0) {
            self.give_back_of(me, nonce, chunks);
        }
        self.collect(me);
        self.take_overdue_back(me);
    }
}

/// Checks that a rejected operation leaves the book unchanged.
fn attempt<T: Debug>(
    book: &mut LoanBook,
    order: impl FnOnce(&mut LoanBook) -> Result<T, LoanError>,
) -> Result<T, LoanError> {
    let before = book.clone();
    let result = order(book);
    if result.is_err() {
        assert_eq!(*book, before, "a refused message changes nothing");
    }
    result
}

fn pick_from<T>(list: &[T], pick: usize) -> Option<&T> {
    list.get(pick.checked_rem(list.len())?)
}
