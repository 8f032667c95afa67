//! The part of a new request that the prefix cache has.

use alloc::vec::Vec;

use crate::geometry::BLOCK_TOKENS;
use crate::ids::KvBlockId;

/// The cached KV blocks of a new request's first tokens. Valid until KV changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedPrefix {
    pub(super) salt: u64,
    /// The first tokens first.
    pub(super) kv_blocks: Vec<KvBlockId>,
    /// Name and hash of the last KV block.
    pub(super) chain: (u64, u64),
}

impl CachedPrefix {
    /// Returns the number of cached tokens: a multiple of 16.
    pub fn tokens(&self) -> u32 {
        self.kv_blocks.len() as u32 * BLOCK_TOKENS
    }

    /// Returns the number of KV blocks.
    pub fn kv_block_count(&self) -> u32 {
        self.kv_blocks.len() as u32
    }
}
