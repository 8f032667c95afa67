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
                let hosted = kv_block.hosted_layers.contains(layer) || self.layer_offload.is_spilling(id);
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
            assert!(kv_block.refs > 0 || !on_device || self.kv_blocks.is_whole(id), "cache is whole");
        }
        assert_eq!(
            layer_blocks,
            self.chunk_pool.used_layer_blocks(),
            "used blocks lie in KV blocks or are reserved"
        );
        self.prefix_cache.check(&self.kv_blocks);
        self.host_pool.check(&self.kv_blocks);
        let away =
            |(id, kv_block): (_, &KvBlock)| kv_block.staging_slot().map_or(0, |_| self.kv_blocks.absent(id));
        assert_eq!(
            self.kv_blocks.iter().map(away).sum::<u32>(),
            self.kv_blocks.offloaded_layers(),
            "layer blocks away from the device belong to offloaded layers"
        );
        let running = self.requests.kv_blocks_of_running();
        for id in self.missing_layer_blocks.kv_blocks() {
            assert!(running.contains(&id), "a running request uses {id:?}");
        }
        self.missing_layer_blocks.check(|id| self.layer_offload.lacking(id, &self.kv_blocks));
        self.layer_offload.check(&self.kv_blocks, &self.chunk_pool);
        self.check_references();
    }

    fn check_references(&self) {
        let mut references: BTreeMap<KvBlockId, u32> = BTreeMap::new();
        let used = self.requests.iter().flat_map(|(_, sequence)| sequence.kv_blocks());
        let spilled = self.layer_offload.spills().kv_blocks();
        for id in used.chain(self.transfers.iter()).chain(spilled) {
            *references.entry(*id).or_default() += 1;
        }
        for (id, kv_block) in self.kv_blocks.iter() {
            assert_eq!(references.remove(&id).unwrap_or(0), kv_block.refs, "references of {id:?}");
        }
        assert!(references.is_empty(), "requests use KV blocks that exist");
    }
}
