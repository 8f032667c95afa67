//! The audit of KV.

use alloc::collections::BTreeMap;

use super::Kv;
use crate::ids::ColumnId;

impl Kv {
    /// Every block in one column, references = users, the cache consistent.
    pub fn check(&self) {
        self.frames.check();
        let mut blocks = self.frames.reserved();
        for (id, column) in self.columns.iter() {
            let on_device = self.columns.has_blocks(id);
            assert!(on_device || column.stowed.is_some(), "{id:?} lies somewhere");
            blocks += if on_device { self.layers } else { 0 };
            for block in self.columns.blocks(id).iter().filter(|_| on_device) {
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
            assert_eq!(column.refs == 0 && column.stowed.is_none(), idle, "{id:?} without users is cache");
        }
        assert_eq!(blocks, self.frames.used_blocks(), "used blocks lie in columns or are reserved");
        self.tier.check(&self.columns);
        self.check_references();
    }

    fn check_references(&self) {
        let mut references: BTreeMap<ColumnId, u32> = BTreeMap::new();
        for id in self.sequences.values().flat_map(|s| &s.columns).chain(&self.moving) {
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
