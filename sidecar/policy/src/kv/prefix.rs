//! References to shared KV blocks: requests open with a cached prefix, and full KV blocks become shareable.

use alloc::vec::Vec;

use super::Kv;
use super::cached_prefix::CachedPrefix;
use super::prefix_cache::Match;
use crate::ids::{KvBlockId, RequestId};

impl Kv {
    /// Finds the cached full KV blocks of the first tokens.
    pub fn cached_prefix(&self, salt: u64, tokens: &[u32]) -> CachedPrefix {
        self.prefix_cache.prefix(salt, tokens, &self.kv_blocks)
    }

    /// Opens a request and references the KV blocks of its prefix.
    pub fn open(&mut self, request: RequestId, prefix: &CachedPrefix) {
        self.requests.open(request, prefix);
        for id in prefix.kv_blocks.iter().copied() {
            self.add_reference(id);
            self.append(request, id);
            self.add_missing(id);
        }
    }

    /// Marks the cached KV blocks of a prefix as used now, so that memory that moves for their request evicts others
    /// first.
    pub fn mark_used(&mut self, prefix: &CachedPrefix) {
        // Children first: a child is older than its parent.
        for id in prefix.kv_blocks.iter().rev().copied() {
            if self.kv_blocks.get(id).refs == 0 {
                self.add_reference(id);
                self.release_reference(id);
            }
        }
    }

    /// Records that the KV of `tokens`, which follow the computed ones, is written.
    pub fn on_tokens_computed(&mut self, request: RequestId, tokens: &[u32]) {
        let filled = self.requests.get_mut(request).append_computed(tokens);
        (0..filled).for_each(|_| self.complete_kv_block(request));
    }

    /// Completes a KV block from the first 16 tail tokens: it becomes shareable, or is replaced by an existing equal
    /// one.
    fn complete_kv_block(&mut self, request: RequestId) {
        let full = self.requests.get_mut(request).fill_next();
        let Some(chain) = full.chain.filter(|_| self.prefix_cache.is_enabled()) else { return };
        let (found, hash) =
            self.prefix_cache.offer(full.id, chain, full.salt, &full.tokens, &mut self.kv_blocks);
        let chain = match found {
            Match::Published { name } => {
                self.history.word(hash);
                Some((name, hash))
            }
            Match::Same { id, name } => {
                self.replace((request, full.at), id);
                Some((name, hash))
            }
            // This KV block and its successors stay private.
            Match::Collision => None,
        };
        self.requests.get_mut(request).set_chain(chain);
    }

    /// Replaces the KV block of a row by `same`, which has the same tokens in the same place. So a shareable child
    /// never outlives its parent, and the duplicate's blocks are freed.
    fn replace(&mut self, row: (RequestId, u32), same: KvBlockId) {
        self.add_reference(same);
        let old = self.requests.replace(row, same);
        let away = self.kv_blocks.get(same).staging_slot().is_none() && !self.kv_blocks.is_whole(same);
        if away && self.transfers.is_writing(same) {
            self.add_missing(same);
        } else if away {
            // The new copy is on the device already, so it replaces the copy in the host tier.
            self.kv_blocks.exchange(same, old);
            self.missing_layer_blocks.recheck(same);
            self.missing_layer_blocks.recheck(old);
            for id in [same, old] {
                let layers = self.kv_blocks.get(id).resident_layers().iter();
                let layer_blocks: Vec<_> =
                    layers.filter_map(|layer| self.kv_blocks.layer_block(id, layer)).collect();
                self.chunk_pool.hand_over(&layer_blocks, id);
            }
        }
        self.release_reference(old);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::KvChunkId;
    use crate::kv::blocks::Tokens;
    use crate::kv::prefix_cache::PrefixCache;
    use crate::slots::Generations;
    use alloc::vec;

    fn kv(hash: Option<fn(u64, &Tokens) -> u64>) -> Kv {
        let mut kv = Kv::new(2, 8, 4, 0, true);
        (0..8).for_each(|f| kv.chunk_pool_mut().back(KvChunkId(f)));
        kv.prefix_cache = hash.map_or(PrefixCache::new(true), PrefixCache::with_hash);
        kv
    }

    fn open(kv: &mut Kv, id: u64, salt: u64, tokens: &[u32]) -> u32 {
        let prefix = kv.cached_prefix(salt, tokens);
        kv.open(RequestId(id), &prefix);
        prefix.tokens()
    }

    fn run(kv: &mut Kv, id: u64, salt: u64, tokens: &[u32]) -> u32 {
        let request = RequestId(id);
        let cached = open(kv, id, salt, tokens);
        let kv_blocks = tokens.len().div_ceil(16) as u32 - kv.of(request).kv_blocks();
        kv.allocate(&[(request, kv_blocks)], &mut Generations::default());
        kv.on_tokens_computed(request, &tokens[cached as usize..]);
        kv.check();
        cached
    }

    fn prompt(first: u32) -> Vec<u32> {
        (first..first + 40).collect()
    }

    #[test]
    fn prefix_is_found_with_same_salt() {
        let mut kv = kv(None);
        assert_eq!(run(&mut kv, 1, 7, &prompt(0)), 0);
        assert_eq!(run(&mut kv, 2, 7, &prompt(0)), 32, "while the first request lives");
        assert_eq!(run(&mut kv, 3, 8, &prompt(0)), 0, "another salt");
        (1..=3).for_each(|id| kv.close(RequestId(id)));
        kv.check();
        assert_eq!(run(&mut kv, 4, 7, &prompt(0)), 32, "after it has ended");
        assert_eq!(open(&mut kv, 5, 7, &prompt(0)[..32]), 16, "the last token is always computed");
    }

    #[test]
    fn colliding_hash_never_serves_wrong_tokens() {
        let mut kv = kv(Some(|_, _| 42));
        run(&mut kv, 1, 0, &prompt(0));
        assert_eq!(run(&mut kv, 2, 0, &prompt(100)), 0);
        assert_eq!(run(&mut kv, 3, 1, &prompt(0)), 0, "same tokens, another salt");
        assert_eq!(run(&mut kv, 4, 0, &prompt(0)), 16, "a prompt with the same tokens and salt is found");
        (1..=4).for_each(|id| kv.close(RequestId(id)));
        kv.check();
    }

    #[test]
    fn concurrent_equal_kv_blocks_are_deduplicated() {
        let mut kv = kv(None);
        open(&mut kv, 1, 0, &prompt(0));
        open(&mut kv, 2, 0, &prompt(0));
        kv.allocate(&[(RequestId(1), 3), (RequestId(2), 3)], &mut Generations::default());
        kv.take_table_changes();
        kv.on_tokens_computed(RequestId(1), &prompt(0));
        let used = kv.counts().used_layer_blocks;
        kv.on_tokens_computed(RequestId(2), &prompt(0));
        kv.check();
        assert_eq!(
            kv.counts().used_layer_blocks,
            used - 2 * 2,
            "two KV blocks of two layers were given back"
        );
        assert_eq!(kv.take_table_changes().len(), 2);
        kv.close(RequestId(1));
        kv.check();
    }

    #[test]
    fn eviction_takes_children_and_least_recent_first() {
        let mut kv = kv(None);
        run(&mut kv, 1, 0, &prompt(0));
        run(&mut kv, 2, 0, &prompt(100));
        kv.close(RequestId(1));
        kv.close(RequestId(2));
        assert!(kv.evict());
        kv.check();
        assert_eq!(open(&mut kv, 3, 0, &prompt(0)), 16, "the tail of the first was given up");
        assert_eq!(open(&mut kv, 4, 0, &prompt(100)), 32);
        assert!(!kv.evict(), "a KV block in use is not evicted");
        assert_eq!(vec![kv.of(RequestId(3)).kv_blocks(), kv.of(RequestId(4)).kv_blocks()], [1, 2]);
    }
}
