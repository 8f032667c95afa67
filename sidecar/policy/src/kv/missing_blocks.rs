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
    doubtful: Vec<ColumnId>,
}

impl MissingBlocks {
    /// The column may be wanted.
    pub fn add(&mut self, id: ColumnId) {
        self.columns.entry(id).or_insert(0);
        self.doubtful.push(id);
    }

    /// Something has happened with the column.
    pub fn recheck(&mut self, id: ColumnId) {
        if self.columns.contains_key(&id) {
            self.doubtful.push(id);
        }
    }

    /// Something has happened with all of them.
    pub fn recheck_all(&mut self) {
        self.doubtful = self.columns.keys().copied().collect();
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
    pub(super) fn want(&mut self, id: ColumnId) {
        if !self.columns.is_whole(id) {
            self.wanted.add(id);
        }
    }

    /// Blocks that the columns which are wanted on the device will take there.
    pub fn wanted_blocks(&mut self) -> u32 {
        for id in core::mem::take(&mut self.wanted.doubtful) {
            let blocks = self.lacking(id);
            self.wanted.set(id, blocks);
        }
        self.wanted.blocks
    }

    /// The first `most` columns that are wanted, which are not any more from now on.
    pub(super) fn take_wanted(&mut self, most: u32) -> Vec<ColumnId> {
        self.wanted_blocks();
        let taken: Vec<_> = self.wanted.columns.keys().copied().take(most as usize).collect();
        taken.iter().for_each(|id| self.wanted.remove(*id));
        taken
    }

    /// Blocks that somebody needs of the column and that are neither on the device nor in a buffer.
    fn lacking(&self, id: ColumnId) -> u32 {
        let used = self.columns.find(id).is_some_and(|column| column.refs > 0);
        if used { self.missing(id).len() } else { 0 }
    }

    /// Layers whose block is not on the device and that no buffer stands for.
    pub(super) fn missing(&self, id: ColumnId) -> LayerSet {
        let seat = self.columns.get(id).seat();
        self.columns.gone(id) - seat.map_or(LayerSet::NONE, |seat| self.stream.members(seat))
    }

    pub(super) fn check_wanted(&self) {
        let sum: u32 = self.wanted.columns.values().sum();
        assert_eq!(sum, self.wanted.blocks, "blocks that are wanted");
        for (id, blocks) in &self.wanted.columns {
            let doubtful = self.wanted.doubtful.contains(id);
            assert!(doubtful || *blocks == self.lacking(*id), "{id:?} lacks {blocks} blocks");
        }
    }
}
