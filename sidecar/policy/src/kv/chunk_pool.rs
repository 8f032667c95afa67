//! The KV arena: KV chunks of one chunk each, and the layer blocks in them.

use alloc::collections::BTreeSet;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

mod draining;
mod partial_chunks;

use crate::ids::{KvBlockId, KvChunkId, LayerBlockId};
use partial_chunks::PartialChunks;

/// The block is free.
const FREE: u32 = u32::MAX;
/// The block is the target of a pending move.
const RESERVED: u32 = u32::MAX - 1;
/// The block belongs to a staging buffer.
const BUFFER: u32 = u32::MAX - 2;

#[derive(Clone, Copy, Debug, Default)]
struct Frame {
    backed: bool,
    draining: bool,
    used: u32,
}

/// The KV chunks and the holder of each block.
#[derive(Clone, Debug)]
pub struct KvChunkPool {
    layer_blocks_per_chunk: u32,
    kv_chunks: Vec<Frame>,
    holders: Vec<u32>,
    /// One bit per block, set if it is held or reserved; `words` words per KV chunk.
    bits: Vec<u64>,
    words: usize,
    open: PartialChunks,
    free_layer_blocks: u32,
    draining: BTreeSet<KvChunkId>,
    backed: u32,
}

impl KvChunkPool {
    /// Returns an arena of `kv_chunks` positions without chunks.
    pub fn new(kv_chunks: u32, layer_blocks_per_chunk: u32) -> KvChunkPool {
        KvChunkPool {
            layer_blocks_per_chunk,
            kv_chunks: vec![Frame::default(); kv_chunks as usize],
            holders: Vec::new(),
            bits: Vec::new(),
            words: layer_blocks_per_chunk.div_ceil(64) as usize,
            open: PartialChunks::default(),
            free_layer_blocks: 0,
            draining: BTreeSet::new(),
            backed: 0,
        }
    }

    /// Returns the number of blocks in a chunk.
    pub fn layer_blocks_per_chunk(&self) -> u32 {
        self.layer_blocks_per_chunk
    }

    /// Returns the KV chunk of a block.
    pub fn kv_chunk_of(&self, layer_block: LayerBlockId) -> KvChunkId {
        KvChunkId(layer_block.0 / self.layer_blocks_per_chunk)
    }

    /// Backs the KV chunk with a chunk.
    pub fn back(&mut self, kv_chunk: KvChunkId) {
        let kv_chunks = kv_chunk.index() + 1;
        if self.bits.len() < kv_chunks * self.words {
            self.holders.resize(kv_chunks * self.layer_blocks_per_chunk as usize, FREE);
            self.bits.resize(kv_chunks * self.words, 0);
        }
        let slot = &mut self.kv_chunks[kv_chunk.index()];
        assert!(!slot.backed, "{kv_chunk:?} is backed twice");
        *slot = Frame { backed: true, draining: false, used: 0 };
        self.backed += 1;
        self.free_layer_blocks += self.layer_blocks_per_chunk;
        self.open.insert(0, kv_chunk);
    }

    /// Removes the chunk of an empty KV chunk.
    pub fn unback(&mut self, kv_chunk: KvChunkId) {
        self.set_draining(kv_chunk, true);
        let slot = &mut self.kv_chunks[kv_chunk.index()];
        assert!(slot.backed && slot.used == 0, "{kv_chunk:?} is empty when its chunk leaves");
        *slot = Frame::default();
        self.draining.remove(&kv_chunk);
        self.backed -= 1;
    }

    /// Stops or resumes allocation in the KV chunk.
    pub fn set_draining(&mut self, kv_chunk: KvChunkId, draining: bool) {
        let slot = &mut self.kv_chunks[kv_chunk.index()];
        assert!(slot.backed, "a backed KV chunk drains");
        if slot.draining == draining {
            return;
        }
        slot.draining = draining;
        let (used, free) = (slot.used, self.layer_blocks_per_chunk - slot.used);
        if draining {
            self.free_layer_blocks -= free;
            self.draining.insert(kv_chunk);
            if free > 0 {
                self.open.remove(used, kv_chunk);
            }
        } else {
            self.free_layer_blocks += free;
            self.draining.remove(&kv_chunk);
            self.reopen(kv_chunk);
        }
    }

    fn reopen(&mut self, kv_chunk: KvChunkId) {
        let slot = &self.kv_chunks[kv_chunk.index()];
        if slot.used < self.layer_blocks_per_chunk && !slot.draining {
            self.open.insert(slot.used, kv_chunk);
        }
    }

    /// Allocates `count` blocks for `kv_block`, from the fullest KV chunks first.
    pub fn take(&mut self, count: u32, kv_block: KvBlockId, out: &mut Vec<LayerBlockId>) {
        self.take_for(count, kv_block.0, out);
    }

    /// Reserves `count` blocks as targets of moves.
    pub fn reserve(&mut self, count: u32) -> Vec<LayerBlockId> {
        let mut out = Vec::new();
        self.take_for(count, RESERVED, &mut out);
        out
    }

    /// Allocates `count` blocks for buffers.
    pub fn take_buffer(&mut self, count: u32) -> Vec<LayerBlockId> {
        let mut out = Vec::new();
        self.take_for(count, BUFFER, &mut out);
        out
    }

    /// Whether the block belongs to a buffer.
    pub fn is_buffer(&self, layer_block: LayerBlockId) -> bool {
        self.holders[layer_block.index()] == BUFFER
    }

    fn take_for(&mut self, count: u32, holder: u32, out: &mut Vec<LayerBlockId>) {
        assert!(count <= self.free_layer_blocks, "blocks are taken only when they are there");
        self.free_layer_blocks -= count;
        out.reserve(count as usize);
        let mut missing = count;
        while missing > 0 {
            let kv_chunk = self.open.take_fullest().expect("free blocks lie in open KV chunks");
            let first = kv_chunk.0 * self.layer_blocks_per_chunk;
            let slot = &mut self.kv_chunks[kv_chunk.index()];
            let taken = missing.min(self.layer_blocks_per_chunk - slot.used);
            slot.used += taken;
            missing -= taken;
            let before = out.len();
            let words = self.words_of(kv_chunk);
            take_bits(&mut self.bits[words], taken, |at| out.push(LayerBlockId(first + at)));
            out[before..].iter().for_each(|layer_block| self.holders[layer_block.index()] = holder);
            self.reopen(kv_chunk);
        }
    }

    /// Frees blocks in any order. A run of blocks of one KV chunk costs one update.
    pub fn give(&mut self, mut layer_blocks: &[LayerBlockId]) {
        while let [first, ..] = layer_blocks {
            let kv_chunk = self.kv_chunk_of(*first);
            let of_kv_chunk =
                kv_chunk.0 * self.layer_blocks_per_chunk..(kv_chunk.0 + 1) * self.layer_blocks_per_chunk;
            let run =
                layer_blocks.iter().take_while(|layer_block| of_kv_chunk.contains(&layer_block.0)).count();
            let (given, rest) = layer_blocks.split_at(run);
            self.give_of(kv_chunk, given);
            layer_blocks = rest;
        }
    }

    /// Frees blocks of one KV chunk.
    fn give_of(&mut self, kv_chunk: KvChunkId, layer_blocks: &[LayerBlockId]) {
        let words = self.words_of(kv_chunk);
        let bits = &mut self.bits[words];
        for layer_block in layer_blocks {
            let at = layer_block.0 - kv_chunk.0 * self.layer_blocks_per_chunk;
            let (word, bit) = (&mut bits[at as usize / 64], 1 << (at % 64));
            assert!(*word & bit != 0, "{layer_block:?} is given back once");
            *word &= !bit;
            self.holders[layer_block.index()] = FREE;
        }
        let slot = &mut self.kv_chunks[kv_chunk.index()];
        let (before, given) = (slot.used, layer_blocks.len() as u32);
        slot.used -= given;
        if !slot.draining {
            self.free_layer_blocks += given;
            if before < self.layer_blocks_per_chunk {
                self.open.remove(before, kv_chunk);
            }
            self.open.insert(before - given, kv_chunk);
        }
    }

    /// Completes a move: the KV block holds the target block.
    pub fn moved(&mut self, to: LayerBlockId, kv_block: KvBlockId) {
        assert_eq!(self.holders[to.index()], RESERVED, "a move ends in the block reserved for it");
        self.holders[to.index()] = kv_block.0;
    }

    /// Transfers blocks to another KV block.
    pub fn hand_over(&mut self, layer_blocks: &[LayerBlockId], kv_block: KvBlockId) {
        layer_blocks.iter().for_each(|layer_block| self.holders[layer_block.index()] = kv_block.0);
    }

    /// Returns the KV block that holds a block.
    pub fn holder(&self, layer_block: LayerBlockId) -> Option<KvBlockId> {
        let holder = self.holders[layer_block.index()];
        (holder < BUFFER).then_some(KvBlockId(holder))
    }

    /// Returns the held or reserved blocks of a KV chunk.
    pub fn layer_blocks(&self, kv_chunk: KvChunkId) -> impl Iterator<Item = LayerBlockId> + '_ {
        let first = kv_chunk.0 * self.layer_blocks_per_chunk;
        let bits = &self.bits[self.words_of(kv_chunk)];
        let set = (0..self.layer_blocks_per_chunk).filter(|b| bits[*b as usize / 64] >> (b % 64) & 1 == 1);
        set.map(move |b| LayerBlockId(first + b))
    }

    /// Returns the range of the KV chunk's bits.
    fn words_of(&self, kv_chunk: KvChunkId) -> Range<usize> {
        let first = kv_chunk.index() * self.words;
        first..first + self.words
    }

    /// Returns the used blocks of a KV chunk.
    pub fn used(&self, kv_chunk: KvChunkId) -> u32 {
        self.kv_chunks[kv_chunk.index()].used
    }

    /// Whether a chunk backs the KV chunk.
    pub fn is_backed(&self, kv_chunk: KvChunkId) -> bool {
        self.kv_chunks[kv_chunk.index()].backed
    }

    /// Returns the blocks that may be allocated: free ones in KV chunks that do not drain.
    pub fn free_layer_blocks(&self) -> u32 {
        self.free_layer_blocks
    }

    /// Returns the number of KV chunks with a chunk.
    pub fn backed(&self) -> u32 {
        self.backed
    }

    /// Returns the number of KV chunks with a chunk beyond `guaranteed` ones.
    pub fn above(&self, guaranteed: u32) -> u32 {
        self.backed.saturating_sub(guaranteed)
    }

    /// Returns the number of blocks in backed KV chunks.
    pub fn total_layer_blocks(&self) -> u32 {
        self.backed * self.layer_blocks_per_chunk
    }

    /// Returns the number of held or reserved blocks.
    pub fn used_layer_blocks(&self) -> u32 {
        let drained: u32 = self.draining.iter().map(|f| self.layer_blocks_per_chunk - self.used(*f)).sum();
        self.total_layer_blocks() - self.free_layer_blocks - drained
    }

    /// Returns the number of empty KV chunks that accept blocks.
    pub fn empty(&self) -> u32 {
        self.open.count(0)
    }

    /// Checks the counts against the bits.
    pub fn check(&self) {
        let (mut free, mut backed) = (0, 0);
        for (f, kv_chunk) in self.kv_chunks.iter().enumerate().filter(|(_, kv_chunk)| kv_chunk.backed) {
            let id = KvChunkId(f as u32);
            let used: u32 = self.bits[self.words_of(id)].iter().map(|w| w.count_ones()).sum();
            assert_eq!(used, kv_chunk.used, "blocks in use of {id:?}");
            backed += 1;
            let open = kv_chunk.used < self.layer_blocks_per_chunk && !kv_chunk.draining;
            assert_eq!(self.open.contains(kv_chunk.used, id), open, "{id:?} takes blocks");
            free += if kv_chunk.draining { 0 } else { self.layer_blocks_per_chunk - used };
            assert_eq!(self.draining.contains(&id), kv_chunk.draining, "{id:?} drains");
            let first = f * self.layer_blocks_per_chunk as usize;
            let held = self.holders[first..first + self.layer_blocks_per_chunk as usize].iter();
            assert_eq!(held.filter(|h| **h != FREE).count() as u32, used, "holders of blocks of {id:?}");
        }
        assert_eq!((free, backed), (self.free_layer_blocks, self.backed), "free blocks and backed KV chunks");
    }

    /// Returns the number of blocks reserved for moves, and of buffers.
    pub fn reserved(&self) -> (u32, u32) {
        let count = |holder| self.holders.iter().filter(|h| **h == holder).count() as u32;
        (count(RESERVED), count(BUFFER))
    }
}

/// Sets the `count` lowest clear bits and reports their positions.
fn take_bits(bits: &mut [u64], count: u32, mut tell: impl FnMut(u32)) {
    let mut left = count;
    for (w, word) in bits.iter_mut().enumerate() {
        while left > 0 && *word != u64::MAX {
            let bit = word.trailing_ones();
            *word |= 1 << bit;
            tell(w as u32 * 64 + bit);
            left -= 1;
        }
    }
    assert_eq!(left, 0, "a KV chunk has as many clear bits as it has free blocks");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arena(layer_blocks_per_chunk: u32) -> KvChunkPool {
        let mut kv_chunks = KvChunkPool::new(3, layer_blocks_per_chunk);
        (0..3).for_each(|kv_chunk| kv_chunks.back(KvChunkId(kv_chunk)));
        kv_chunks
    }

    /// Tests KV chunks of one word, of a part of a second word, and of a part of a third word.
    #[test]
    fn layer_blocks_are_taken_and_given_for_any_chunk_size() {
        for per in [3, 64, 70, 130] {
            let (mut kv_chunks, mut layer_blocks) = (arena(per), Vec::new());
            kv_chunks.take(2 * per + 1, KvBlockId(7), &mut layer_blocks);
            assert_eq!(
                layer_blocks,
                (0..2 * per + 1).map(LayerBlockId).collect::<Vec<_>>(),
                "KV chunk after KV chunk"
            );
            kv_chunks.check();
            // The blocks alternate between the first and the second KV chunk.
            let some = [per - 1, per, per - 2, 2 * per - 1].map(LayerBlockId);
            kv_chunks.give(&some);
            kv_chunks.check();
            assert_eq!(kv_chunks.free_layer_blocks(), per - 1 + 4);
            assert_eq!(
                (kv_chunks.holder(some[0]), kv_chunks.holder(LayerBlockId(0))),
                (None, Some(KvBlockId(7)))
            );
            let mut again = Vec::new();
            kv_chunks.take(4, KvBlockId(8), &mut again);
            again.sort_unstable();
            assert_eq!(
                again,
                [per - 2, per - 1, per, 2 * per - 1].map(LayerBlockId),
                "the fullest KV chunks first"
            );
            kv_chunks.check();
        }
    }

    #[test]
    fn unbacked_kv_chunk_is_empty_when_backed() {
        for per in [3, 70, 130] {
            let (mut kv_chunks, mut layer_blocks) = (arena(per), Vec::new());
            kv_chunks.take(3 * per, KvBlockId(0), &mut layer_blocks);
            kv_chunks.give(&layer_blocks);
            [2, 0, 1].iter().for_each(|kv_chunk| kv_chunks.unback(KvChunkId(*kv_chunk)));
            kv_chunks.check();
            assert_eq!((kv_chunks.backed(), kv_chunks.free_layer_blocks()), (0, 0));
            [1, 2].iter().for_each(|kv_chunk| kv_chunks.back(KvChunkId(*kv_chunk)));
            assert_eq!(kv_chunks.reserve(2 * per).len() as u32, 2 * per);
            kv_chunks.check();
        }
    }
}
