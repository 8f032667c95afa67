//! The next [`Ownership`] for each kind of change. A plan changes nothing.
//!
//! No plan needs a chunk that does not exist: a chunk that arrives at one owner has left another one in the same
//! transaction, so a change is possible without any spare chunk.

use alloc::vec::Vec;

use super::Chunks;
use crate::chunk_table::Ownership;
use crate::ids::{ChunkId, Generation, KvChunkId, LayerId, SlotId};
use crate::step_model::Layout;

/// The parts of a tenant that no layout changes, in chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FixedParts {
    /// Embeddings, head and final norm.
    pub global: u32,
    /// The activation range.
    pub activation: u32,
    /// The staging range.
    pub staging: u32,
}

/// The contents of each slot: a layer and the generation of its copy.
type SlotContents = [Option<(LayerId, Generation)>];

impl Chunks {
    /// Returns the number of chunks of all layers and slots.
    pub fn weights_held(&self) -> u32 {
        self.ownership.layers.iter().chain(&self.ownership.slots).map(Vec::len).sum::<usize>() as u32
    }

    /// Returns the first mapping under `layout`, from free chunks. The rest becomes KV, as far as KV has addresses.
    pub fn initial(&self, layout: &Layout, fixed: FixedParts) -> Ownership {
        let mut chunks = self.table.free();
        let mut take = |count: u32| -> Vec<ChunkId> { chunks.by_ref().take(count as usize).collect() };
        let slabs = self.ownership.slab_chunks();
        let mut next = self.ownership.unmapped();
        next.global = take(fixed.global);
        assign_slots(layout, &mut next);
        for (l, slab) in slabs.iter().enumerate().filter(|(l, _)| next.slot_of[*l].is_none()) {
            next.layers[l] = take(*slab);
        }
        next.slots = (0..layout.beta).map(|s| take(layout.slot_chunks(slabs, SlotId(s)))).collect();
        next.activation = take(fixed.activation);
        next.staging = take(fixed.staging);
        for (kv_chunk, chunk) in next.kv_chunks.iter_mut().zip(chunks) {
            *kv_chunk = Some(chunk);
        }
        next
    }

    /// Returns the ownership under another layout of moving layers. Owners that stay keep their chunks. A new slot
    /// takes those of its first layer, and a layer takes those of a slot that goes while it contains that layer. The
    /// rest comes from released chunks, from free chunks, and from drained KV chunks, in this order. Released chunks
    /// that are left over become KV.
    ///
    /// # Panics
    /// If too few KV chunks were drained.
    pub fn with_layout(&self, layout: &Layout, contents: &SlotContents, drained: &[KvChunkId]) -> Ownership {
        let slabs = self.ownership.slab_chunks();
        let mut next = self.ownership.clone();
        assign_slots(layout, &mut next);
        let released = release(layout, contents, &mut next);
        let drained = drained.iter().map(|kv_chunk| (self.backing(*kv_chunk), Some(*kv_chunk)));
        let free = released.iter().copied().chain(self.table.free()).map(|chunk| (chunk, None));
        let mut pool = free.chain(drained);
        let mut taken = 0;
        let mut fill = |chunks: &mut Vec<ChunkId>, size: u32, kv_chunks: &mut [Option<ChunkId>]| {
            while chunks.len() < size as usize {
                let (chunk, kv_chunk) = pool.next().expect("enough KV chunks were drained");
                kv_chunk.into_iter().for_each(|kv_chunk| kv_chunks[kv_chunk.index()] = None);
                chunks.push(chunk);
                taken += 1;
            }
        };
        for (s, chunks) in next.slots.iter_mut().enumerate() {
            fill(chunks, layout.slot_chunks(slabs, SlotId(s as u8)), &mut next.kv_chunks);
        }
        let resident = next.layers.iter_mut().zip(&next.slot_of).zip(slabs);
        for ((chunks, _), slab) in resident.filter(|((_, slot), _)| slot.is_none()) {
            fill(chunks, *slab, &mut next.kv_chunks);
        }
        next.back_kv_chunks(released.into_iter().skip(taken));
        next
    }

    /// Returns the ownership with this many activation chunks. Chunks that activations give become KV, as far as KV has
    /// addresses, else free. Chunks that they take come from free chunks, then from drained KV chunks.
    pub fn with_activations(&self, chunks: u32, drained: &[KvChunkId]) -> Ownership {
        let mut next = self.ownership.clone();
        let held = next.activation.len();
        if (chunks as usize) < held {
            let idle = next.activation.split_off(chunks as usize);
            next.back_kv_chunks(idle);
            return next;
        }
        let from_kv = drained.iter().map(|kv_chunk| self.backing(*kv_chunk));
        let more: Vec<_> = self.table.free().chain(from_kv).take(chunks as usize - held).collect();
        for kv_chunk in drained {
            let chunk = &mut next.kv_chunks[kv_chunk.index()];
            *chunk = chunk.filter(|chunk| !more.contains(chunk));
        }
        next.activation.extend(more);
        next
    }

    /// Returns the ownership with this many free chunks more in KV.
    pub fn with_kv_chunks(&self, chunks: u32) -> Ownership {
        let mut next = self.ownership.clone();
        next.back_kv_chunks(self.table.free().take(chunks as usize));
        next
    }

    /// Returns the ownership in which drained KV chunks and these layers have no chunks.
    pub fn vacated(&self, layers: &[LayerId], drained: &[KvChunkId]) -> Ownership {
        let mut next = self.ownership.clone();
        drained.iter().for_each(|kv_chunk| next.kv_chunks[kv_chunk.index()] = None);
        layers.iter().for_each(|layer| next.layers[layer.index()].clear());
        next
    }

    /// Returns `next` with the stale addresses of the change to it. A change that defers its unmaps (an inflation of
    /// eLLM, 5.1) keeps the stale addresses of before and its own, and so unmaps nothing. Every other change removes
    /// all: a chunk has one address of one owner before its owner changes again, before it is free, and before it goes
    /// to another tenant.
    pub fn with_stale(&self, mut next: Ownership, defers_unmap: bool) -> Ownership {
        if defers_unmap {
            next.mark_stale(&self.ownership);
        } else {
            next.stale.clear();
        }
        next
    }
}

/// Notes the slot of each moving layer.
fn assign_slots(layout: &Layout, next: &mut Ownership) {
    for (l, slot) in next.slot_of.iter_mut().enumerate() {
        *slot = layout.slot_of(LayerId(l as u16));
    }
}

/// Takes from `next` the chunks that owners no longer need, after [`exchange`].
fn release(layout: &Layout, contents: &SlotContents, next: &mut Ownership) -> Vec<ChunkId> {
    let leaving = exchange(layout, contents, next);
    let mut released = Vec::new();
    for layer in &layout.moving {
        released.append(&mut next.layers[layer.index()]);
    }
    let slabs = next.slab_chunks().to_vec();
    let slots = next.slots.iter_mut().enumerate();
    let slots = slots.map(|(s, chunks)| (chunks, layout.slot_chunks(&slabs, SlotId(s as u8))));
    let layers = next.layers.iter_mut().zip(slabs.iter().copied());
    for (chunks, size) in slots.chain(layers) {
        released.extend(chunks.drain((size as usize).min(chunks.len())..));
    }
    released.extend(leaving);
    released
}

/// A slot that goes gives its chunks to the layer that it contains, where that is resident from now on; a new slot
/// takes those of its first layer. Returns the chunks of slots that go without such a layer.
fn exchange(layout: &Layout, contents: &SlotContents, next: &mut Ownership) -> Vec<ChunkId> {
    let kept = next.slots.len().min(usize::from(layout.beta));
    let mut leaving = next.slots.split_off(kept);
    for (chunks, content) in leaving.iter_mut().zip(contents.iter().skip(kept)) {
        let heir = content.map(|(layer, _)| layer).filter(|layer| next.slot_of[layer.index()].is_none());
        if let Some(layer) = heir {
            next.layers[layer.index()] = core::mem::take(chunks);
        }
    }
    for first in &layout.moving[kept..usize::from(layout.beta)] {
        next.slots.push(core::mem::take(&mut next.layers[first.index()]));
    }
    leaving.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::action::Address;
    use crate::chunks::tests::{created, geometry, ids, loaded};
    use crate::geometry::Geometry;

    const LAYERS: [LayerId; 4] = [LayerId(0), LayerId(1), LayerId(2), LayerId(3)];

    /// These layers move through one slot.
    fn moving(layers: &[u16]) -> Layout {
        Layout { moving: layers.iter().copied().map(LayerId).collect(), beta: 1 }
    }

    /// Chunks that `next` gives to KV, by KV chunk.
    fn kv_chunks(next: &Ownership) -> Vec<(u32, u32)> {
        let backed = next.kv_chunks.iter().enumerate();
        backed.filter_map(|(f, chunk)| Some((f as u32, (*chunk)?.0))).collect()
    }

    /// Layers 1 and 3 move through the chunks of layer 1, and those of layer 3 are KV in KV chunks 2 and 3.
    fn remapped() -> Chunks {
        let mut chunks = loaded();
        chunks.apply(chunks.with_layout(&moving(&[1, 3]), &[], &[]));
        chunks
    }

    #[test]
    fn the_first_mapping_goes_through_the_free_chunks_in_order() {
        let chunks = created(14);
        let next = chunks.initial(&moving(&[0, 2]), FixedParts { global: 2, activation: 3, staging: 1 });
        assert_eq!(next.global, ids([0, 1]));
        assert_eq!(next.layers, [ids([]), ids([2, 3]), ids([]), ids([4, 5])]);
        assert_eq!(next.slots, [ids([6, 7])]);
        assert_eq!(next.slot_of, [Some(SlotId(0)), None, Some(SlotId(0)), None]);
        assert_eq!((&next.activation, &next.staging), (&ids(8..11), &ids([11])));
        assert_eq!(kv_chunks(&next), [(0, 12), (1, 13)]);
    }

    #[test]
    fn a_new_slot_takes_the_chunks_of_its_first_layer_and_the_rest_becomes_kv() {
        let next = loaded().with_layout(&moving(&[1, 3]), &[], &[]);
        assert_eq!(next.layers, [ids([2, 3]), ids([]), ids([6, 7]), ids([])]);
        assert_eq!(next.slots, [ids([4, 5])]);
        assert_eq!(kv_chunks(&next), [(0, 13), (1, 14), (2, 8), (3, 9)]);
    }

    #[test]
    fn layer_takes_chunks_of_its_slot_or_drained_kv() {
        let contents = [Some((LayerId(3), Generation(7)))];
        let next = remapped().with_layout(&Layout::resident(), &contents, &[KvChunkId(2), KvChunkId(3)]);
        assert_eq!(next.layers, [ids([2, 3]), ids([8, 9]), ids([6, 7]), ids([4, 5])]);
        assert!(next.slots.is_empty());
        assert_eq!(kv_chunks(&next), [(0, 13), (1, 14)]);
    }

    #[test]
    fn free_chunks_are_taken_before_those_of_drained_kv_chunks() {
        let mut chunks = remapped();
        chunks.create(&ids([15]));
        let next =
            chunks.with_layout(&Layout::resident(), &[None], &[KvChunkId(2), KvChunkId(3), KvChunkId(0)]);
        assert_eq!(next.layers, [ids([2, 3]), ids([4, 5]), ids([6, 7]), ids([15, 8])]);
        assert_eq!(
            kv_chunks(&next),
            [(0, 13), (1, 14), (3, 9)],
            "KV chunks that were not needed keep theirs"
        );
    }

    #[test]
    #[should_panic(expected = "enough KV chunks were drained")]
    fn layout_without_space_is_error() {
        remapped().with_layout(&Layout::resident(), &[None], &[]);
    }

    #[test]
    fn slot_has_size_of_largest_layer() {
        let geometry = Geometry { slab_bytes: vec![64, 192, 128], ..geometry() };
        let mut chunks = Chunks::new(&geometry, 8);
        chunks.create(&ids(0..6));
        let none = FixedParts { global: 0, activation: 0, staging: 0 };
        chunks.apply(chunks.initial(&Layout::resident(), none));
        let next = chunks.with_layout(&moving(&[0, 1, 2]), &[], &[]);
        assert_eq!(next.slots, [ids([0, 1, 2])], "its first layer has one chunk, its second one has three");
        assert_eq!(kv_chunks(&next), [(0, 3), (1, 4), (2, 5)]);
    }

    #[test]
    fn last_activation_chunks_become_kv() {
        let next = loaded().with_activations(1, &[]);
        assert_eq!(next.activation, ids([10]));
        assert_eq!(kv_chunks(&next), [(0, 13), (1, 14), (2, 11), (3, 12)]);
    }

    #[test]
    fn activations_take_free_chunks_first_and_then_those_of_drained_kv_chunks() {
        let mut chunks = loaded();
        chunks.create(&ids([15]));
        let next = chunks.with_activations(5, &[KvChunkId(1), KvChunkId(0)]);
        assert_eq!(next.activation, ids([10, 11, 12, 15, 14]));
        assert_eq!(kv_chunks(&next), [(0, 13)]);
    }

    #[test]
    fn chunks_without_kv_addresses_stay_free() {
        let mut chunks = created(12);
        let next = chunks.with_kv_chunks(10);
        assert_eq!(kv_chunks(&next), [0, 1, 2, 3, 4, 5, 6, 7].map(|f| (f, f)));
        chunks.apply(next);
        assert_eq!(chunks.free_count(), 4);
        chunks.check();
    }

    #[test]
    fn drained_and_lent_owners_have_no_chunks() {
        let next = loaded().vacated(&[LayerId(3)], &[KvChunkId(0)]);
        assert_eq!(next.layers[3], ids([]));
        assert!(next.is_absent(LayerId(3)));
        assert_eq!(kv_chunks(&next), [(1, 14)]);
    }

    #[test]
    fn contents_are_preserved_where_a_complete_copy_keeps_its_chunks() {
        let chunks = loaded();
        let complete = [Some(Generation(4)), Some(Generation(5)), None, Some(Generation(7))];
        let next = chunks.with_layout(&moving(&[1, 3]), &[], &[]);
        let kept = [(LayerId(0), Generation(4)), (LayerId(1), Generation(5))];
        assert_eq!(
            chunks.ownership().preserved(&next, &complete),
            kept,
            "layer 3 is at the addresses of layer 1"
        );
    }

    #[test]
    fn deferred_unmaps_are_taken_by_next_change() {
        let mut chunks = loaded();
        let next = chunks.with_stale(chunks.with_activations(2, &[]), true);
        assert_eq!(next.stale, [(Address::Activation(2), ChunkId(12))]);
        chunks.apply(next);
        chunks.check();
        let next = chunks.with_stale(chunks.with_activations(1, &[]), true);
        let both = [(Address::Activation(1), ChunkId(11)), (Address::Activation(2), ChunkId(12))];
        assert_eq!(next.stale, both);
        let next = chunks.with_stale(chunks.with_kv_chunks(0), false);
        assert_eq!(next.stale, []);
    }

    #[test]
    fn no_plan_creates_or_loses_a_chunk() {
        let plans: [fn(&Chunks) -> Ownership; 6] = [
            |chunks| chunks.with_layout(&moving(&[0, 2, 3]), &[None], &[]),
            |chunks| chunks.with_layout(&Layout::resident(), &[None], &[KvChunkId(2), KvChunkId(3)]),
            |chunks| chunks.with_activations(1, &[]),
            |chunks| chunks.with_activations(5, &[KvChunkId(0), KvChunkId(1)]),
            |chunks| chunks.vacated(&[LayerId(2)], &[KvChunkId(3)]),
            |chunks| chunks.ownership().unmapped(),
        ];
        for (number, plan) in plans.iter().enumerate() {
            let mut chunks = remapped();
            chunks.apply(plan(&chunks));
            chunks.check();
            assert_eq!(chunks.table().created(), 15, "plan {number}");
        }
    }

    #[test]
    fn weights_held_counts_layers_and_slots() {
        assert_eq!((loaded().weights_held(), remapped().weights_held()), (8, 6));
        assert_eq!(LAYERS.map(|layer| remapped().ownership().layer_chunks(layer).len()), [2; 4]);
    }
}
