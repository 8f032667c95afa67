//! Puts placements in force and assigns requests to their sets.

use alloc::vec;
use alloc::vec::Vec;

use super::{LayerOffload, Placement, Set};
use crate::kv::Kv;
use crate::kv::blocks::KvBlocks;
use crate::kv::chunk_pool::KvChunkPool;
use crate::slots::Slots;

impl LayerOffload {
    /// Returns the placement in force.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// Checks staging slots and buffers against KV blocks and the arena.
    pub(in crate::kv) fn check(&self, kv_blocks: &KvBlocks, chunk_pool: &KvChunkPool) {
        self.slots.check();
        for (at, staged) in self.staging_slots.iter().enumerate() {
            let Some(staged) = staged else { continue };
            assert_eq!(
                kv_blocks.get(staged.kv_block).staging_slot(),
                Some(at as u32),
                "a KV block names its staging slot"
            );
            for layer in self.set(staged.set) {
                assert!(self.placement.layout.slot_of(*layer).is_some(), "{layer:?} of a staging slot moves");
                let hosted = kv_blocks.get(staged.kv_block).hosted_layers.contains(*layer);
                assert!(
                    hosted || self.is_spilling(staged.kv_block),
                    "a staged layer block has a copy in the host tier"
                );
            }
        }
        let holes = self.staging_slots.iter().filter(|staged| staged.is_none()).count() as u32;
        assert_eq!(holes, self.free_slots, "free staging slots");
        for buffer in &self.buffers {
            assert!(buffer.len() >= self.staging_slots.len(), "each buffer has space for each staging slot");
            assert!(
                buffer.iter().all(|layer_block| chunk_pool.is_buffer(*layer_block)),
                "buffers hold their blocks"
            );
        }
    }
}

impl Kv {
    /// Puts another placement into force from the next step on. If its first set is not all layers, it ends prefill
    /// offload. KV blocks that stay partly offloaded keep a staging slot as far as there are blocks for the buffers;
    /// other missing blocks are queued for swap-in.
    ///
    /// # Panics
    /// If a fetch is in progress, or a buffer would serve only one layer.
    pub fn place(&mut self, placement: Placement) {
        assert!(self.layer_offload.fetching.is_empty(), "buffers change while nothing is copied into them");
        let beta = usize::from(placement.layout.beta);
        assert!(placement.layout.moving.len() >= 2 * beta, "a buffer serves at least two layers");
        let layers = self.layers as usize;
        if placement.sets.first().is_none_or(|set| set.len() < layers) {
            self.layer_offload.prefill_spills.disable_prefill_spill();
        }
        let old = core::mem::take(&mut self.layer_offload.staging_slots);
        self.layer_offload.release_buffers(&mut self.chunk_pool);
        self.layer_offload.release_pinned_places(&mut self.host_pool);
        for staged in old.iter().flatten() {
            self.kv_blocks.set_staging_slot(staged.kv_block, None);
            self.missing_layer_blocks.recheck(staged.kv_block);
        }
        self.layer_offload = LayerOffload {
            slots: Slots::new(placement.layout.clone(), vec![None; beta]),
            buffers: vec![Vec::new(); beta],
            sets: placement.sets.iter().map(|set| Set::of(set, &placement.layout)).collect(),
            slots_in_tables: vec![0; layers],
            evicted_slots: vec![0; layers],
            newest: self.layer_offload.newest,
            prefill_spills: core::mem::take(&mut self.layer_offload.prefill_spills),
            placement,
            ..LayerOffload::new(self.layers as u16)
        };
        self.history.word(!(self.layer_offload.placement.layout.moving.len() as u64));
        self.requests.check_all_again();
        self.restage();
        let staged_blocks: Vec<_> = old.into_iter().flatten().map(|staged| staged.kv_block).collect();
        self.requests.touch(&staged_blocks.into_iter().collect());
    }
}
