//! Tracks the KV blocks that running requests need on the device and that are incomplete, with the missing blocks of
//! each.
//!
//! Every step needs the total. The blocks are counted once per KV block, and again only for KV blocks that changed
//! since.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::Kv;
use crate::ids::KvBlockId;
use crate::layer_set::LayerSet;

/// KV blocks, the missing blocks of each, and their sum.
#[derive(Clone, Debug, Default)]
pub(super) struct MissingLayerBlocks {
    kv_blocks: BTreeMap<KvBlockId, u32>,
    layer_blocks: u32,
    kv_blocks_to_recheck: Vec<KvBlockId>,
}

impl MissingLayerBlocks {
    /// Adds a KV block that may have missing blocks.
    pub fn add(&mut self, id: KvBlockId) {
        self.kv_blocks.entry(id).or_insert(0);
        self.kv_blocks_to_recheck.push(id);
    }

    /// Marks a KV block for a recount.
    pub fn recheck(&mut self, id: KvBlockId) {
        if self.kv_blocks.contains_key(&id) {
            self.kv_blocks_to_recheck.push(id);
        }
    }

    /// Marks all KV blocks for a recount.
    pub fn recheck_all(&mut self) {
        self.kv_blocks_to_recheck = self.kv_blocks.keys().copied().collect();
    }

    /// Removes a KV block.
    pub fn remove(&mut self, id: KvBlockId) {
        self.layer_blocks -= self.kv_blocks.remove(&id).unwrap_or(0);
    }

    /// Keeps only the KV blocks that match.
    pub fn retain(&mut self, keep: impl Fn(&KvBlockId) -> bool) {
        self.kv_blocks.retain(|id, layer_blocks| {
            let kept = keep(id);
            self.layer_blocks -= if kept { 0 } else { *layer_blocks };
            kept
        });
    }

    /// Whether no KV block is tracked.
    pub fn is_empty(&self) -> bool {
        self.kv_blocks.is_empty()
    }

    /// Whether the KV block is tracked.
    pub fn contains(&self, id: KvBlockId) -> bool {
        self.kv_blocks.contains_key(&id)
    }

    fn set(&mut self, id: KvBlockId, layer_blocks: u32) {
        if layer_blocks == 0 {
            return self.remove(id);
        }
        if let Some(known) = self.kv_blocks.get_mut(&id) {
            self.layer_blocks = self.layer_blocks - *known + layer_blocks;
            *known = layer_blocks;
        }
    }
}

impl Kv {
    /// Adds a KV block that an admitted request uses, if it is incomplete.
    pub(super) fn add_missing(&mut self, id: KvBlockId) {
        if !self.kv_blocks.is_whole(id) {
            self.missing_layer_blocks.add(id);
        }
    }

    /// Forgets the KV blocks that no running request uses, for instance those of suspended requests alone.
    pub(super) fn retain_missing_of_running(&mut self) {
        if !self.missing_layer_blocks.is_empty() {
            let running = self.kv_blocks_of_running();
            self.missing_layer_blocks.retain(|id| running.contains(id));
        }
    }

    /// Returns the KV blocks of all requests that are not suspended.
    pub(super) fn kv_blocks_of_running(&self) -> BTreeSet<KvBlockId> {
        let running = self.sequences.values().filter(|sequence| !sequence.suspended);
        running.flat_map(|sequence| sequence.kv_blocks.iter().copied()).collect()
    }

    /// Returns the blocks that the tracked KV blocks will take on the device.
    pub fn missing_layer_block_count(&mut self) -> u32 {
        for id in core::mem::take(&mut self.missing_layer_blocks.kv_blocks_to_recheck) {
            let layer_blocks = self.lacking(id);
            self.missing_layer_blocks.set(id, layer_blocks);
        }
        self.missing_layer_blocks.layer_blocks
    }

    /// Removes and returns the first `most` tracked KV blocks.
    pub(super) fn take_missing(&mut self, most: u32) -> Vec<KvBlockId> {
        self.missing_layer_block_count();
        let taken: Vec<_> = self.missing_layer_blocks.kv_blocks.keys().copied().take(most as usize).collect();
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
        let sum: u32 = self.missing_layer_blocks.kv_blocks.values().sum();
        assert_eq!(sum, self.missing_layer_blocks.layer_blocks, "blocks that are wanted");
        let running = self.kv_blocks_of_running();
        for (id, layer_blocks) in &self.missing_layer_blocks.kv_blocks {
            assert!(running.contains(id), "a running request uses {id:?}");
            let doubtful = self.missing_layer_blocks.kv_blocks_to_recheck.contains(id);
            assert!(doubtful || *layer_blocks == self.lacking(*id), "{id:?} lacks {layer_blocks} blocks");
        }
    }
}
