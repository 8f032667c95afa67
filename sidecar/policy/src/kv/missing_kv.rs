//! Counts the blocks that running requests lack on the device: those that steps need and no buffer serves.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::Kv;
use super::admissions::AdmissionEffects;
use crate::ids::KvBlockId;
use crate::layer_set::LayerSet;

impl Kv {
    /// Adds a KV block that an admitted request uses, if it is incomplete.
    pub(super) fn add_missing(&mut self, id: KvBlockId) {
        if !self.kv_blocks.is_whole(id) {
            self.missing_layer_blocks.add(id);
        }
    }

    /// Returns the blocks that the tracked KV blocks will take on the device.
    pub fn missing_layer_block_count(&self) -> u32 {
        self.missing_layer_blocks.layer_blocks_with(|id| self.layer_offload.lacking(id, &self.kv_blocks))
    }

    /// Counts the blocks of changed KV blocks again, so that [`Kv::missing_layer_block_count`] need not.
    pub fn recount_missing(&mut self) {
        for id in self.missing_layer_blocks.take_rechecks() {
            let layer_blocks = self.layer_offload.lacking(id, &self.kv_blocks);
            self.missing_layer_blocks.set(id, layer_blocks);
        }
    }

    /// Removes and returns the first `max` KV blocks of those that are tracked and those of the admissions, each with
    /// the layers that it lacks.
    pub(super) fn take_missing(
        &mut self,
        max: u32,
        effects: &mut AdmissionEffects,
    ) -> Vec<(KvBlockId, LayerSet)> {
        self.recount_missing();
        let tracked = self
            .missing_layer_blocks
            .kv_blocks()
            .map(|id| (id, self.layer_offload.missing(id, &self.kv_blocks)));
        let wanted: BTreeMap<_, _> = effects.kv_blocks_to_load().chain(tracked).collect();
        let taken: Vec<_> = wanted.into_iter().take(max as usize).collect();
        for (id, _) in &taken {
            self.missing_layer_blocks.remove(*id);
            effects.on_load_planned(*id);
        }
        taken
    }
}
