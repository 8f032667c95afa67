//! Checks the invariants of KV.

use alloc::collections::BTreeMap;

use super::Kv;
use super::blocks::KvBlock;
use crate::ids::KvBlockId;

impl Kv {
    /// Checks that every block belongs to one KV block, that reference counts match users, and that the cache is
    /// consistent.
    pub fn check(&self) {
        self.chunk_pool.check();
        let (reserved, buffers) = self.chunk_pool.reserved();
        assert_eq!(buffers, self.layer_offload.buffer_layer_blocks(), "blocks of buffers are in buffers");
        let mut layer_blocks = reserved + buffers;
        for (id, kv_block) in self.kv_blocks.iter() {
            let on_device = self.kv_blocks.has_layer_blocks(id);
            for layer in self.kv_blocks.missing_layer_blocks_of(id).iter() {
                assert_eq!(self.kv_blocks.layer_block(id, layer), None, "{id:?} lists its missing layers");
                let hosted = kv_block.hosted_layers.contains(layer) || self.is_spilling(id);
                assert!(
                    kv_block.host_location.is_some() && hosted,
                    "a missing layer of {id:?} is in the host tier"
                );
            }
            for layer in kv_block.resident_layers().iter() {
                let layer_block = &self
                    .kv_blocks
                    .layer_block(id, layer)
                    .expect("a resident layer of a KV block is on the device");
                layer_blocks += 1;
                assert!(
                    self.chunk_pool.is_backed(self.chunk_pool.kv_chunk_of(*layer_block)),
                    "{layer_block:?} of {id:?} has a chunk"
                );
                assert_eq!(
                    self.chunk_pool.holder(*layer_block),
                    Some(id),
                    "{layer_block:?} lies in one KV block"
                );
            }
            if let Some(content) = &kv_block.content {
                assert_eq!(self.index.get(&content.hash), Some(&id), "a shareable KV block is indexed");
            }
            let idle = self.idle.get(&kv_block.stamp) == Some(&id);
            assert_eq!(kv_block.refs == 0 && on_device, idle, "{id:?} without users is cache");
            assert!(kv_block.refs > 0 || !on_device || self.kv_blocks.is_whole(id), "cache is whole");
        }
        assert_eq!(
            layer_blocks,
            self.chunk_pool.used_layer_blocks(),
            "used blocks lie in KV blocks or are reserved"
        );
        self.host_pool.check(&self.kv_blocks);
        let away =
            |(id, kv_block): (_, &KvBlock)| kv_block.staging_slot().map_or(0, |_| self.kv_blocks.absent(id));
        assert_eq!(
            self.kv_blocks.iter().map(away).sum::<u32>(),
            self.kv_blocks.offloaded_layers(),
            "blocks behind seats"
        );
        self.check_missing();
        self.check_layer_offload();
        self.check_references();
    }

    fn check_references(&self) {
        let mut references: BTreeMap<KvBlockId, u32> = BTreeMap::new();
        let copied = self
            .moving_kv_blocks
            .iter()
            .chain(&self.loading_swaps)
            .chain(&self.layer_offload.writing)
            .chain(self.layer_offload.prefill_spills.kv_blocks());
        for id in self.sequences.values().flat_map(|s| &s.kv_blocks).chain(copied) {
            *references.entry(*id).or_default() += 1;
        }
        for (id, kv_block) in self.kv_blocks.iter() {
            assert_eq!(references.remove(&id).unwrap_or(0), kv_block.refs, "references of {id:?}");
        }
        assert!(references.is_empty(), "requests use KV blocks that exist");
        for (hash, id) in &self.index {
            let content = self.kv_blocks.get(*id).content.as_ref();
            assert_eq!(content.map(|c| c.hash), Some(*hash), "the index names shareable KV blocks");
        }
        assert!(self.idle.values().all(|id| self.kv_blocks.get(*id).refs == 0), "cache has no users");
    }
}
