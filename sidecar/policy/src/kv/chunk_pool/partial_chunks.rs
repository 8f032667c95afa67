//! Tracks the KV chunks that accept blocks, by the number of used blocks.
//!
//! A step allocates and frees blocks of about a hundred KV chunks, and each time a KV chunk's position here changes.
//! This structure keeps such a change to a few bits in adjacent words.

use alloc::vec::Vec;

use crate::ids::KvChunkId;

/// Levels of a set: a number below 64^2 is found in two lookups; larger numbers scan one more word per 64^2.
const LEVELS: usize = 2;

/// A set of small numbers. The lowest level has a bit per number, the next one a bit per nonzero word.
#[derive(Clone, Debug, Default)]
struct Bits {
    levels: [Vec<u64>; LEVELS],
    count: u32,
}

impl Bits {
    fn contains(&self, number: u32) -> bool {
        let word = self.levels[0].get(number as usize / 64);
        word.is_some_and(|word| word >> (number % 64) & 1 == 1)
    }

    /// Adds a number that is not in the set.
    fn insert(&mut self, number: u32) {
        self.count += 1;
        let mut at = number as usize;
        for level in &mut self.levels {
            let (word, bit) = (at / 64, at % 64);
            if level.len() <= word {
                level.resize(word + 1, 0);
            }
            let before = level[word];
            level[word] = before | 1 << bit;
            if before != 0 {
                return;
            }
            at = word;
        }
    }

    /// Removes a number that is in the set.
    fn remove(&mut self, number: u32) {
        self.count -= 1;
        let mut at = number as usize;
        for level in &mut self.levels {
            let (word, bit) = (at / 64, at % 64);
            level[word] &= !(1 << bit);
            if level[word] != 0 {
                return;
            }
            at = word;
        }
    }

    fn first(&self) -> Option<u32> {
        let [.., top] = &self.levels;
        let word = top.iter().position(|word| *word != 0)?;
        Some(self.descend(word, |word| word.trailing_zeros()))
    }

    fn last(&self) -> Option<u32> {
        let [.., top] = &self.levels;
        let word = top.iter().rposition(|word| *word != 0)?;
        Some(self.descend(word, |word| 63 - word.leading_zeros()))
    }

    /// Returns the number found from a nonzero word of the top level by following `choose`.
    fn descend(&self, word: usize, choose: impl Fn(u64) -> u32) -> u32 {
        let numbers = self.levels.iter().rev();
        numbers.fold(word, |word, level| word * 64 + choose(level[word]) as usize) as u32
    }
}

/// The KV chunks that accept blocks.
#[derive(Clone, Debug, Default)]
pub(super) struct PartialChunks {
    /// KV chunks by number of used blocks.
    by_used: Vec<Bits>,
    /// Numbers of used blocks for which KV chunks exist.
    fills: Bits,
}

impl PartialChunks {
    /// Adds a KV chunk with `used` used blocks.
    pub fn insert(&mut self, used: u32, kv_chunk: KvChunkId) {
        if self.by_used.len() <= used as usize {
            self.by_used.resize(used as usize + 1, Bits::default());
        }
        let kv_chunks = &mut self.by_used[used as usize];
        if kv_chunks.count == 0 {
            self.fills.insert(used);
        }
        kv_chunks.insert(kv_chunk.0);
    }

    /// Removes a KV chunk that was added with `used` used blocks.
    pub fn remove(&mut self, used: u32, kv_chunk: KvChunkId) {
        let kv_chunks = &mut self.by_used[used as usize];
        kv_chunks.remove(kv_chunk.0);
        if kv_chunks.count == 0 {
            self.fills.remove(used);
        }
    }

    /// Removes and returns the fullest KV chunk, ties by the first position in the arena.
    pub fn take_fullest(&mut self) -> Option<KvChunkId> {
        let used = self.fills.last()?;
        let kv_chunk = KvChunkId(self.by_used[used as usize].first()?);
        self.remove(used, kv_chunk);
        Some(kv_chunk)
    }

    /// Returns the number of KV chunks with `used` used blocks.
    pub fn count(&self, used: u32) -> u32 {
        self.by_used.get(used as usize).map_or(0, |kv_chunks| kv_chunks.count)
    }

    /// Whether the KV chunk was added with `used` used blocks.
    pub fn contains(&self, used: u32, kv_chunk: KvChunkId) -> bool {
        self.by_used.get(used as usize).is_some_and(|kv_chunks| kv_chunks.contains(kv_chunk.0))
    }
}
