//! Checks the invariants of KV.

use alloc::collections::BTreeMap;

use super::Kv;
use super::columns::Column;
use crate::ids::ColumnId;

impl Kv {
    /// Checks that every block belongs to one column, that reference counts match users, and that the cache is
    /// consistent.
    pub fn check(&self) {
        self.frames.check();
        let (reserved, buffers) = self.frames.reserved();
        assert_eq!(buffers, self.layer_offload.buffer_blocks(), "blocks of buffers are in buffers");
        let mut blocks = reserved + buffers;
        for (id, column) in self.columns.iter() {
            let on_device = self.columns.has_blocks(id);
            for layer in self.columns.missing_blocks_of(id).iter() {
                assert_eq!(self.columns.block(id, layer), None, "{id:?} knows what it has");
                let hosted = column.hosted_layers.contains(layer) || self.is_spilling(id);
                assert!(column.host_location.is_some() && hosted, "{id:?} lies somewhere");
            }
            for layer in column.resident_layers().iter() {
                let block = &self.columns.block(id, layer).expect("a column knows what it has");
                blocks += 1;
                assert!(
                    self.frames.is_backed(self.frames.frame_of(*block)),
                    "{block:?} of {id:?} has a chunk"
                );
                assert_eq!(self.frames.holder(*block), Some(id), "{block:?} lies in one column");
            }
            if let Some(content) = &column.content {
                assert_eq!(self.index.get(&content.hash), Some(&id), "a shareable column is indexed");
            }
            let idle = self.idle.get(&column.stamp) == Some(&id);
            assert_eq!(column.refs == 0 && on_device, idle, "{id:?} without users is cache");
            assert!(column.refs > 0 || !on_device || self.columns.is_whole(id), "cache is whole");
        }
        assert_eq!(blocks, self.frames.used_blocks(), "used blocks lie in columns or are reserved");
        self.host_pool.check(&self.columns);
        let away = |(id, column): (_, &Column)| column.staging_slot().map_or(0, |_| self.columns.absent(id));
        assert_eq!(
            self.columns.iter().map(away).sum::<u32>(),
            self.columns.offloaded_layers(),
            "blocks behind seats"
        );
        self.check_missing();
        self.check_layer_offload();
        self.check_references();
    }

    fn check_references(&self) {
        let mut references: BTreeMap<ColumnId, u32> = BTreeMap::new();
        let copied = self
            .moving_columns
            .iter()
            .chain(&self.loading_swaps)
            .chain(&self.layer_offload.writing)
            .chain(&self.layer_offload.prefill_spills.columns);
        for id in self.sequences.values().flat_map(|s| &s.columns).chain(copied) {
            *references.entry(*id).or_default() += 1;
        }
        for (id, column) in self.columns.iter() {
            assert_eq!(references.remove(&id).unwrap_or(0), column.refs, "references of {id:?}");
        }
        assert!(references.is_empty(), "requests use columns that exist");
        for (hash, id) in &self.index {
            let content = self.columns.get(*id).content.as_ref();
            assert_eq!(content.map(|c| c.hash), Some(*hash), "the index names shareable columns");
        }
        assert!(self.idle.values().all(|id| self.columns.get(*id).refs == 0), "cache has no users");
    }
}
