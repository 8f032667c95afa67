//! Draining and compaction: empties chunks of KV without dropping live blocks.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use super::Kv;
use crate::ids::LayerBlockId;

/// State of the draining KV chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drain {
    /// All are empty.
    Empty,
    /// Blocks must move, and there is space for all of them.
    Movable,
    /// There is not enough space even if all cached KV blocks are evicted.
    NoRoom,
}

impl Kv {
    /// Evicts cached KV blocks, oldest first, until all blocks of draining KV chunks fit elsewhere. Returns what
    /// remains and the number of evicted KV blocks; evicts none if evicting all would not suffice.
    pub fn make_room(&mut self) -> (Drain, u32) {
        let mut evicted = 0;
        if self.overfull_layer_blocks() > 0 {
            return (Drain::NoRoom, 0);
        }
        while self.chunk_pool.used_in_draining() > self.chunk_pool.free_layer_blocks() && self.evict() {
            evicted += 1;
        }
        let live = self.chunk_pool.used_in_draining();
        let drain = match live {
            0 => Drain::Empty,
            _ if live <= self.chunk_pool.free_layer_blocks() => Drain::Movable,
            _ => Drain::NoRoom,
        };
        (drain, evicted)
    }

    /// Returns the used blocks that would not fit into the non-draining KV chunks even without any cache.
    pub fn overfull_layer_blocks(&self) -> u32 {
        let draining = self.chunk_pool.draining().len() as u32;
        let staying = self.chunk_pool.backed() - draining;
        let layer_blocks =
            self.chunk_pool.total_layer_blocks().checked_div(self.chunk_pool.backed()).unwrap_or(0);
        self.chunk_pool
            .used_layer_blocks()
            .saturating_sub(staying * layer_blocks + self.evictable_layer_blocks())
    }

    /// Plans up to `limit` moves out of draining KV chunks, those closest to empty first, and reserves the targets.
    /// Blocks of buffers, and blocks being written back or loaded in parallel with steps, are not moved.
    pub fn plan_moves(&mut self, limit: u32) -> Vec<(LayerBlockId, LayerBlockId)> {
        let mut kv_chunks: Vec<_> =
            self.chunk_pool.draining().iter().map(|f| (self.chunk_pool.used(*f), *f)).collect();
        kv_chunks.sort_unstable();
        let stays = |layer_block: &LayerBlockId| {
            self.chunk_pool.holder(*layer_block).is_some_and(|id| self.transfers.is_copied(id))
                || self.chunk_pool.is_buffer(*layer_block)
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
