//! The table from chunk to owner and state. No other code changes an owner, and every change names the owner that it
//! expects, so that a chunk with two owners is a panic and not a corrupted tensor.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec;
use alloc::vec::Vec;

use sluice_common::random::mix;

use crate::ids::{ChunkId, Generation, LayerId, SlotId};
use crate::peers::Peer;

pub mod ownership;

pub use ownership::{LayerLocation, Ownership};

/// The owner of a chunk. Exactly one at any time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Owner {
    /// None; it backs no address.
    Free,
    /// Embeddings, head and final norm.
    WeightsGlobal,
    /// The weights of a resident layer.
    WeightsLayer(LayerId),
    /// A slot that moving layers share.
    Slot(SlotId),
    /// The KV arena.
    Kv,
    /// The activation range.
    Activation,
    /// The staging range.
    Staging,
    /// Promised to a peer.
    Earmarked(Peer),
}

/// The state of a chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// Its contents do not matter, or are tracked elsewhere (blocks of KV).
    #[default]
    Idle,
    /// A copy that will show this generation is ordered.
    Filling(Generation),
    /// It contains this generation.
    Filled(Generation),
    /// KV that takes no new blocks, so that it becomes empty.
    Draining,
}

/// The table. Capacity: created = the sum over owners, in chunks; device use = overhead + created.
#[derive(Clone, Debug)]
pub struct ChunkTable {
    chunk_bytes: u64,
    /// By chunk; `None` = not created.
    owners: Vec<Option<Owner>>,
    counts: BTreeMap<Owner, u32>,
    free: BTreeSet<ChunkId>,
    /// Chunks that do not exist.
    free_list: BTreeSet<ChunkId>,
    draining: BTreeSet<ChunkId>,
    /// Contents of holders of weights; one state for all chunks of a layer, because a layer is copied as a whole.
    contents: BTreeMap<Owner, State>,
    created: u32,
    digest: u64,
}

impl ChunkTable {
    /// A table of `capacity_chunks` chunks, none created.
    pub fn new(capacity_chunks: u32, chunk_bytes: u64) -> ChunkTable {
        ChunkTable {
            chunk_bytes,
            owners: vec![None; capacity_chunks as usize],
            counts: BTreeMap::new(),
            free: BTreeSet::new(),
            free_list: (0..capacity_chunks).map(ChunkId).collect(),
            draining: BTreeSet::new(),
            contents: BTreeMap::new(),
            created: 0,
            digest: 0,
        }
    }

    /// The chunk exists from now on and is free.
    pub fn create(&mut self, chunk: ChunkId) {
        assert_eq!(self.owners[chunk.index()], None, "{chunk:?} is created twice");
        self.created += 1;
        self.set(chunk, Some(Owner::Free));
    }

    /// The chunk no longer exists. It was free, or promised to a peer.
    pub fn release(&mut self, chunk: ChunkId) {
        let idle = matches!(self.owners[chunk.index()], Some(Owner::Free | Owner::Earmarked(_)));
        assert!(idle, "{chunk:?} is released while held");
        self.created -= 1;
        self.set(chunk, None);
    }

    /// The chunk changes its owner.
    pub fn hand_over(&mut self, chunk: ChunkId, from: Owner, to: Owner) {
        assert_eq!(
            self.owners[chunk.index()],
            Some(from),
            "{chunk:?} goes to {to:?} from one who does not hold it"
        );
        assert_ne!(from, to, "{chunk:?} changes its owner");
        self.draining.remove(&chunk);
        self.set(chunk, Some(to));
    }

    fn set(&mut self, chunk: ChunkId, to: Option<Owner>) {
        let from = core::mem::replace(&mut self.owners[chunk.index()], to);
        let _ = if to.is_none() { self.free_list.insert(chunk) } else { self.free_list.remove(&chunk) };
        for (owner, step) in [(from, -1), (to, 1)] {
            let Some(owner) = owner else { continue };
            self.digest ^= entry(chunk, owner);
            let count = self.counts.entry(owner).or_insert(0);
            *count = count.checked_add_signed(step).expect("a count of chunks is not negative");
            if owner == Owner::Free {
                let _ = if step > 0 { self.free.insert(chunk) } else { self.free.remove(&chunk) };
            }
        }
    }

    /// What a holder of weights contains.
    pub fn set_contents(&mut self, holder: Owner, state: State) {
        let holds_weights = matches!(holder, Owner::WeightsGlobal | Owner::WeightsLayer(_) | Owner::Slot(_));
        assert!(holds_weights, "{holder:?} holds no slab");
        self.contents.insert(holder, state);
    }

    /// A chunk of KV takes no new blocks, or takes them again.
    pub fn set_draining(&mut self, chunk: ChunkId, draining: bool) {
        assert_eq!(self.owners[chunk.index()], Some(Owner::Kv), "only KV drains");
        let _ = if draining { self.draining.insert(chunk) } else { self.draining.remove(&chunk) };
    }

    /// Owner of a chunk; none when it was not created.
    pub fn owner(&self, chunk: ChunkId) -> Option<Owner> {
        self.owners[chunk.index()]
    }

    /// What a holder of weights contains.
    pub fn contents(&self, holder: Owner) -> State {
        self.contents.get(&holder).copied().unwrap_or_default()
    }

    /// State of a chunk.
    pub fn state(&self, chunk: ChunkId) -> State {
        match self.owners[chunk.index()] {
            Some(Owner::Kv) if self.draining.contains(&chunk) => State::Draining,
            Some(owner) => self.contents(owner),
            None => State::Idle,
        }
    }

    /// Chunks that an owner holds.
    pub fn count(&self, owner: Owner) -> u32 {
        self.counts.get(&owner).copied().unwrap_or(0)
    }

    /// Every owner that has or had chunks, with their number.
    pub fn counts(&self) -> impl Iterator<Item = (Owner, u32)> + '_ {
        self.counts.iter().map(|(owner, count)| (*owner, *count))
    }

    /// Free chunks, in order.
    pub fn free(&self) -> impl Iterator<Item = ChunkId> + '_ {
        self.free.iter().copied()
    }

    /// Chunks that do not exist, in order.
    pub fn uncreated(&self) -> impl Iterator<Item = ChunkId> + '_ {
        self.free_list.iter().copied()
    }

    /// Chunks that exist.
    pub fn created(&self) -> u32 {
        self.created
    }

    /// Chunks that may exist.
    pub fn capacity(&self) -> u32 {
        self.owners.len() as u32
    }

    /// Bytes of all chunks that exist: the right side of the capacity equation without overhead.
    pub fn created_bytes(&self) -> u64 {
        u64::from(self.created) * self.chunk_bytes
    }

    /// Owner of every chunk that exists.
    pub fn owners(&self) -> impl Iterator<Item = (ChunkId, Owner)> + '_ {
        self.owners.iter().enumerate().filter_map(|(i, owner)| Some((ChunkId(i as u32), (*owner)?)))
    }

    /// A digest of all owners: equal tables have equal digests.
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// The audit: counts against the table, the capacity equation, free and draining sets, the digest.
    pub fn check(&self) {
        let mut counts: BTreeMap<Owner, u32> = BTreeMap::new();
        let mut digest = 0;
        for (chunk, owner) in self.owners() {
            *counts.entry(owner).or_default() += 1;
            digest ^= entry(chunk, owner);
            assert_eq!(self.free.contains(&chunk), owner == Owner::Free, "{chunk:?} and the free set");
        }
        for (owner, count) in self.counts() {
            assert_eq!(counts.get(&owner).copied().unwrap_or(0), count, "chunks of {owner:?}");
        }
        let sum: u32 = counts.values().sum();
        assert_eq!(sum, self.created, "created chunks = the sum over owners");
        assert!(self.created <= self.capacity(), "created chunks fit the capacity");
        let vacant = (0..self.capacity()).map(ChunkId).filter(|chunk| self.owner(*chunk).is_none());
        assert!(vacant.eq(self.uncreated()), "the set of chunks that do not exist follows the table");
        assert_eq!(self.free.len() as u32, self.count(Owner::Free), "the free set names existing chunks");
        assert!(self.draining.iter().all(|c| self.owner(*c) == Some(Owner::Kv)), "only KV drains");
        assert_eq!(digest, self.digest, "the digest follows the table");
    }
}

fn entry(chunk: ChunkId, owner: Owner) -> u64 {
    let (kind, index) = match owner {
        Owner::Free => (1, 0),
        Owner::WeightsGlobal => (2, 0),
        Owner::WeightsLayer(layer) => (3, u64::from(layer.0)),
        Owner::Slot(slot) => (4, u64::from(slot.0)),
        Owner::Kv => (5, 0),
        Owner::Activation => (6, 0),
        Owner::Staging => (7, 0),
        Owner::Earmarked(to) => (8, u64::from(to.index)),
    };
    mix(u64::from(chunk.0) << 32 | kind << 24 | index)
}
