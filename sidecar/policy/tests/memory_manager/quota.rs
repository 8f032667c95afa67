//! Models the ledger file of a GPU: counts and refuses like the real one.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use sluice_policy::action::{Earmark, Work};
use sluice_policy::event::Failure;
use sluice_policy::peers::Peer;
use sluice_policy::peers::loans::Nonce;

/// One instance of a participant.
#[derive(Debug, Default)]
struct Record {
    held: u32,
    /// By nonce: the recipient instance and the number of chunks.
    earmarks: BTreeMap<u64, (u64, u32)>,
    /// Lender instance and nonce.
    accepted: BTreeSet<(u64, u64)>,
}

/// Chunks of one GPU by instance. An instance without a record has exited.
#[derive(Debug)]
pub struct Ledger {
    capacity: u32,
    records: BTreeMap<u64, Record>,
    /// Number of earmarks that are not written although their chunks are released: a broken ledger.
    pub loses: u32,
}

impl Ledger {
    pub fn new(capacity: u32) -> Ledger {
        Ledger { capacity, records: BTreeMap::new(), loses: 0 }
    }

    pub fn join(&mut self, instance: u64) {
        assert!(self.records.insert(instance, Record::default()).is_none(), "a life begins once");
    }

    /// Removes an exited instance; its held and earmarked chunks become free.
    pub fn exit(&mut self, instance: u64) {
        self.records.remove(&instance).expect("who dies has lived");
    }

    pub fn is_running(&self, instance: u64) -> bool {
        self.records.contains_key(&instance)
    }

    pub fn held(&self, instance: u64) -> u32 {
        self.record(instance).held
    }

    fn record(&self, instance: u64) -> &Record {
        self.records.get(&instance).expect("a living record")
    }

    fn record_mut(&mut self, instance: u64) -> &mut Record {
        self.records.get_mut(&instance).expect("a living record")
    }

    /// Returns lender, borrower, nonce and chunks of each unaccepted earmark for a running instance.
    pub fn waiting(&self) -> impl Iterator<Item = (u64, u64, Nonce, u32)> + '_ {
        let all = self.records.iter().flat_map(|(lender, record)| {
            record.earmarks.iter().map(|(nonce, (to, chunks))| (*lender, *to, *nonce, *chunks))
        });
        all.filter(|(lender, to, nonce, _)| {
            self.records.get(to).is_some_and(|to| !to.accepted.contains(&(*lender, *nonce)))
        })
        .map(|(lender, to, nonce, chunks)| (lender, to, Nonce(nonce), chunks))
    }

    pub fn promised(&self) -> u32 {
        self.waiting().map(|(.., chunks)| chunks).sum()
    }

    fn counted(&self) -> u32 {
        self.records.values().map(|record| record.held).sum::<u32>() + self.promised()
    }

    fn reserve(&mut self, instance: u64, chunks: u32) -> bool {
        let fits = self.counted() + chunks <= self.capacity;
        if fits {
            self.record_mut(instance).held += chunks;
        }
        fits
    }

    fn release(&mut self, instance: u64, chunks: u32) {
        self.record_mut(instance).held -= chunks;
    }

    fn earmark(&mut self, instance: u64, Earmark { peer, nonce }: Earmark, chunks: u32, spare: u32) -> bool {
        let to = peer.instance;
        if !self.is_running(to) {
            self.release(instance, chunks);
            return true;
        }
        if !self.reserve(instance, spare) {
            return false;
        }
        let used = self.record(instance).earmarks.contains_key(&nonce.0)
            || self.record(to).accepted.contains(&(instance, nonce.0));
        if used {
            self.release(instance, spare);
            return false;
        }
        if self.loses > 0 {
            self.loses -= 1;
        } else {
            self.record_mut(instance).earmarks.insert(nonce.0, (to, chunks + spare));
        }
        self.release(instance, chunks + spare);
        true
    }

    fn accept(&mut self, instance: u64, Earmark { peer, nonce }: Earmark, chunks: u32) -> bool {
        let waits = self.waiting().any(|w| w == (peer.instance, instance, nonce, chunks))
            && self.is_running(peer.instance);
        if waits {
            let record = self.record_mut(instance);
            record.held += chunks;
            record.accepted.insert((peer.instance, nonce.0));
        }
        waits
    }

    /// Takes back an earmark of `instance` unless it was accepted. Returns whether it was taken back.
    pub fn take_back(&mut self, instance: u64, nonce: Nonce) -> bool {
        let Some((to, chunks)) = self.record(instance).earmarks.get(&nonce.0).copied() else { return false };
        let free = match self.records.get(&to) {
            Some(borrower) => !borrower.accepted.contains(&(instance, nonce.0)),
            None => self.counted() + chunks <= self.capacity,
        };
        if free {
            self.record_mut(instance).earmarks.remove(&nonce.0);
        }
        free
    }

    /// Removes settled entries on both sides.
    pub fn clear(&mut self, instance: u64) {
        let waiting: BTreeSet<_> = self.waiting().map(|(lender, _, nonce, _)| (lender, nonce.0)).collect();
        let running: BTreeSet<u64> = self.records.keys().copied().collect();
        let record = self.record_mut(instance);
        record
            .earmarks
            .retain(|nonce, (to, _)| waiting.contains(&(instance, *nonce)) || !running.contains(to));
        let stands: BTreeSet<_> =
            self.records.iter().flat_map(|(l, r)| r.earmarks.keys().map(|n| (*l, *n))).collect();
        self.record_mut(instance).accepted.retain(|entry| stands.contains(entry));
    }
}

/// The ledger as a device uses it.
#[derive(Clone, Debug)]
pub struct Quota {
    pub ledger: Rc<RefCell<Ledger>>,
    pub me: Peer,
}

impl Quota {
    /// Counts an action, or returns why it is refused.
    pub fn refuses(&self, work: &Work) -> Option<Failure> {
        let promised = matches!(work, Work::Accept { .. });
        let why = if promised { Failure::Refused } else { Failure::OutOfMemory };
        (!self.allows(work)).then_some(why)
    }

    /// Releases counted chunks that were not created.
    pub fn give_up(&self, chunks: u32) {
        self.ledger.borrow_mut().release(self.me.instance, chunks);
    }

    fn allows(&self, work: &Work) -> bool {
        let (mut ledger, instance) = (self.ledger.borrow_mut(), self.me.instance);
        match work {
            Work::Create(chunks) => ledger.reserve(instance, chunks.len() as u32),
            Work::Release(chunks) => {
                ledger.release(instance, chunks.len() as u32);
                true
            }
            Work::Lend { chunks, spare_chunks, earmark } => {
                ledger.earmark(instance, *earmark, chunks.len() as u32, *spare_chunks)
            }
            Work::Accept { chunks, earmark } => ledger.accept(instance, *earmark, chunks.len() as u32),
            Work::Transaction(_)
            | Work::MoveLayerBlocks(_)
            | Work::SwapOut(_)
            | Work::Fetch(_)
            | Work::WriteBack(_)
            | Work::Spill(_)
            | Work::SwapIn(_)
            | Work::Fill(_)
            | Work::DropFills => true,
        }
    }
}
