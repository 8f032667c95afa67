//! The chunks of each owner, in address order. The address table (address to chunk) follows from it, and a transaction
//! is the difference between two of them.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec;
use alloc::vec::Vec;

use super::Owner;
use crate::action::{Address, MapOp, Transaction};
use crate::geometry::Geometry;
use crate::ids::{ChunkId, Generation, KvChunkId, LayerBlockId, LayerId, SlotId};

/// Before and after, of a free chunk.
const UNOWNED: (Owner, Owner) = (Owner::Free, Owner::Free);

/// Where a layer's weights are under a layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerLocation {
    /// In chunks of its own.
    Resident,
    /// In a slot that it shares with other moving layers, or has alone.
    Slot(SlotId),
    /// Nowhere on the device: its chunks are lent.
    Absent,
}

/// Chunks by owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ownership {
    /// Embeddings, head and final norm.
    pub global: Vec<ChunkId>,
    /// Own chunks of each layer; empty for a moving one.
    pub layers: Vec<Vec<ChunkId>>,
    /// Chunks of each slot.
    pub slots: Vec<Vec<ChunkId>>,
    /// The slot that a moving layer uses; none for a resident one.
    pub slot_of: Vec<Option<SlotId>>,
    /// The chunk behind each position of the KV arena.
    pub kv_chunks: Vec<Option<ChunkId>>,
    /// The activation range, front first.
    pub activation: Vec<ChunkId>,
    /// The staging range.
    pub staging: Vec<ChunkId>,
    /// Chunks that belong to KV and are still behind the activation addresses that they had before (eLLM 5.1,
    /// asynchronous unmapping). They count once, as KV. No step accesses these addresses: they are behind the last
    /// chunk of `activation`, and a step knows the limit of its activations (`activation_limit_bytes`).
    pub stale: Vec<(Address, ChunkId)>,
    /// Chunks of each layer's weights.
    slab_chunks: Vec<u32>,
}

impl Ownership {
    /// No chunk is owned; the arena has `kv_chunks` positions.
    pub fn new(geometry: &Geometry, kv_chunks: u32) -> Ownership {
        let slab_chunks = (0..usize::from(geometry.layers())).map(|l| geometry.slab_chunks(l)).collect();
        Ownership::empty(slab_chunks, kv_chunks as usize)
    }

    fn empty(slab_chunks: Vec<u32>, kv_chunks: usize) -> Ownership {
        Ownership {
            global: Vec::new(),
            layers: vec![Vec::new(); slab_chunks.len()],
            slots: Vec::new(),
            slot_of: vec![None; slab_chunks.len()],
            kv_chunks: vec![None; kv_chunks],
            activation: Vec::new(),
            staging: Vec::new(),
            stale: Vec::new(),
            slab_chunks,
        }
    }

    /// Returns the ownership of the same tenant without any chunk.
    pub fn unmapped(&self) -> Ownership {
        Ownership::empty(self.slab_chunks.clone(), self.kv_chunks.len())
    }

    /// Returns the chunks of each layer's slab, front first.
    pub fn slab_chunks(&self) -> &[u32] {
        &self.slab_chunks
    }

    /// The chunk behind a block of KV; each chunk holds `layer_blocks_per_chunk`.
    ///
    /// # Panics
    /// If no chunk backs the position of the block.
    pub fn chunk_of(&self, layer_block: LayerBlockId, layer_blocks_per_chunk: u32) -> ChunkId {
        self.kv_chunks[(layer_block.0 / layer_blocks_per_chunk) as usize]
            .expect("a block lies in a backed KV chunk")
    }

    /// The chunks behind a layer's addresses: its own, or the front of its slot.
    pub fn layer_chunks(&self, layer: LayerId) -> &[ChunkId] {
        match self.slot_of[layer.index()] {
            None => &self.layers[layer.index()],
            Some(slot) => {
                let chunks = &self.slots[slot.index()];
                &chunks[..chunks.len().min(self.slab_chunks[layer.index()] as usize)]
            }
        }
    }

    /// Returns the layers whose contents stay readable at their addresses across a change to `next`, with the
    /// generation of each. `complete` has, for each layer, the generation of its complete copy, if there is one.
    pub fn preserved(&self, next: &Ownership, complete: &[Option<Generation>]) -> Vec<(LayerId, Generation)> {
        let whole = complete.iter().enumerate();
        let whole = whole.filter_map(|(l, generation)| Some((LayerId(l as u16), (*generation)?)));
        whole.filter(|(layer, _)| self.layer_chunks(*layer) == next.layer_chunks(*layer)).collect()
    }

    /// Neither own chunks nor a slot: its memory is lent, and no step can run before it is restored.
    pub fn is_absent(&self, layer: LayerId) -> bool {
        self.location(layer) == LayerLocation::Absent
    }

    /// Where the layer's weights are.
    pub fn location(&self, layer: LayerId) -> LayerLocation {
        match self.slot_of[layer.index()] {
            Some(slot) => LayerLocation::Slot(slot),
            None if self.layers[layer.index()].is_empty() => LayerLocation::Absent,
            None => LayerLocation::Resident,
        }
    }

    /// The number of absent layers.
    pub fn absent_layers(&self) -> u16 {
        (0..self.layers.len()).filter(|l| self.is_absent(LayerId(*l as u16))).count() as u16
    }

    /// The address table, stale addresses included.
    pub fn addresses(&self) -> impl Iterator<Item = (Address, ChunkId)> + '_ {
        let layers = (0..self.layers.len()).flat_map(|l| {
            let layer = LayerId(l as u16);
            numbered(self.layer_chunks(layer), move |i| Address::Layer(layer, i))
        });
        let kv = self.kv_chunks.iter().enumerate();
        let kv = kv.filter_map(|(f, chunk)| Some((Address::Kv(KvChunkId(f as u32)), (*chunk)?)));
        numbered(&self.global, Address::Global)
            .chain(layers)
            .chain(kv)
            .chain(numbered(&self.activation, Address::Activation))
            .chain(self.stale.iter().copied())
            .chain(numbered(&self.staging, Address::Staging))
    }

    /// Every owned chunk, with its owner, each once.
    pub fn owners(&self) -> impl Iterator<Item = (ChunkId, Owner)> + '_ {
        let layers = self.layers.iter().enumerate();
        let layers = layers.flat_map(|(l, chunks)| owned(chunks, Owner::WeightsLayer(LayerId(l as u16))));
        let slots = self.slots.iter().enumerate();
        let slots = slots.flat_map(|(s, chunks)| owned(chunks, Owner::Slot(SlotId(s as u8))));
        owned(&self.global, Owner::WeightsGlobal)
            .chain(layers)
            .chain(slots)
            .chain(self.kv_chunks.iter().flatten().map(|chunk| (*chunk, Owner::Kv)))
            .chain(owned(&self.activation, Owner::Activation))
            .chain(owned(&self.staging, Owner::Staging))
    }

    /// Backs the first free positions with these chunks. Chunks beyond the last position are left out.
    pub fn back_kv_chunks(&mut self, chunks: impl IntoIterator<Item = ChunkId>) {
        let unbacked = self.kv_chunks.iter_mut().filter(|chunk| chunk.is_none());
        unbacked.zip(chunks).for_each(|(kv_chunk, chunk)| *kv_chunk = Some(chunk));
    }

    /// Chunks that went from activations to KV since `before` stay behind their old addresses, as earlier ones do.
    pub fn mark_stale(&mut self, before: &Ownership) {
        let inflated = |(chunk, from, to)| ((from, to) == (Owner::Activation, Owner::Kv)).then_some(chunk);
        let inflated: BTreeSet<_> = before.changes(self).into_iter().filter_map(inflated).collect();
        let left = numbered(&before.activation, Address::Activation).skip(self.activation.len());
        self.stale.extend(left.filter(|(_, chunk)| inflated.contains(chunk)));
        self.stale.sort_unstable();
    }

    /// The changes from `self` to `next`. Stale addresses go first, so that a chunk whose owner changes once more has
    /// no address older than its last one; then replaced ones, so that no address is backed twice; then new addresses
    /// are mapped, and old ones that stay empty are unmapped last (eLLM 5.1). So a moving chunk always has an address,
    /// unless another chunk takes its place. `kept` chunks change their owner with their contents.
    pub fn transaction(&self, next: &Ownership, kept: &[ChunkId]) -> Transaction {
        let late: BTreeSet<(Address, ChunkId)> = next.stale.iter().copied().collect();
        let mut diff = Diff::default();
        let stale = self.stale.iter().filter(|mapped| !late.contains(mapped));
        diff.replaced.extend(stale.map(|(address, chunk)| MapOp::Unmap(*address, *chunk)));
        diff.range(&self.global, &next.global, Address::Global);
        for l in 0..self.layers.len() {
            let layer = LayerId(l as u16);
            diff.range(self.layer_chunks(layer), next.layer_chunks(layer), |i| Address::Layer(layer, i));
        }
        for (f, (old, new)) in self.kv_chunks.iter().zip(&next.kv_chunks).enumerate() {
            diff.one(*old, *new, Address::Kv(KvChunkId(f as u32)));
        }
        diff.range(&self.activation, &next.activation, Address::Activation);
        diff.range(&self.staging, &next.staging, Address::Staging);
        let kept: BTreeSet<ChunkId> = kept.iter().copied().collect();
        let handed_over = self.changes(next).into_iter().map(|(chunk, _, _)| chunk);
        let handed_over = handed_over.filter(|chunk| !kept.contains(chunk)).collect();
        let stays = |op: &MapOp| matches!(op, MapOp::Unmap(at, chunk) if late.contains(&(*at, *chunk)));
        diff.emptied.retain(|op| !stays(op));
        Transaction { ops: [diff.replaced, diff.maps, diff.emptied].concat(), handed_over }
    }

    /// Chunks whose owner differs in `next`, in order: (chunk, from, to). The time depends on what differs, not on the
    /// size of the device.
    pub fn changes(&self, next: &Ownership) -> Vec<(ChunkId, Owner, Owner)> {
        let mut owners: BTreeMap<ChunkId, (Owner, Owner)> = BTreeMap::new();
        self.unlike(next, |chunk, owner| owners.entry(chunk).or_insert(UNOWNED).0 = owner);
        next.unlike(self, |chunk, owner| owners.entry(chunk).or_insert(UNOWNED).1 = owner);
        let changed = owners.into_iter().filter(|(_, (from, to))| from != to);
        changed.map(|(chunk, (from, to))| (chunk, from, to)).collect()
    }

    /// Reports the chunks, with their owner, of every owner that has others in `other`. Positions of KV are compared
    /// one by one: they all have the same owner.
    fn unlike(&self, other: &Ownership, mut tell: impl FnMut(ChunkId, Owner)) {
        let mut part = |own: &[ChunkId], others: &[ChunkId], owner: Owner| {
            if own != others {
                own.iter().for_each(|chunk| tell(*chunk, owner));
            }
        };
        part(&self.global, &other.global, Owner::WeightsGlobal);
        for (l, (own, others)) in self.layers.iter().zip(&other.layers).enumerate() {
            part(own, others, Owner::WeightsLayer(LayerId(l as u16)));
        }
        for (s, own) in self.slots.iter().enumerate() {
            part(own, other.slots.get(s).map_or(&[], Vec::as_slice), Owner::Slot(SlotId(s as u8)));
        }
        part(&self.activation, &other.activation, Owner::Activation);
        part(&self.staging, &other.staging, Owner::Staging);
        let kv_chunks = self.kv_chunks.iter().zip(&other.kv_chunks).filter(|(own, others)| own != others);
        kv_chunks.filter_map(|(own, _)| *own).for_each(|chunk| tell(chunk, Owner::Kv));
    }
}

#[derive(Default)]
struct Diff {
    /// Unmaps of addresses that another chunk backs afterwards.
    replaced: Vec<MapOp>,
    maps: Vec<MapOp>,
    /// Unmaps of addresses that nothing backs afterwards.
    emptied: Vec<MapOp>,
}

impl Diff {
    fn range(&mut self, old: &[ChunkId], new: &[ChunkId], address: impl Fn(u32) -> Address) {
        for i in 0..old.len().max(new.len()) {
            self.one(old.get(i).copied(), new.get(i).copied(), address(i as u32));
        }
    }

    fn one(&mut self, old: Option<ChunkId>, new: Option<ChunkId>, address: Address) {
        if old == new {
            return;
        }
        let unmaps = if new.is_some() { &mut self.replaced } else { &mut self.emptied };
        unmaps.extend(old.map(|chunk| MapOp::Unmap(address, chunk)));
        self.maps.extend(new.map(|chunk| MapOp::Map(address, chunk)));
    }
}

fn numbered<'a>(
    chunks: &'a [ChunkId],
    address: impl Fn(u32) -> Address + 'a,
) -> impl Iterator<Item = (Address, ChunkId)> + 'a {
    chunks.iter().enumerate().map(move |(i, chunk)| (address(i as u32), *chunk))
}

fn owned(chunks: &[ChunkId], owner: Owner) -> impl Iterator<Item = (ChunkId, Owner)> + '_ {
    chunks.iter().map(move |chunk| (*chunk, owner))
}
