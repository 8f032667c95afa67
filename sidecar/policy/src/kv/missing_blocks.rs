//! Tracks the columns that running requests need on the device and that are incomplete, with the missing blocks of
//! each.
//!
//! Every step needs the total. The blocks are counted once per column, and again only for columns that changed since.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::Kv;
use crate::ids::ColumnId;
use crate::layer_set::LayerSet;

/// Columns, the missing blocks of each, and their sum.
#[derive(Clone, Debug, Default)]
pub(super) struct MissingBlocks {
    columns: BTreeMap<ColumnId, u32>,
    blocks: u32,
    columns_to_recheck: Vec<ColumnId>,
}

impl MissingBlocks {
    /// Adds a column that may have missing blocks.
    pub fn add(&mut self, id: ColumnId) {
        self.columns.entry(id).or_insert(0);
        self.columns_to_recheck.push(id);
    }

    /// Marks a column for a recount.
    pub fn recheck(&mut self, id: ColumnId) {
        if self.columns.contains_key(&id) {
            self.columns_to_recheck.push(id);
        }
    }

    /// Marks all columns for a recount.
    pub fn recheck_all(&mut self) {
        self.columns_to_recheck = self.columns.keys().copied().collect();
    }

    /// Removes a column.
    pub fn remove(&mut self, id: ColumnId) {
        self.blocks -= self.columns.remove(&id).unwrap_or(0);
    }

    /// Keeps only the columns that match.
    pub fn retain(&mut self, keep: impl Fn(&ColumnId) -> bool) {
        self.columns.retain(|id, blocks| {
            let kept = keep(id);
            self.blocks -= if kept { 0 } else { *blocks };
            kept
        });
    }

    /// Whether the column is tracked.
    pub fn contains(&self, id: ColumnId) -> bool {
        self.columns.contains_key(&id)
    }

    fn set(&mut self, id: ColumnId, blocks: u32) {
        if blocks == 0 {
            return self.remove(id);
        }
        if let Some(known) = self.columns.get_mut(&id) {
            self.blocks = self.blocks - *known + blocks;
            *known = blocks;
        }
    }
}

impl Kv {
    /// Adds a column that an admitted request uses, if it is incomplete.
    pub(super) fn add_missing(&mut self, id: ColumnId) {
        if !self.columns.is_whole(id) {
            self.missing_blocks.add(id);
        }
    }

    /// Returns the blocks that the tracked columns will take on the device.
    pub fn missing_block_count(&mut self) -> u32 {
        for id in core::mem::take(&mut self.missing_blocks.columns_to_recheck) {
            let blocks = self.lacking(id);
            self.missing_blocks.set(id, blocks);
        }
        self.missing_blocks.blocks
    }

    /// Removes and returns the first `most` tracked columns.
    pub(super) fn take_missing(&mut self, most: u32) -> Vec<ColumnId> {
        self.missing_block_count();
        let taken: Vec<_> = self.missing_blocks.columns.keys().copied().take(most as usize).collect();
        taken.iter().for_each(|id| self.missing_blocks.remove(*id));
        taken
    }

    /// Returns the blocks of a used column that are neither on the device nor in a buffer.
    fn lacking(&self, id: ColumnId) -> u32 {
        let used = self.columns.find(id).is_some_and(|column| column.refs > 0);
        if used { self.missing(id).len() } else { 0 }
    }

    /// Returns the layers whose block is neither on the device nor in a buffer.
    pub(super) fn missing(&self, id: ColumnId) -> LayerSet {
        let seat = self.columns.get(id).staging_slot();
        self.columns.missing_blocks_of(id)
            - seat.map_or(LayerSet::NONE, |seat| self.layer_offload.members(seat))
    }

    pub(super) fn check_missing(&self) {
        let sum: u32 = self.missing_blocks.columns.values().sum();
        assert_eq!(sum, self.missing_blocks.blocks, "blocks that are wanted");
        for (id, blocks) in &self.missing_blocks.columns {
            let doubtful = self.missing_blocks.columns_to_recheck.contains(id);
            assert!(doubtful || *blocks == self.lacking(*id), "{id:?} lacks {blocks} blocks");
        }
    }
}
