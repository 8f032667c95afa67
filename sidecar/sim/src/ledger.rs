//! The ledger file of a GPU as a model: it counts as the real one does and refuses what the real one refuses.
//!
//! One number of chunks for each participant, and promises between two of them ([the protocol](../../../docs/neighbours.md)).

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use sluice_policy::action::{Earmark, Work};
use sluice_policy::event::Failure;
use sluice_policy::peers::Peer;
use sluice_policy::peers::loans::Nonce;

/// The tenants of one GPU share one ledger.
pub type SharedLedger = Rc<RefCell<Ledger>>;

/// One life of a participant.
#[derive(Clone, Debug, Default)]
struct Record {
    held: u32,
    /// By nonce: for which life, how many chunks.
    earmarks: BTreeMap<u64, (u64, u32)>,
    /// Lender's life and nonce.
    accepted: BTreeSet<(u64, u64)>,
}

/// A promise to somebody who lives, and who has not accepted it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promise {
    /// Life of the lender.
    pub from: u64,
    /// Life of the borrower.
    pub to: u64,
    /// The grant.
    pub nonce: Nonce,
    /// How much.
    pub chunks: u32,
}

/// Chunks of one GPU, by life. Who is not in it is dead.
#[derive(Clone, Debug)]
pub struct Ledger {
    capacity: u32,
    records: BTreeMap<u64, Record>,
    /// Planted bug: so many earmarks are not written although their chunks leave.
    pub loses_earmarks: u32,
    /// Planted bug: so many reservations are granted whether they fit or not.
    pub grants_blindly: u32,
}

impl Ledger {
    /// A GPU of `capacity` chunks that nobody holds.
    pub fn new(capacity: u32) -> Ledger {
        Ledger { capacity, records: BTreeMap::new(), loses_earmarks: 0, grants_blindly: 0 }
    }

    /// Chunks of the GPU.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// A life begins.
    ///
    /// # Panics
    /// If there was one of that name.
    pub fn join(&mut self, life: u64) {
        assert!(self.records.insert(life, Record::default()).is_none(), "a life begins once");
    }

    /// What a dead life held and promised is nobody's.
    pub fn die(&mut self, life: u64) {
        self.records.remove(&life).expect("who dies has lived");
    }

    /// Whether it lives.
    pub fn lives(&self, life: u64) -> bool {
        self.records.contains_key(&life)
    }

    /// Chunks that a living participant holds.
    pub fn held(&self, life: u64) -> u32 {
        self.record(life).held
    }

    fn record(&self, life: u64) -> &Record {
        self.records.get(&life).expect("a living record")
    }

    fn record_mut(&mut self, life: u64) -> &mut Record {
        self.records.get_mut(&life).expect("a living record")
    }

    /// Promises to the living that were not accepted.
    pub fn waiting(&self) -> impl Iterator<Item = Promise> + '_ {
        let all = self.records.iter().flat_map(|(from, record)| {
            let promise = |(nonce, (to, chunks)): (&u64, &(u64, u32))| Promise {
                from: *from,
                to: *to,
                nonce: Nonce(*nonce),
                chunks: *chunks,
            };
            record.earmarks.iter().map(promise)
        });
        all.filter(|promise| {
            let to = self.records.get(&promise.to);
            to.is_some_and(|to| !to.accepted.contains(&(promise.from, promise.nonce.0)))
        })
    }

    /// Chunks on their way between two who live.
    pub fn promised(&self) -> u32 {
        self.waiting().map(|promise| promise.chunks).sum()
    }

    fn counted(&self) -> u32 {
        self.records.values().map(|record| record.held).sum::<u32>() + self.promised()
    }

    fn reserve(&mut self, life: u64, chunks: u32) -> bool {
        let mut fits = self.counted() + chunks <= self.capacity;
        if !fits && self.grants_blindly > 0 {
            self.grants_blindly -= 1;
            fits = true;
        }
        if fits {
            self.record_mut(life).held += chunks;
        }
        fits
    }

    fn release(&mut self, life: u64, chunks: u32) {
        self.record_mut(life).held -= chunks;
    }

    fn earmark(&mut self, life: u64, Earmark { peer, nonce }: Earmark, chunks: u32, spare: u32) -> bool {
        let to = peer.instance;
        if !self.lives(to) {
            self.release(life, chunks);
            return true;
        }
        if !self.reserve(life, spare) {
            return false;
        }
        let used = self.record(life).earmarks.contains_key(&nonce.0)
            || self.record(to).accepted.contains(&(life, nonce.0));
        if used {
            self.release(life, spare);
            return false;
        }
        if self.loses_earmarks > 0 {
            self.loses_earmarks -= 1;
        } else {
            self.record_mut(life).earmarks.insert(nonce.0, (to, chunks + spare));
        }
        self.release(life, chunks + spare);
        true
    }

    fn accept(&mut self, life: u64, Earmark { peer, nonce }: Earmark, chunks: u32) -> bool {
        let promise = Promise { from: peer.instance, to: life, nonce, chunks };
        let waits = self.lives(peer.instance) && self.waiting().any(|waiting| waiting == promise);
        if waits {
            let record = self.record_mut(life);
            record.held += chunks;
            record.accepted.insert((peer.instance, nonce.0));
        }
        waits
    }

    /// The promise of `life` is void, if nobody has accepted it.
    pub fn take_back(&mut self, life: u64, nonce: Nonce) -> bool {
        let Some((to, chunks)) = self.record(life).earmarks.get(&nonce.0).copied() else { return false };
        let free = match self.records.get(&to) {
            Some(borrower) => !borrower.accepted.contains(&(life, nonce.0)),
            None => self.counted() + chunks <= self.capacity,
        };
        if free {
            self.record_mut(life).earmarks.remove(&nonce.0);
        }
        free
    }

    /// Puts away what is settled, on both sides.
    pub fn clear(&mut self, life: u64) {
        let waiting: BTreeSet<_> = self.waiting().map(|promise| (promise.from, promise.nonce.0)).collect();
        let living: BTreeSet<u64> = self.records.keys().copied().collect();
        let record = self.record_mut(life);
        record.earmarks.retain(|nonce, (to, _)| waiting.contains(&(life, *nonce)) || !living.contains(to));
        let stands: BTreeSet<_> =
            self.records.iter().flat_map(|(l, r)| r.earmarks.keys().map(|n| (*l, *n))).collect();
        self.record_mut(life).accepted.retain(|entry| stands.contains(entry));
    }

    /// Nothing was ever promised, or all of it is settled and put away.
    pub fn is_quiet(&self) -> bool {
        self.records.values().all(|record| record.earmarks.is_empty() && record.accepted.is_empty())
    }
}

/// The ledger as a device asks it.
#[derive(Clone, Debug)]
pub struct Quota {
    /// Of the GPU.
    pub ledger: SharedLedger,
    /// Whose device it is.
    pub me: Peer,
}

impl Quota {
    /// Counts an order.
    ///
    /// # Errors
    /// Why it cannot be carried out; then nothing was counted.
    pub fn count(&self, work: &Work) -> Result<(), Failure> {
        if self.allows(work) {
            return Ok(());
        }
        let promised = matches!(work, Work::Accept { .. });
        Err(if promised { Failure::Refused } else { Failure::OutOfMemory })
    }

    /// Chunks that were counted are not made after all.
    pub fn give_up(&self, chunks: u32) {
        self.ledger.borrow_mut().release(self.me.instance, chunks);
    }

    fn allows(&self, work: &Work) -> bool {
        let (mut ledger, life) = (self.ledger.borrow_mut(), self.me.instance);
        match work {
            Work::Create(chunks) => ledger.reserve(life, chunks.len() as u32),
            Work::Release(chunks) => {
                ledger.release(life, chunks.len() as u32);
                true
            }
            Work::Lend { chunks, spare_chunks, earmark } => {
                ledger.earmark(life, *earmark, chunks.len() as u32, *spare_chunks)
            }
            Work::Accept { chunks, earmark } => ledger.accept(life, *earmark, chunks.len() as u32),
            _ => true,
        }
    }
}
