//! Counts the blocks that running requests lack on the device: those that steps need and no buffer serves.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use super::Kv;
use crate::ids::KvBlockId;
use crate::layer_set::LayerSet;

impl Kv {
    /// Adds a KV block that an admitted request uses, if it is incomplete.
    pub(super) fn add_missing(&mut self, id: KvBlockId) {
        if !self.kv_blocks.is_whole(id) {
            self.missing_layer_blocks.add(id);
        }
    }

    /// Returns the KV blocks of all requests that are not suspended.
    pub(super) fn kv_blocks_of_running(&self) -> BTreeSet<KvBlockId> {
        let running = self.sequences.values().filter(|sequence| !sequence.suspended);
        running.flat_map(|sequence| sequence.kv_blocks.iter().copied()).collect()
    }

    /// Returns the blocks that the tracked KV blocks will take on the device.
    pub fn missing_layer_block_count(&mut self) -> u32 {
        for id in self.missing_layer_blocks.take_rechecks() {
            let layer_blocks = self.lacking(id);
            self.missing_layer_blocks.set(id, layer_blocks);
        }
        self.missing_layer_blocks.layer_blocks()
    }

    /// Removes and returns the first `most` tracked KV blocks.
    pub(super) fn take_missing(&mut self, most: u32) -> Vec<KvBlockId> {
        self.missing_layer_block_count();
        let taken: Vec<_> = self.missing_layer_blocks.kv_blocks().take(most as usize).collect();
        taken.iter().for_each(|id| self.missing_layer_blocks.remove(*id));
        taken
    }

    /// Returns the blocks of a used KV block that are neither on the device nor in a buffer.
    fn lacking(&self, id: KvBlockId) -> u32 {
        let used = self.kv_blocks.find(id).is_some_and(|kv_block| kv_block.refs > 0);
        if used { self.missing(id).len() } else { 0 }
    }

    /// Returns the layers whose block is neither on the device nor in a buffer.
    pub(super) fn missing(&self, id: KvBlockId) -> LayerSet {
        let seat = self.kv_blocks.get(id).staging_slot();
        self.kv_blocks.missing_layer_blocks_of(id)
            - seat.map_or(LayerSet::NONE, |seat| self.layer_offload.members(seat))
    }

    pub(super) fn check_missing(&self) {
        let running = self.kv_blocks_of_running();
        for id in self.missing_layer_blocks.kv_blocks() {
            assert!(running.contains(&id), "a running request uses {id:?}");
        }
        self.missing_layer_blocks.check(|id| self.lacking(id));
    }
}
