//! A model of the ledger file of a GPU. It counts and refuses as the real ledger does.
//!
//! It stores a number of chunks per participant and the earmarks between participants
//! ([the protocol](../../../docs/peers.md)).

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use sluice_policy::action::{Earmark, Work};
use sluice_policy::event::Failure;
use sluice_policy::peers::Peer;
use sluice_policy::peers::loans::Nonce;

/// One ledger, shared by the tenants of a GPU.
pub type SharedLedger = Rc<RefCell<SimGpuLedger>>;

/// One instance of a participant.
#[derive(Clone, Debug, Default)]
struct Participant {
    held: u32,
    /// By nonce: the borrower's instance and the number of chunks.
    earmarks: BTreeMap<u64, (u64, u32)>,
    /// Instance of the lender and nonce.
    accepted: BTreeSet<(u64, u64)>,
}

/// An earmark for a live participant that has not accepted it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PendingTransfer {
    /// Instance of the lender.
    pub from: u64,
    /// Instance of the borrower.
    pub to: u64,
    /// Nonce of the grant.
    pub nonce: Nonce,
    /// Number of chunks.
    pub chunks: u32,
}

/// Chunks of one GPU by instance. An instance without an entry has exited.
#[derive(Clone, Debug)]
pub struct SimGpuLedger {
    capacity: u32,
    participants: BTreeMap<u64, Participant>,
    /// Planted bug: this number of earmarks is not written although their chunks are released.
    pub earmarks_to_lose: u32,
    /// Planted bug: this number of reservations is granted although they do not fit.
    pub unchecked_grants: u32,
}

impl SimGpuLedger {
    /// Creates the ledger of a GPU with `capacity` free chunks.
    pub fn new(capacity: u32) -> SimGpuLedger {
        SimGpuLedger { capacity, participants: BTreeMap::new(), earmarks_to_lose: 0, unchecked_grants: 0 }
    }

    /// Returns the number of chunks of the GPU.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Adds an instance.
    ///
    /// # Panics
    /// If the instance is already in the ledger.
    pub fn join(&mut self, instance: u64) {
        assert!(
            self.participants.insert(instance, Participant::default()).is_none(),
            "an instance joins once"
        );
    }

    /// Removes an instance that has exited, with its chunks and earmarks.
    pub fn remove(&mut self, instance: u64) {
        self.participants.remove(&instance).expect("the instance has joined");
    }

    /// Whether the instance is live.
    pub fn is_live(&self, instance: u64) -> bool {
        self.participants.contains_key(&instance)
    }

    /// Returns the number of chunks that a live participant holds.
    pub fn held(&self, instance: u64) -> u32 {
        self.participant(instance).held
    }

    fn participant(&self, instance: u64) -> &Participant {
        self.participants.get(&instance).expect("a living record")
    }

    fn participant_mut(&mut self, instance: u64) -> &mut Participant {
        self.participants.get_mut(&instance).expect("a living record")
    }

    /// Returns the earmarks for live participants that are not accepted yet.
    pub fn pending_transfers(&self) -> impl Iterator<Item = PendingTransfer> + '_ {
        let all = self.participants.iter().flat_map(|(from, record)| {
            let promise = |(nonce, (to, chunks)): (&u64, &(u64, u32))| PendingTransfer {
                from: *from,
                to: *to,
                nonce: Nonce(*nonce),
                chunks: *chunks,
            };
            record.earmarks.iter().map(promise)
        });
        all.filter(|promise| {
            let to = self.participants.get(&promise.to);
            to.is_some_and(|to| !to.accepted.contains(&(promise.from, promise.nonce.0)))
        })
    }

    /// Returns the number of chunks in transfer between live participants.
    pub fn pending_chunks(&self) -> u32 {
        self.pending_transfers().map(|promise| promise.chunks).sum()
    }

    fn used_chunks(&self) -> u32 {
        self.participants.values().map(|record| record.held).sum::<u32>() + self.pending_chunks()
    }

    fn reserve(&mut self, instance: u64, chunks: u32) -> bool {
        let mut fits = self.used_chunks() + chunks <= self.capacity;
        if !fits && self.unchecked_grants > 0 {
            self.unchecked_grants -= 1;
            fits = true;
        }
        if fits {
            self.participant_mut(instance).held += chunks;
        }
        fits
    }

    fn release(&mut self, instance: u64, chunks: u32) {
        self.participant_mut(instance).held -= chunks;
    }

    fn earmark(&mut self, instance: u64, Earmark { peer, nonce }: Earmark, chunks: u32, spare: u32) -> bool {
        let to = peer.instance;
        if !self.is_live(to) {
            self.release(instance, chunks);
            return true;
        }
        if !self.reserve(instance, spare) {
            return false;
        }
        let used = self.participant(instance).earmarks.contains_key(&nonce.0)
            || self.participant(to).accepted.contains(&(instance, nonce.0));
        if used {
            self.release(instance, spare);
            return false;
        }
        if self.earmarks_to_lose > 0 {
            self.earmarks_to_lose -= 1;
        } else {
            self.participant_mut(instance).earmarks.insert(nonce.0, (to, chunks + spare));
        }
        self.release(instance, chunks + spare);
        true
    }

    fn accept(&mut self, instance: u64, Earmark { peer, nonce }: Earmark, chunks: u32) -> bool {
        let promise = PendingTransfer { from: peer.instance, to: instance, nonce, chunks };
        let waits = self.is_live(peer.instance) && self.pending_transfers().any(|waiting| waiting == promise);
        if waits {
            let record = self.participant_mut(instance);
            record.held += chunks;
            record.accepted.insert((peer.instance, nonce.0));
        }
        waits
    }

    /// Cancels an earmark of `instance` and returns whether it could. A live borrower must not have accepted it. If the
    /// borrower has exited, the GPU must have that number of chunks free.
    pub fn take_back(&mut self, instance: u64, nonce: Nonce) -> bool {
        let Some((to, chunks)) = self.participant(instance).earmarks.get(&nonce.0).copied() else {
            return false;
        };
        let free = match self.participants.get(&to) {
            Some(borrower) => !borrower.accepted.contains(&(instance, nonce.0)),
            None => self.used_chunks() + chunks <= self.capacity,
        };
        if free {
            self.participant_mut(instance).earmarks.remove(&nonce.0);
        }
        free
    }

    /// Removes the earmarks and acceptances of `instance` that are settled.
    pub fn clear(&mut self, instance: u64) {
        let waiting: BTreeSet<_> =
            self.pending_transfers().map(|promise| (promise.from, promise.nonce.0)).collect();
        let living: BTreeSet<u64> = self.participants.keys().copied().collect();
        let record = self.participant_mut(instance);
        record
            .earmarks
            .retain(|nonce, (to, _)| waiting.contains(&(instance, *nonce)) || !living.contains(to));
        let stands: BTreeSet<_> =
            self.participants.iter().flat_map(|(l, r)| r.earmarks.keys().map(|n| (*l, *n))).collect();
        self.participant_mut(instance).accepted.retain(|entry| stands.contains(entry));
    }

    /// Whether no earmark and no acceptance is recorded.
    pub fn has_no_transfers(&self) -> bool {
        self.participants.values().all(|record| record.earmarks.is_empty() && record.accepted.is_empty())
    }
}

/// A device's access to the ledger.
#[derive(Clone, Debug)]
pub struct Quota {
    /// The ledger of the GPU.
    pub ledger: SharedLedger,
    /// The participant that owns the device.
    pub me: Peer,
}

impl Quota {
    /// Counts an operation in the ledger.
    ///
    /// # Errors
    /// Why the operation is refused; nothing is counted then.
    pub fn apply(&self, work: &Work) -> Result<(), Failure> {
        if self.allows(work) {
            return Ok(());
        }
        let promised = matches!(work, Work::Accept { .. });
        Err(if promised { Failure::Refused } else { Failure::OutOfMemory })
    }

    /// Releases chunks that were counted but not created.
    pub fn release_uncreated(&self, chunks: u32) {
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
            _ => true,
        }
    }
}
