//! Tracks the KV blocks that running requests need on the device and that are incomplete, with the missing blocks of
//! each.
//!
//! Every step needs the total. The blocks are counted once per KV block, and again only for KV blocks that changed
//! since.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use crate::ids::KvBlockId;

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

    /// Sets the missing blocks of a tracked KV block; one without any is tracked no longer.
    pub fn set(&mut self, id: KvBlockId, layer_blocks: u32) {
        if layer_blocks == 0 {
            return self.remove(id);
        }
        if let Some(known) = self.kv_blocks.get_mut(&id) {
            self.layer_blocks = self.layer_blocks - *known + layer_blocks;
            *known = layer_blocks;
        }
    }

    /// Takes the KV blocks that are marked for a recount.
    pub fn take_rechecks(&mut self) -> Vec<KvBlockId> {
        core::mem::take(&mut self.kv_blocks_to_recheck)
    }

    /// Returns the missing blocks of all tracked KV blocks. Those that are marked for a recount lack what `lacking`
    /// says.
    pub fn layer_blocks_with(&self, lacking: impl Fn(KvBlockId) -> u32) -> u32 {
        let marked: BTreeSet<_> = self.kv_blocks_to_recheck.iter().collect();
        let known = |id: &&KvBlockId| self.kv_blocks.get(id).map(|known| (**id, *known));
        let add = |sum: u32, (id, known): (KvBlockId, u32)| sum + lacking(id) - known;
        marked.iter().filter_map(known).fold(self.layer_blocks, add)
    }

    /// Returns the tracked KV blocks in ascending order.
    pub fn kv_blocks(&self) -> impl Iterator<Item = KvBlockId> + '_ {
        self.kv_blocks.keys().copied()
    }

    /// Checks the sum, and that every tracked KV block that is not marked lacks what `lacking` says.
    pub fn check(&self, lacking: impl Fn(KvBlockId) -> u32) {
        assert_eq!(self.kv_blocks.values().sum::<u32>(), self.layer_blocks, "the sum of the missing blocks");
        for (id, layer_blocks) in &self.kv_blocks {
            let marked = self.kv_blocks_to_recheck.contains(id);
            assert!(marked || *layer_blocks == lacking(*id), "{id:?} lacks {layer_blocks} blocks");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sum_follows_recounts_and_removals() {
        let mut missing = MissingLayerBlocks::default();
        [1, 2, 3].into_iter().for_each(|id| missing.add(KvBlockId(id)));
        assert_eq!(missing.take_rechecks().len(), 3);
        [(1, 4), (2, 2), (3, 0)].into_iter().for_each(|(id, blocks)| missing.set(KvBlockId(id), blocks));
        assert_eq!((missing.layer_blocks_with(|_| 9), missing.contains(KvBlockId(3))), (6, false));
        missing.recheck(KvBlockId(3));
        missing.recheck(KvBlockId(2));
        assert_eq!(missing.layer_blocks_with(|_| 1), 5, "the marked one has one block now");
        assert_eq!(missing.take_rechecks(), [KvBlockId(2)], "only tracked KV blocks are counted again");
        missing.set(KvBlockId(2), 1);
        missing.retain(|id| *id != KvBlockId(1));
        assert_eq!((missing.layer_blocks_with(|_| 9), missing.kv_blocks().count()), (1, 1));
        missing.check(|_| 1);
        missing.remove(KvBlockId(2));
        assert!(missing.is_empty());
    }
}
