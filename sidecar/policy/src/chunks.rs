//! The chunks of a tenant: the owner and the addresses of each one, and the contents of the owners of weights.
//!
//! [`ChunkTable`] maps a chunk to its owner. [`Ownership`] maps an owner to its chunks, in the order of its addresses.
//! `Chunks` changes both together. A change is planned first (`plan`): the next [`Ownership`] is a value, and it is
//! applied when the backend has carried out the transaction that leads to it.

use alloc::vec::Vec;

mod plan;

pub use plan::FixedParts;

use crate::action::Address;
use crate::chunk_table::{ChunkTable, Owner, Ownership, State};
use crate::geometry::Geometry;
use crate::ids::{ChunkId, KvChunkId, LayerId};
use crate::peers::Peer;

/// Refusals of a single chunk in a row after which the device counts as full.
const CREATE_TRIES: u32 = 3;

/// Times that the first mapping is tried.
const MAP_TRIES: u32 = 3;

/// Every chunk that exists, with its owner.
#[derive(Clone, Debug)]
pub struct Chunks {
    table: ChunkTable,
    ownership: Ownership,
    /// Layers without chunks and without a slot. Every step asks for their number, so it is counted at each change.
    absent_layers: u16,
    /// Most chunks that one action creates while the tenant loads.
    create_piece: u32,
    /// Refusals of a single chunk in a row.
    create_tries: u32,
    /// First mappings that failed.
    map_tries: u32,
}

/// The effects of a change on other parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// Chunks with another owner than before.
    pub moved_chunks: u32,
    /// KV chunks, in order, that have a chunk now and had none (`true`), or had one and have none (`false`).
    pub kv_chunks: Vec<(KvChunkId, bool)>,
}

impl Chunks {
    /// Creates a tenant without any chunk, whose KV has addresses for `kv_chunks` chunks.
    pub fn new(geometry: &Geometry, kv_chunks: u32) -> Chunks {
        Chunks {
            table: ChunkTable::new(geometry.capacity_chunks, geometry.chunk_bytes),
            ownership: Ownership::new(geometry, kv_chunks),
            absent_layers: geometry.layers(),
            create_piece: u32::MAX,
            create_tries: 0,
            map_tries: 0,
        }
    }

    /// Returns the owner of each chunk, and the contents of the owners of weights.
    pub fn table(&self) -> &ChunkTable {
        &self.table
    }

    /// Returns the chunks of each owner.
    pub fn ownership(&self) -> &Ownership {
        &self.ownership
    }

    /// Returns the number of chunks that exist and back no address.
    pub fn free_count(&self) -> u32 {
        self.table.count(Owner::Free)
    }

    /// Chunks of the activation range that are backed.
    pub fn activation_chunks(&self) -> u32 {
        self.ownership.activation.len() as u32
    }

    /// Returns the number of layers without memory.
    pub fn absent_layers(&self) -> u16 {
        self.absent_layers
    }

    /// Returns whether every chunk that exists is free.
    pub fn is_unmapped(&self) -> bool {
        self.free_count() == self.table.created()
    }

    /// Returns the chunks to create next on the way to `useful` chunks; `None` if that many exist or the device is
    /// full.
    pub fn next_piece(&self, useful: u32) -> Option<Vec<ChunkId>> {
        let missing = useful.saturating_sub(self.table.created());
        let count = self.create_piece.min(missing);
        let wanted = count > 0 && self.create_tries < CREATE_TRIES;
        wanted.then(|| self.table.uncreated().take(count as usize).collect())
    }

    /// Notes that a piece was created (`done`), or refused: then the next piece has half as many chunks.
    pub fn end_piece(&mut self, chunks: &[ChunkId], done: bool) {
        if done {
            self.create_tries = 0;
            self.create(chunks);
        } else {
            self.create_piece = (chunks.len() as u32 / 2).max(1);
            self.create_tries += u32::from(chunks.len() == 1);
        }
    }

    /// Counts a failure of the first mapping. Returns whether it is tried once more.
    pub fn retries_mapping(&mut self) -> bool {
        self.map_tries += 1;
        self.map_tries < MAP_TRIES
    }

    /// Adds chunks that the backend has created. They are free.
    pub fn create(&mut self, chunks: &[ChunkId]) {
        chunks.iter().for_each(|chunk| self.table.create(*chunk));
    }

    /// Removes chunks, free or earmarked, that the backend has released.
    pub fn release(&mut self, chunks: &[ChunkId]) {
        chunks.iter().for_each(|chunk| self.table.release(*chunk));
    }

    /// Earmarks the first `count` free chunks for `peer` and returns them.
    pub fn earmark(&mut self, count: u32, peer: Peer) -> Vec<ChunkId> {
        let chunks: Vec<_> = self.table.free().take(count as usize).collect();
        for chunk in &chunks {
            self.table.hand_over(*chunk, Owner::Free, Owner::Earmarked(peer));
        }
        chunks
    }

    /// Frees chunks that were earmarked for `peer`.
    pub fn take_back(&mut self, chunks: &[ChunkId], peer: Peer) {
        for chunk in chunks {
            self.table.hand_over(*chunk, Owner::Earmarked(peer), Owner::Free);
        }
    }

    /// Sets the contents of an owner of weights.
    pub fn set_contents(&mut self, holder: Owner, state: State) {
        self.table.set_contents(holder, state);
    }

    /// Sets whether a KV chunk drains: then it takes no new blocks.
    ///
    /// # Panics
    /// If no chunk backs it.
    pub fn set_draining(&mut self, kv_chunk: KvChunkId, draining: bool) {
        self.table.set_draining(self.backing(kv_chunk), draining);
    }

    /// Returns the chunk of a KV chunk.
    fn backing(&self, kv_chunk: KvChunkId) -> ChunkId {
        self.ownership.kv_chunks[kv_chunk.index()].expect("a backed KV chunk has a chunk")
    }

    /// Puts `next` in force.
    ///
    /// # Panics
    /// If a chunk of `next` does not exist, or is earmarked.
    pub fn apply(&mut self, next: Ownership) -> Applied {
        let changes = self.ownership.changes(&next);
        for (chunk, from, to) in &changes {
            self.table.hand_over(*chunk, *from, *to);
        }
        let kv_chunks = self.ownership.kv_chunks.iter().zip(&next.kv_chunks).enumerate();
        let kv_chunks = kv_chunks.filter(|(_, (old, new))| old.is_some() != new.is_some());
        let kv_chunks = kv_chunks.map(|(f, (_, new))| (KvChunkId(f as u32), new.is_some())).collect();
        self.ownership = next;
        self.absent_layers = self.ownership.absent_layers();
        Applied { moved_chunks: changes.len() as u32, kv_chunks }
    }

    /// Checks that both directions agree; panics with a message when they do not.
    pub fn check(&self) {
        self.table.check();
        let mut held = 0;
        for (chunk, owner) in self.ownership.owners() {
            assert_eq!(self.table.owner(chunk), Some(owner), "owner of {chunk:?} and its place");
            held += 1;
        }
        let earmarked = self.table.counts().filter(|(owner, _)| matches!(owner, Owner::Earmarked(_)));
        let free = self.free_count() + earmarked.map(|(_, count)| count).sum::<u32>();
        assert_eq!(held + free, self.table.created(), "every chunk is in one place or free");
        self.check_stale();
        self.check_layers();
    }

    /// Checks that stale addresses back KV and lie behind the activations that a step may use.
    fn check_stale(&self) {
        for (address, chunk) in &self.ownership.stale {
            assert_eq!(self.table.owner(*chunk), Some(Owner::Kv), "{chunk:?} was left behind {address:?}");
            let activation = self.ownership.activation.len() as u32;
            let beyond = matches!(address, Address::Activation(at) if *at >= activation);
            assert!(beyond, "{address:?} is out of every step's reach");
        }
    }

    fn check_layers(&self) {
        for (l, slab) in self.ownership.slab_chunks().iter().enumerate() {
            let layer = LayerId(l as u16);
            let chunks = self.ownership.layer_chunks(layer).len() as u32;
            let whole = self.ownership.is_absent(layer) || chunks == *slab;
            assert!(whole, "{layer:?} is backed as a whole, with {slab} chunks and not {chunks}");
        }
        assert_eq!(self.absent_layers, self.ownership.absent_layers(), "absent layers are counted");
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use alloc::vec;

    use super::*;
    use crate::ids::{Generation, SlotId};
    use crate::step_model::Layout;

    /// Four layers of two chunks, two chunks of embeddings, room for 16 chunks, of which KV has addresses for 8.
    pub fn geometry() -> Geometry {
        Geometry {
            chunk_bytes: 64,
            capacity_chunks: 16,
            global_bytes: 128,
            slab_bytes: vec![128; 4],
            layer_block_bytes: 16,
            activation: crate::geometry::ActivationCost::default(),
            staging_chunks: 0,
        }
    }

    pub fn ids(chunks: impl IntoIterator<Item = u32>) -> Vec<ChunkId> {
        chunks.into_iter().map(ChunkId).collect()
    }

    /// `count` chunks that exist, all free.
    pub fn created(count: u32) -> Chunks {
        let mut chunks = Chunks::new(&geometry(), 8);
        chunks.create(&ids(0..count));
        chunks
    }

    /// All layers resident in 2 to 9, three activation chunks in 10 to 12, KV in 13 and 14.
    pub fn loaded() -> Chunks {
        let mut chunks = created(15);
        let fixed = FixedParts { global: 2, activation: 3, staging: 0 };
        chunks.apply(chunks.initial(&Layout::resident(), fixed));
        chunks.check();
        chunks
    }

    #[test]
    fn refused_piece_is_halved_until_third_refusal_of_one_chunk() {
        let mut chunks = Chunks::new(&geometry(), 8);
        let mut sizes = Vec::new();
        while let Some(piece) = chunks.next_piece(6) {
            sizes.push(piece.len());
            chunks.end_piece(&piece, false);
        }
        assert_eq!(sizes, [6, 3, 1, 1, 1]);
    }

    #[test]
    fn refusal_fixes_piece_size() {
        let mut chunks = Chunks::new(&geometry(), 8);
        chunks.end_piece(&ids(0..4), false);
        let mut pieces = Vec::new();
        while let Some(piece) = chunks.next_piece(5) {
            chunks.end_piece(&piece, true);
            pieces.push(piece);
        }
        assert_eq!(pieces, [ids([0, 1]), ids([2, 3]), ids([4])]);
        chunks.check();
    }

    #[test]
    fn created_chunk_resets_refusals() {
        let mut chunks = Chunks::new(&geometry(), 8);
        chunks.end_piece(&ids([0]), false);
        chunks.end_piece(&ids([0]), false);
        chunks.end_piece(&ids([0]), true);
        chunks.end_piece(&ids([1]), false);
        assert_eq!(chunks.next_piece(2), Some(ids([1])));
    }

    #[test]
    fn the_first_mapping_is_tried_three_times() {
        let mut chunks = created(1);
        assert_eq!([(); 3].map(|()| chunks.retries_mapping()), [true, true, false]);
    }

    #[test]
    fn earmarked_chunk_is_held_until_released() {
        let peer = Peer { index: 1, instance: 1 };
        let mut chunks = created(3);
        assert_eq!(chunks.earmark(2, peer), ids([0, 1]));
        assert_eq!((chunks.free_count(), chunks.table().created(), chunks.is_unmapped()), (1, 3, false));
        chunks.check();
        chunks.release(&ids([0]));
        chunks.take_back(&ids([1]), peer);
        assert_eq!((chunks.free_count(), chunks.table().created(), chunks.is_unmapped()), (2, 2, true));
        chunks.check();
    }

    #[test]
    fn change_reports_moved_and_resized_chunks() {
        let mut chunks = loaded();
        let mut next = chunks.ownership().clone();
        next.kv_chunks[0] = None;
        next.kv_chunks[4] = next.activation.pop();
        let applied = chunks.apply(next);
        assert_eq!(
            applied,
            Applied { moved_chunks: 2, kv_chunks: vec![(KvChunkId(0), false), (KvChunkId(4), true)] }
        );
        chunks.check();
    }

    #[test]
    fn draining_kv_chunk_is_marked_until_new_owner() {
        let mut chunks = loaded();
        chunks.set_draining(KvChunkId(1), true);
        assert_eq!(chunks.table().state(ChunkId(14)), State::Draining);
        let mut next = chunks.ownership().clone();
        next.activation.extend(next.kv_chunks[1].take());
        chunks.apply(next);
        assert_eq!(chunks.table().state(ChunkId(14)), State::Idle);
        chunks.check();
    }

    #[test]
    fn layers_are_absent_without_chunks() {
        assert_eq!(created(15).absent_layers(), 4);
        let mut chunks = loaded();
        assert_eq!(chunks.absent_layers(), 0);
        chunks.apply(chunks.vacated(&[LayerId(3), LayerId(2)], &[]));
        assert_eq!((chunks.absent_layers(), chunks.free_count()), (2, 4));
        chunks.apply(chunks.ownership().unmapped());
        assert_eq!((chunks.absent_layers(), chunks.is_unmapped()), (4, true));
        chunks.check();
    }

    #[test]
    fn contents_belong_to_the_owner_and_not_to_the_chunk() {
        let mut chunks = loaded();
        let slot = Owner::Slot(SlotId(0));
        chunks.set_contents(slot, State::Filled(Generation(3)));
        let layout = Layout { moving: vec![LayerId(0), LayerId(1)], beta: 1 };
        chunks.apply(chunks.with_layout(&layout, &[], &[]));
        assert_eq!(chunks.ownership().slots, [ids([2, 3])]);
        assert_eq!(chunks.table().state(ChunkId(2)), State::Filled(Generation(3)));
    }

    #[test]
    #[should_panic(expected = "backed as a whole")]
    fn check_detects_incomplete_layer() {
        let mut chunks = loaded();
        let mut next = chunks.ownership().clone();
        next.layers[1].pop();
        chunks.apply(next);
        chunks.check();
    }

    #[test]
    #[should_panic(expected = "out of every step's reach")]
    fn check_detects_usable_stale_address() {
        let mut chunks = loaded();
        let mut next = chunks.ownership().clone();
        next.stale.push((Address::Activation(2), ChunkId(13)));
        chunks.apply(next);
        chunks.check();
    }
}
