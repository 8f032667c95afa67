//! The prefix cache: finds full KV blocks by the chained hash of their tokens, scoped by a salt, and keeps those
//! without a user on the device until their space is needed.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::blocks::{Content, KvBlocks, Tokens, chained_hash};
use super::cached_prefix::CachedPrefix;
use crate::digest::Digest;
use crate::geometry::BLOCK_TOKENS;
use crate::ids::KvBlockId;

/// What the cache has for a KV block that became full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Match {
    /// It had none: the KV block is shareable under this name from now on.
    Published { name: u64 },
    /// This KV block has the same tokens in the same place.
    Same { id: KvBlockId, name: u64 },
    /// The hash belongs to other tokens: the KV block and its successors stay private.
    Collision,
}

/// Shareable KV blocks, and those of them that are only cache.
#[derive(Clone, Debug)]
pub struct PrefixCache {
    is_enabled: bool,
    /// Shareable KV blocks by hash.
    index: BTreeMap<u64, KvBlockId>,
    /// Shareable KV blocks on the device without references, least recently used first. A child is always older than
    /// its parent.
    idle: BTreeMap<u64, KvBlockId>,
    next_name: u64,
    next_stamp: u64,
    /// Number of KV blocks that left the index.
    epoch: u64,
    hash: fn(u64, &Tokens) -> u64,
}

impl PrefixCache {
    /// An empty cache; one that is not enabled finds and publishes nothing.
    pub fn new(is_enabled: bool) -> PrefixCache {
        PrefixCache {
            is_enabled,
            index: BTreeMap::new(),
            idle: BTreeMap::new(),
            next_name: 1,
            next_stamp: 0,
            epoch: 0,
            hash: chained_hash,
        }
    }

    /// The same with another hash, for tests of collisions.
    #[cfg(test)]
    pub fn with_hash(hash: fn(u64, &Tokens) -> u64) -> PrefixCache {
        PrefixCache { hash, ..PrefixCache::new(true) }
    }

    /// Whether full KV blocks are shared.
    pub fn is_enabled(&self) -> bool {
        self.is_enabled
    }

    /// The number of KV blocks that have left the index: while it stays, prefixes that were found are valid.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Shareable KV blocks, used or not.
    pub fn shareable(&self) -> u32 {
        self.index.len() as u32
    }

    /// The cached full KV blocks of the first tokens. The last token is never among them, because its logits are
    /// needed.
    pub fn prefix(&self, salt: u64, tokens: &[u32], kv_blocks: &KvBlocks) -> CachedPrefix {
        let mut chain = (0, Digest::new(salt).value());
        let mut found = Vec::new();
        let (full, _) = tokens[..tokens.len().saturating_sub(1)].as_chunks::<{ BLOCK_TOKENS as usize }>();
        for tokens in full {
            let hash = (self.hash)(chain.1, tokens);
            let Some(id) = self.find(hash, chain.0, salt, tokens, kv_blocks) else { break };
            found.push(id);
            chain = (content(id, kv_blocks).name, hash);
        }
        CachedPrefix { salt, kv_blocks: found, chain }
    }

    /// The shareable KV block with exactly these tokens after exactly this parent.
    fn find(
        &self,
        hash: u64,
        parent: u64,
        salt: u64,
        tokens: &Tokens,
        kv_blocks: &KvBlocks,
    ) -> Option<KvBlockId> {
        let id = *self.index.get(&hash).filter(|_| self.is_enabled)?;
        let content = content(id, kv_blocks);
        (content.salt == salt && content.parent == parent && content.tokens == *tokens).then_some(id)
    }

    /// Offers a KV block that became full, after the KV block of this name and hash. Returns what the cache has for it,
    /// and its hash.
    pub fn offer(
        &mut self,
        id: KvBlockId,
        (parent, before): (u64, u64),
        salt: u64,
        tokens: &Tokens,
        kv_blocks: &mut KvBlocks,
    ) -> (Match, u64) {
        let hash = (self.hash)(before, tokens);
        if !self.index.contains_key(&hash) {
            let name = self.next_name;
            self.next_name += 1;
            self.index.insert(hash, id);
            kv_blocks.get_mut(id).content = Some(Content { name, salt, parent, hash, tokens: *tokens });
            return (Match::Published { name }, hash);
        }
        match self.find(hash, parent, salt, tokens, kv_blocks) {
            Some(same) => (Match::Same { id: same, name: content(same, kv_blocks).name }, hash),
            None => (Match::Collision, hash),
        }
    }

    /// Removes a KV block from the index. Returns its name; `None` if it was not shareable.
    pub fn unpublish(&mut self, id: KvBlockId, kv_blocks: &mut KvBlocks) -> Option<u64> {
        let content = kv_blocks.get_mut(id).content.take()?;
        self.index.remove(&content.hash);
        self.epoch += 1;
        Some(content.name)
    }

    /// Gives a KV block that lost its last user the newest stamp.
    pub fn stamp(&mut self, id: KvBlockId, kv_blocks: &mut KvBlocks) -> u64 {
        let stamp = self.next_stamp;
        self.next_stamp += 1;
        kv_blocks.get_mut(id).stamp = stamp;
        stamp
    }

    /// Keeps a KV block on the device that lost its last user.
    pub fn keep(&mut self, id: KvBlockId, kv_blocks: &mut KvBlocks) {
        let stamp = self.stamp(id, kv_blocks);
        self.idle.insert(stamp, id);
    }

    /// A KV block with this stamp has a user again.
    pub fn reuse(&mut self, stamp: u64) {
        self.idle.remove(&stamp);
    }

    /// KV blocks on the device that are only cache, least recently used first.
    pub fn idle(&self) -> impl Iterator<Item = KvBlockId> + '_ {
        self.idle.values().copied()
    }

    /// The number of KV blocks on the device that are only cache.
    pub fn idle_count(&self) -> u32 {
        self.idle.len() as u32
    }

    /// The stamp of the least recently used KV block on the device that is only cache.
    pub fn oldest(&self) -> Option<u64> {
        self.idle.first_key_value().map(|(stamp, _)| *stamp)
    }

    /// Removes the least recently used KV block from the cache on the device; the caller evicts it.
    pub fn take_oldest(&mut self) -> Option<KvBlockId> {
        self.idle.pop_first().map(|(_, id)| id)
    }

    /// The same among those with a stamp of `from` or later that are not `kept`. Returns its stamp too.
    pub fn take_oldest_from(
        &mut self,
        from: u64,
        kept: impl Fn(KvBlockId) -> bool,
    ) -> Option<(u64, KvBlockId)> {
        let (stamp, id) =
            self.idle.range(from..).find(|(_, id)| !kept(**id)).map(|(stamp, id)| (*stamp, *id))?;
        self.idle.remove(&stamp);
        Some((stamp, id))
    }

    /// Checks that the index and the cache name KV blocks as they are.
    pub fn check(&self, kv_blocks: &KvBlocks) {
        for (id, kv_block) in kv_blocks.iter() {
            if let Some(content) = &kv_block.content {
                assert_eq!(self.index.get(&content.hash), Some(&id), "a shareable KV block is indexed");
            }
            let idle = self.idle.get(&kv_block.stamp) == Some(&id);
            let on_device = kv_blocks.has_layer_blocks(id);
            assert_eq!(kv_block.refs == 0 && on_device, idle, "{id:?} without users is cache");
        }
        for (hash, id) in &self.index {
            let content = kv_blocks.get(*id).content.as_ref();
            assert_eq!(content.map(|c| c.hash), Some(*hash), "the index names shareable KV blocks");
        }
        assert!(self.idle.values().all(|id| kv_blocks.get(*id).refs == 0), "cache has no users");
    }
}

fn content(id: KvBlockId, kv_blocks: &KvBlocks) -> &Content {
    kv_blocks.get(id).content.as_ref().expect("an indexed KV block is shareable")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKENS: Tokens = [7; BLOCK_TOKENS as usize];
    const SALT: u64 = 3;

    fn first(salt: u64) -> (u64, u64) {
        (0, Digest::new(salt).value())
    }

    /// Publishes a KV block with these tokens as the first of its request.
    fn publish(cache: &mut PrefixCache, kv_blocks: &mut KvBlocks, salt: u64) -> (KvBlockId, Match) {
        let id = kv_blocks.add();
        (id, cache.offer(id, first(salt), salt, &TOKENS, kv_blocks).0)
    }

    #[test]
    fn full_kv_blocks_are_found_within_their_salt() {
        let (mut cache, mut kv_blocks) = (PrefixCache::new(true), KvBlocks::new(2));
        let (id, published) = publish(&mut cache, &mut kv_blocks, SALT);
        assert_eq!(published, Match::Published { name: 1 });
        assert_eq!(cache.prefix(SALT, &[7; 17], &kv_blocks).kv_blocks, [id]);
        assert_eq!(cache.prefix(SALT, &[7; 16], &kv_blocks).kv_blocks, [], "the last token is computed");
        assert_eq!(cache.prefix(SALT + 1, &[7; 17], &kv_blocks).kv_blocks, []);
        assert_eq!(publish(&mut cache, &mut kv_blocks, SALT).1, Match::Same { id, name: 1 });
        assert_eq!(publish(&mut cache, &mut kv_blocks, SALT + 1).1, Match::Published { name: 2 });
    }

    #[test]
    fn other_tokens_with_an_equal_hash_stay_private() {
        let (mut cache, mut kv_blocks) = (PrefixCache::with_hash(|_, _| 42), KvBlocks::new(2));
        publish(&mut cache, &mut kv_blocks, SALT);
        assert_eq!(publish(&mut cache, &mut kv_blocks, SALT + 1).1, Match::Collision);
        assert_eq!(cache.shareable(), 1);
    }

    #[test]
    fn kv_block_that_leaves_the_index_changes_the_epoch() {
        let (mut cache, mut kv_blocks) = (PrefixCache::new(true), KvBlocks::new(2));
        let (id, _) = publish(&mut cache, &mut kv_blocks, SALT);
        assert_eq!((cache.epoch(), cache.unpublish(id, &mut kv_blocks)), (0, Some(1)));
        assert_eq!((cache.epoch(), cache.shareable()), (1, 0));
        assert_eq!((cache.unpublish(id, &mut kv_blocks), cache.epoch()), (None, 1));
    }

    #[test]
    fn least_recently_used_kv_block_is_taken_first() {
        let (mut cache, mut kv_blocks) = (PrefixCache::new(true), KvBlocks::new(2));
        let ids = [(); 3].map(|()| kv_blocks.add());
        ids.iter().rev().for_each(|id| cache.keep(*id, &mut kv_blocks));
        assert_eq!((cache.idle_count(), cache.oldest()), (3, Some(0)));
        let (stamp, taken) = cache.take_oldest_from(0, |id| id == ids[2]).unwrap();
        assert_eq!((stamp, taken), (1, ids[1]), "the oldest is kept");
        cache.reuse(kv_blocks.get(ids[0]).stamp);
        assert_eq!([cache.take_oldest(), cache.take_oldest()], [Some(ids[2]), None]);
    }
}
