//! Users of KV blocks: a block that loses its last user becomes cache, is evicted or is freed.

use super::Kv;
use crate::ids::{KvBlockId, RequestId};
use crate::layer_set::LayerSet;

impl Kv {
    pub(super) fn append(&mut self, request: RequestId, id: KvBlockId) {
        self.requests.append(request, id);
        self.history.word(request.0 << 32 ^ u64::from(id.0));
        self.history.word(u64::from(self.kv_blocks.layer_blocks(id)[0].0));
    }

    /// Adds a reference.
    pub(super) fn add_reference(&mut self, id: KvBlockId) {
        let kv_block = self.kv_blocks.get_mut(id);
        kv_block.refs += 1;
        if kv_block.refs > 1 {
            return;
        }
        let (stamp, parent) = (kv_block.stamp, kv_block.content.as_ref().map(|content| content.parent));
        match parent {
            Some(parent) if !self.kv_blocks.has_layer_blocks(id) => self.host_pool.reuse(stamp, parent, id),
            _ => self.prefix_cache.reuse(stamp),
        }
    }

    /// Drops one reference; an unreferenced KV block is evicted.
    pub(super) fn discard(&mut self, id: KvBlockId) {
        let kv_block = self.kv_blocks.get_mut(id);
        kv_block.refs -= 1;
        self.missing_layer_blocks.recheck(id);
        let kv_block = self.kv_blocks.get(id);
        match (kv_block.refs, &kv_block.content) {
            (0, Some(_)) => self.evict_kv_block(id),
            (0, None) => self.free(id),
            _ => {}
        }
    }

    /// Drops one reference; an unreferenced shareable KV block becomes cache.
    pub(super) fn release_reference(&mut self, id: KvBlockId) {
        let kv_block = self.kv_blocks.get_mut(id);
        kv_block.refs -= 1;
        if kv_block.refs > 0 {
            return;
        }
        self.missing_layer_blocks.recheck(id);
        let kv_block = self.kv_blocks.get(id);
        let Some(parent) = kv_block.content.as_ref().map(|content| content.parent) else {
            return self.free(id);
        };
        if !self.kv_blocks.has_layer_blocks(id) {
            let stamp = self.prefix_cache.stamp(id, &mut self.kv_blocks);
            return self.host_pool.keep(stamp, parent, id);
        }
        if !self.kv_blocks.is_whole(id) {
            return self.evict_kv_block(id);
        }
        self.release_host_place(id);
        self.prefix_cache.keep(id, &mut self.kv_blocks);
    }

    /// Frees the KV block's place in the host tier, and its staging slot.
    pub(super) fn release_host_place(&mut self, id: KvBlockId) {
        let (slot, host_location) =
            (self.kv_blocks.set_staging_slot(id, None), self.kv_blocks.get_mut(id).host_location.take());
        self.missing_layer_blocks.recheck(id);
        self.kv_blocks.get_mut(id).hosted_layers = LayerSet::NONE;
        if let Some(host_location) = host_location {
            self.layer_offload.free_place(slot, host_location.place, &mut self.host_pool);
        }
    }

    fn free(&mut self, id: KvBlockId) {
        self.release_host_place(id);
        self.chunk_pool.give(&self.kv_blocks.take_layer_blocks(id));
        self.kv_blocks.remove(id);
    }

    /// Evicts the least recently used unreferenced KV block on the device, with all its descendants in the host tier.
    /// Returns whether there was one.
    pub fn evict(&mut self) -> bool {
        let Some(id) = self.prefix_cache.take_oldest() else { return false };
        self.evict_kv_block(id);
        true
    }

    /// Evicts an unreferenced KV block. Its descendants in the host tier could never be found again and are evicted
    /// too.
    pub(super) fn evict_kv_block(&mut self, id: KvBlockId) {
        let mut orphans = alloc::vec![id];
        while let Some(id) = orphans.pop() {
            let name = self.unpublish(id).expect("an idle KV block is shareable");
            self.free(id);
            orphans.extend(self.host_pool.take_children(name, &self.kv_blocks));
        }
    }

    /// Removes the KV block from the prefix index. Returns its name.
    pub(super) fn unpublish(&mut self, id: KvBlockId) -> Option<u64> {
        let name = self.prefix_cache.unpublish(id, &mut self.kv_blocks)?;
        self.history.word(name);
        Some(name)
    }

    /// Returns the device blocks that evicting all unreferenced KV blocks would free.
    pub fn evictable_layer_blocks(&self) -> u32 {
        self.prefix_cache.idle_count() * self.layers
    }

    /// Returns the used layer blocks that requests need: all but those of unused prefix blocks.
    pub fn needed_layer_blocks(&self) -> u32 {
        self.chunk_pool.used_layer_blocks().saturating_sub(self.evictable_layer_blocks())
    }
}
