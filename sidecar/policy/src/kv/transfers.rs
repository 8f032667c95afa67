//! KV blocks that are being copied to or from the host tier. Each has one more reference until its copy ends.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use crate::ids::KvBlockId;

/// KV blocks in transfer, by the kind of the copy.
#[derive(Clone, Debug, Default)]
pub struct Transfers {
    /// To or from the host tier between steps.
    moving: Vec<KvBlockId>,
    /// From the host tier in parallel with steps; no step reads them yet.
    loading: BTreeSet<KvBlockId>,
    /// To the host tier in parallel with steps; steps read them.
    writing: Vec<KvBlockId>,
}

impl Transfers {
    /// Copies of these KV blocks between two steps begin; all earlier ones have ended.
    pub fn begin_moving(&mut self, kv_blocks: Vec<KvBlockId>) {
        self.moving = kv_blocks;
    }

    /// The copies between two steps have ended.
    pub fn end_moving(&mut self) {
        self.moving.clear();
    }

    /// Loads of these KV blocks in parallel with steps begin.
    pub fn begin_loading(&mut self, kv_blocks: impl Iterator<Item = KvBlockId>) {
        self.loading.extend(kv_blocks);
    }

    /// The load of a KV block has ended.
    pub fn end_load(&mut self, id: KvBlockId) {
        if !self.loading.remove(&id) {
            self.moving.retain(|moving| *moving != id);
        }
    }

    /// A write-back of a KV block begins.
    pub fn begin_writing(&mut self, id: KvBlockId) {
        self.writing.push(id);
    }

    /// A write-back of a KV block has ended.
    ///
    /// # Panics
    /// If none was under way.
    pub fn end_writing(&mut self, id: KvBlockId) {
        let at = self.writing.iter().position(|writing| *writing == id);
        self.writing.swap_remove(at.expect("a KV block that is written back is known"));
    }

    /// Whether KV blocks are being loaded in parallel with steps.
    pub fn has_loads(&self) -> bool {
        !self.loading.is_empty()
    }

    /// Whether the KV block is being loaded in parallel with steps.
    pub fn is_loading(&self, id: KvBlockId) -> bool {
        self.loading.contains(&id)
    }

    /// Whether KV blocks are being written back.
    pub fn is_writing_back(&self) -> bool {
        !self.writing.is_empty()
    }

    /// Whether the KV block is being written back.
    pub fn is_writing(&self, id: KvBlockId) -> bool {
        self.writing.contains(&id)
    }

    /// Whether the KV block is being copied in parallel with steps.
    pub fn is_copied(&self, id: KvBlockId) -> bool {
        self.is_writing(id) || self.is_loading(id)
    }

    /// The KV blocks that are being loaded in parallel with steps.
    pub fn loading(&self) -> impl Iterator<Item = KvBlockId> + '_ {
        self.loading.iter().copied()
    }

    /// The KV blocks that are being written back.
    pub fn writing(&self) -> impl Iterator<Item = KvBlockId> + '_ {
        self.writing.iter().copied()
    }

    /// All KV blocks in transfer, each once for every copy.
    pub fn iter(&self) -> impl Iterator<Item = &KvBlockId> + '_ {
        self.moving.iter().chain(&self.loading).chain(&self.writing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn load_ends_for_the_copy_that_is_under_way() {
        let mut transfers = Transfers::default();
        transfers.begin_moving(vec![KvBlockId(1), KvBlockId(2)]);
        transfers.begin_loading([KvBlockId(3)].into_iter());
        assert!(transfers.is_loading(KvBlockId(3)) && !transfers.is_loading(KvBlockId(1)));
        transfers.end_load(KvBlockId(1));
        transfers.end_load(KvBlockId(3));
        assert!(!transfers.has_loads());
        assert_eq!(transfers.iter().collect::<Vec<_>>(), [&KvBlockId(2)]);
        transfers.end_moving();
        assert_eq!(transfers.iter().count(), 0);
    }

    #[test]
    fn only_copies_during_steps_keep_kv_blocks_in_place() {
        let mut transfers = Transfers::default();
        transfers.begin_moving(vec![KvBlockId(1)]);
        transfers.begin_writing(KvBlockId(2));
        assert_eq!([1, 2].map(|id| transfers.is_copied(KvBlockId(id))), [false, true]);
        transfers.end_writing(KvBlockId(2));
        assert!(!transfers.is_writing_back() && !transfers.is_copied(KvBlockId(2)));
    }
}
