//! KV chunks that give up their chunks: they take no new blocks, and their blocks leave.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::cmp::Reverse;

use super::KvChunkPool;
use crate::ids::KvChunkId;

impl KvChunkPool {
    /// Returns the draining KV chunks, in order.
    pub fn draining(&self) -> &BTreeSet<KvChunkId> {
        &self.draining
    }

    /// Returns the KV chunks that drain after [`KvChunkPool::drain`] with this `count`.
    pub fn draining_after(&self, count: u32) -> BTreeSet<KvChunkId> {
        let mut draining = self.draining.clone();
        for kv_chunk in self.drain_changes(count) {
            if !draining.remove(&kv_chunk) {
                draining.insert(kv_chunk);
            }
        }
        draining
    }

    /// Drains exactly `count` KV chunks, those with the fewest blocks first. Returns the KV chunks that started or
    /// stopped draining.
    pub fn drain(&mut self, count: u32) -> Vec<KvChunkId> {
        let starts = count >= self.draining.len() as u32;
        let changed = self.drain_changes(count);
        changed.iter().for_each(|kv_chunk| self.set_draining(*kv_chunk, starts));
        changed
    }

    /// Returns the KV chunks that start or stop draining so that exactly `count` drain.
    fn drain_changes(&self, count: u32) -> Vec<KvChunkId> {
        let draining = self.draining.len() as u32;
        match count.checked_sub(draining) {
            Some(0) => Vec::new(),
            Some(more) => self.emptiest().into_iter().take(more as usize).collect(),
            None => self.draining.iter().copied().take((draining - count) as usize).collect(),
        }
    }

    /// Returns the draining KV chunks that are empty.
    pub fn drained(&self) -> Vec<KvChunkId> {
        self.draining.iter().copied().filter(|kv_chunk| self.used(*kv_chunk) == 0).collect()
    }

    /// Returns the backed KV chunks that do not drain, fewest blocks first, ties by the last position in the arena.
    fn emptiest(&self) -> Vec<KvChunkId> {
        let kv_chunks = (0..self.kv_chunks.len() as u32).map(KvChunkId);
        let mut kv_chunks: Vec<_> = kv_chunks
            .filter(|f| self.kv_chunks[f.index()].backed && !self.kv_chunks[f.index()].draining)
            .map(|f| (self.used(f), Reverse(f)))
            .collect();
        kv_chunks.sort_unstable();
        kv_chunks.into_iter().map(|(_, Reverse(kv_chunk))| kv_chunk).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::KvBlockId;

    #[test]
    fn emptiest_kv_chunks_drain_first_and_stop_in_order() {
        let (mut kv_chunks, mut layer_blocks) = (KvChunkPool::new(3, 4), Vec::new());
        (0..3).for_each(|kv_chunk| kv_chunks.back(KvChunkId(kv_chunk)));
        kv_chunks.take(6, KvBlockId(0), &mut layer_blocks);
        let after = kv_chunks.draining_after(2);
        assert_eq!(kv_chunks.drain(2), [KvChunkId(2), KvChunkId(1)], "they have 0 and 2 blocks of 4");
        assert_eq!(*kv_chunks.draining(), after, "as was planned");
        assert_eq!(kv_chunks.drained(), [KvChunkId(2)]);
        assert_eq!(kv_chunks.free_layer_blocks(), 0, "they take no blocks");
        assert_eq!(kv_chunks.drain(2), [], "as many drain already");
        let after = kv_chunks.draining_after(1);
        assert_eq!(kv_chunks.drain(1), [KvChunkId(1)]);
        assert_eq!(*kv_chunks.draining(), after);
        assert_eq!(kv_chunks.free_layer_blocks(), 2);
        kv_chunks.check();
    }
}
