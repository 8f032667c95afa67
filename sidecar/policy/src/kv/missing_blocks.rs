//! Columns that running requests need on the device and that are not all there, with the blocks that each lacks.
//!
//! Every step asks how many blocks that are. So they are counted once for each column, and again only for those with which
//! something has happened since: a column in doubt.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::Kv;
use crate::ids::ColumnId;
use crate::layer_set::LayerSet;

/// Columns, their blocks, and the sum of these.
#[derive(Clone, Debug, Default)]
pub(super) struct MissingBlocks {
    columns: BTreeMap<ColumnId, u32>,
    blocks: u32,
    columns_to_recheck: Vec<ColumnId>,
}

impl MissingBlocks {
    /// The column may be wanted.
    pub fn add(&mut self, id: ColumnId) {
        self.columns.entry(id).or_insert(0);
        self.columns_to_recheck.push(id);
    }

    /// Something has happened with the column.
    pub fn recheck(&mut self, id: ColumnId) {
        if self.columns.contains_key(&id) {
            self.columns_to_recheck.push(id);
        }
    }

    /// Something has happened with all of them.
    pub fn recheck_all(&mut self) {
        self.columns_to_recheck = self.columns.keys().copied().collect();
    }

    /// The column is not wanted any more.
    pub fn remove(&mut self, id: ColumnId) {
        self.blocks -= self.columns.remove(&id).unwrap_or(0);
    }

    /// Only those are still wanted.
    pub fn retain(&mut self, keep: impl Fn(&ColumnId) -> bool) {
        self.columns.retain(|id, blocks| {
            let kept = keep(id);
            self.blocks -= if kept { 0 } else { *blocks };
            kept
        });
    }

    /// The column may be wanted.
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
    /// A request that is admitted uses the column: it has to be on the device.
    pub(super) fn add_missing(&mut self, id: ColumnId) {
        if !self.columns.is_whole(id) {
            self.missing_blocks.add(id);
        }
    }

    /// Blocks that the columns which are wanted on the device will take there.
    pub fn missing_block_count(&mut self) -> u32 {
        for id in core::mem::take(&mut self.missing_blocks.columns_to_recheck) {
            let blocks = self.lacking(id);
            self.missing_blocks.set(id, blocks);
        }
        self.missing_blocks.blocks
    }

    /// The first `most` columns that are wanted, which are not any more from now on.
    pub(super) fn take_missing(&mut self, most: u32) -> Vec<ColumnId> {
        self.missing_block_count();
        let taken: Vec<_> = self.missing_blocks.columns.keys().copied().take(most as usize).collect();
        taken.iter().for_each(|id| self.missing_blocks.remove(*id));
        taken
    }

    /// Blocks that somebody needs of the column and that are neither on the device nor in a buffer.
    fn lacking(&self, id: ColumnId) -> u32 {
        let used = self.columns.find(id).is_some_and(|column| column.refs > 0);
        if used { self.missing(id).len() } else { 0 }
    }

    /// Layers whose block is not on the device and that no buffer stands for.
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
