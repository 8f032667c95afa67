//! The host tier: places for KV blocks in host memory, and the cached KV blocks there.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::blocks::KvBlocks;
use crate::ids::KvBlockId;

/// Places for whole KV blocks, and the unreferenced KV blocks in them.
#[derive(Clone, Debug, Default)]
pub struct HostKvPool {
    kv_blocks: u32,
    /// Places that were used and are free again.
    vacant: Vec<u32>,
    /// The first place that was never used.
    fresh: u32,
    /// Shareable unreferenced KV blocks, least recently used first.
    idle: BTreeMap<u64, KvBlockId>,
    /// The same KV blocks by the name of their preceding KV block.
    children: BTreeSet<(u64, KvBlockId)>,
}

impl HostKvPool {
    pub fn new(kv_blocks: u32) -> HostKvPool {
        HostKvPool { kv_blocks, ..HostKvPool::default() }
    }

    /// Returns the capacity, KV blocks.
    pub fn kv_blocks(&self) -> u32 {
        self.kv_blocks
    }

    /// Returns the number of used places.
    pub fn used(&self) -> u32 {
        self.fresh - self.vacant.len() as u32
    }

    /// Returns the number of free places.
    pub fn room(&self) -> u32 {
        self.kv_blocks - self.used()
    }

    /// Returns the number of unreferenced KV blocks.
    pub fn idle(&self) -> u32 {
        self.idle.len() as u32
    }

    /// Returns the number of places that are used by more than the cache.
    pub fn used_without_cache(&self) -> u32 {
        self.used() - self.idle()
    }

    /// Returns the number of places that are free or used only by the cache.
    pub fn available(&self) -> u32 {
        self.room() + self.idle()
    }

    /// Returns a free place for a KV block.
    ///
    /// # Panics
    /// If no place is free.
    pub fn take(&mut self) -> u32 {
        self.vacant.pop().unwrap_or_else(|| {
            assert!(self.fresh < self.kv_blocks, "a place is taken only when there is one");
            self.fresh += 1;
            self.fresh - 1
        })
    }

    /// Frees a place.
    pub fn give(&mut self, place: u32) {
        self.vacant.push(place);
    }

    /// Keeps a KV block as cache when its last reference is dropped.
    pub fn keep(&mut self, stamp: u64, parent: u64, id: KvBlockId) {
        self.idle.insert(stamp, id);
        self.children.insert((parent, id));
    }

    /// Removes a cached KV block from the cache because it is referenced again.
    pub fn reuse(&mut self, stamp: u64, parent: u64, id: KvBlockId) {
        self.idle.remove(&stamp);
        self.children.remove(&(parent, id));
    }

    /// Returns the release stamp of the least recently used cached KV block.
    pub fn oldest(&self) -> Option<u64> {
        self.idle.first_key_value().map(|(stamp, _)| *stamp)
    }

    /// Removes the least recently used KV block from the cache, of those that are not `kept`.
    pub fn take_oldest(
        &mut self,
        kept: impl Fn(KvBlockId) -> bool,
        kv_blocks: &KvBlocks,
    ) -> Option<KvBlockId> {
        let (stamp, id) = self.idle.iter().find(|(_, id)| !kept(**id)).map(|(stamp, id)| (*stamp, *id))?;
        self.idle.remove(&stamp);
        let content = kv_blocks.get(id).content.as_ref().expect("an idle KV block is shareable");
        self.children.remove(&(content.parent, id));
        Some(id)
    }

    /// Removes the children of the KV block named `parent` from the cache.
    pub fn take_children(&mut self, parent: u64, kv_blocks: &KvBlocks) -> Vec<KvBlockId> {
        let of_parent = (parent, KvBlockId(0))..=(parent, KvBlockId(u32::MAX));
        let children: Vec<_> = self.children.range(of_parent).map(|(_, id)| *id).collect();
        children.iter().for_each(|id| self.reuse(kv_blocks.get(*id).stamp, parent, *id));
        children
    }

    /// Checks that every cached KV block is one of `kv_blocks` and has both of its keys.
    pub fn check(&self, kv_blocks: &KvBlocks) {
        assert_eq!(self.idle.len(), self.children.len(), "cached KV blocks have two keys");
        for (stamp, id) in &self.idle {
            let kv_block = kv_blocks.get(*id);
            let parent = kv_block.content.as_ref().map(|content| content.parent);
            assert_eq!((kv_block.refs, kv_block.stamp), (0, *stamp), "{id:?} is cache");
            assert!(
                parent.is_some_and(|parent| self.children.contains(&(parent, *id))),
                "{id:?} has a parent"
            );
        }
        let used = kv_blocks.iter().filter(|(_, kv_block)| kv_block.host_location.is_some()).count() as u32;
        assert!(
            self.used() >= used && self.used() <= self.kv_blocks,
            "every KV block of the host tier has a place"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::blocks::Content;

    /// A KV block named after its id, with this parent.
    fn add(kv_blocks: &mut KvBlocks, parent: u64) -> KvBlockId {
        let id = kv_blocks.add();
        let tokens = [0; crate::geometry::BLOCK_TOKENS as usize];
        let content = Content { name: u64::from(id.0) + 1, salt: 0, parent, hash: u64::from(id.0), tokens };
        kv_blocks.get_mut(id).content = Some(content);
        id
    }

    #[test]
    fn freed_places_are_taken_first_and_cache_counts_as_available() {
        let mut pool = HostKvPool::new(3);
        assert_eq!([pool.take(), pool.take()], [0, 1]);
        pool.give(0);
        assert_eq!((pool.take(), pool.used(), pool.room()), (0, 2, 1));
        pool.keep(0, 0, KvBlockId(7));
        assert_eq!((pool.used_without_cache(), pool.available()), (1, 2));
    }

    #[test]
    fn oldest_kv_block_leaves_the_cache_unless_it_is_kept() {
        let (mut pool, mut kv_blocks) = (HostKvPool::new(3), KvBlocks::new(1));
        let ids = [(); 3].map(|()| add(&mut kv_blocks, 0));
        ids.iter().zip(5..).for_each(|(id, stamp)| pool.keep(stamp, 0, *id));
        assert_eq!(pool.oldest(), Some(5));
        assert_eq!(pool.take_oldest(|id| id == ids[0], &kv_blocks), Some(ids[1]));
        pool.reuse(5, 0, ids[0]);
        assert_eq!((pool.oldest(), pool.idle()), (Some(7), 1));
    }

    #[test]
    fn children_leave_the_cache_with_their_parent() {
        let (mut pool, mut kv_blocks) = (HostKvPool::new(3), KvBlocks::new(1));
        let ids = [9, 9, 4].map(|parent| add(&mut kv_blocks, parent));
        for (id, stamp) in ids.into_iter().zip(5..) {
            kv_blocks.get_mut(id).stamp = stamp;
            let parent = kv_blocks.get(id).content.as_ref().map_or(0, |content| content.parent);
            pool.keep(stamp, parent, id);
        }
        assert_eq!(pool.take_children(9, &kv_blocks), [ids[0], ids[1]]);
        assert_eq!((pool.take_children(9, &kv_blocks), pool.idle()), (Vec::new(), 1));
    }
}
