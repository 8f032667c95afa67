//! Draining and compaction: empties chunks of KV without dropping live blocks.
//!
//! [`Kv::plan_drain`] counts what that takes and changes nothing. [`Kv::evict_oldest`], [`Kv::move_buffers`] and
//! [`Kv::plan_moves`] then do as much as was counted.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use super::Kv;
use crate::ids::{KvBlockId, LayerBlockId};

/// What it takes to empty some KV chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DrainPlan {
    /// The KV chunks that drain.
    pub kv_chunks: u32,
    /// Cached KV blocks to evict, oldest first, so that all other blocks of these KV chunks fit elsewhere.
    pub evictions: u32,
    /// Used blocks that would not fit elsewhere even without any cache. If there are some, nothing can be emptied.
    pub overfull_layer_blocks: u32,
    /// Blocks of buffers in these KV chunks. They move at once.
    pub buffer_layer_blocks: u32,
    /// Blocks of KV in these KV chunks that are left after the evictions. They must move.
    pub live_layer_blocks: u32,
    /// Of these, blocks that are being copied to or from the host tier. They cannot move now.
    pub copied_layer_blocks: u32,
}

impl Kv {
    /// Counts what it takes to empty `kv_chunks` KV chunks, those that drain now included.
    pub fn plan_drain(&self, kv_chunks: u32) -> DrainPlan {
        let staying = self.chunk_pool.backed().saturating_sub(kv_chunks);
        let room = staying * self.chunk_pool.layer_blocks_per_chunk();
        let excess = self.chunk_pool.used_layer_blocks().saturating_sub(room);
        let overfull_layer_blocks = excess.saturating_sub(self.evictable_layer_blocks());
        let evictions = (excess - overfull_layer_blocks).div_ceil(self.layers);
        let evicted: BTreeSet<_> = self.prefix_cache.idle().take(evictions as usize).collect();
        let mut plan = DrainPlan { kv_chunks, evictions, overfull_layer_blocks, ..DrainPlan::default() };
        let draining = self.chunk_pool.draining_after(kv_chunks);
        for layer_block in draining.iter().flat_map(|kv_chunk| self.chunk_pool.layer_blocks(*kv_chunk)) {
            if self.chunk_pool.is_buffer(layer_block) {
                plan.buffer_layer_blocks += 1;
            } else if !self.holds_one_of(&evicted, layer_block) {
                plan.live_layer_blocks += 1;
                plan.copied_layer_blocks += u32::from(self.is_copied(layer_block));
            }
        }
        plan
    }

    /// Whether one of these KV blocks has the block.
    fn holds_one_of(&self, kv_blocks: &BTreeSet<KvBlockId>, layer_block: LayerBlockId) -> bool {
        self.chunk_pool.holder(layer_block).is_some_and(|id| kv_blocks.contains(&id))
    }

    /// Whether the block is being copied to or from the host tier.
    fn is_copied(&self, layer_block: LayerBlockId) -> bool {
        self.chunk_pool.holder(layer_block).is_some_and(|id| self.transfers.is_copied(id))
    }

    /// Evicts this many cached KV blocks, oldest first.
    pub fn evict_oldest(&mut self, kv_blocks: u32) {
        for _ in 0..kv_blocks {
            self.evict();
        }
    }

    /// Plans up to `limit` moves out of draining KV chunks, those closest to empty first, and reserves the targets.
    /// Blocks of buffers, and blocks being written back or loaded in parallel with steps, are not moved.
    pub fn plan_moves(&mut self, limit: u32) -> Vec<(LayerBlockId, LayerBlockId)> {
        let mut kv_chunks: Vec<_> =
            self.chunk_pool.draining().iter().map(|f| (self.chunk_pool.used(*f), *f)).collect();
        kv_chunks.sort_unstable();
        let stays = |layer_block: &LayerBlockId| {
            self.is_copied(*layer_block) || self.chunk_pool.is_buffer(*layer_block)
        };
        let layer_blocks = kv_chunks.iter().flat_map(|(_, kv_chunk)| self.chunk_pool.layer_blocks(*kv_chunk));
        let from: Vec<_> = layer_blocks
            .filter(|layer_block| !stays(layer_block))
            .take(limit.min(self.chunk_pool.free_layer_blocks()) as usize)
            .collect();
        let to = self.chunk_pool.reserve(from.len() as u32);
        from.into_iter().zip(to).collect()
    }

    /// Completes the moves. If a block's KV block was freed during the move, its target is freed.
    pub fn finish_moves(&mut self, moves: impl Iterator<Item = (LayerBlockId, LayerBlockId)>, done: bool) {
        let mut moved = BTreeSet::new();
        for (from, to) in moves {
            let holder = self.chunk_pool.holder(from).filter(|_| done);
            let Some(kv_block) = holder else {
                self.chunk_pool.give(&[to]);
                continue;
            };
            self.chunk_pool.moved(to, kv_block);
            self.kv_blocks.move_layer_block(kv_block, from, to);
            self.chunk_pool.give(&[from]);
            self.history.word(u64::from(from.0) << 32 | u64::from(to.0));
            moved.insert(kv_block);
        }
        self.requests.touch(&moved);
    }
}

#[cfg(test)]
mod tests;
