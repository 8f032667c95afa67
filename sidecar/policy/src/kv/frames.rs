//! The KV arena: frames of one chunk each, and the layer blocks in them.

use alloc::collections::BTreeSet;
use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::ops::Range;

mod open;

use crate::ids::{BlockId, ColumnId, FrameId};
use open::PartialChunks;

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

/// The frames and the holder of each block.
#[derive(Clone, Debug)]
pub struct Frames {
    blocks_per_chunk: u32,
    frames: Vec<Frame>,
    holders: Vec<u32>,
    /// One bit per block, set if it is held or reserved; `words` words per frame.
    bits: Vec<u64>,
    words: usize,
    open: PartialChunks,
    free_blocks: u32,
    draining: BTreeSet<FrameId>,
    backed: u32,
}

impl Frames {
    /// Returns an arena of `frames` positions without chunks.
    pub fn new(frames: u32, blocks_per_chunk: u32) -> Frames {
        Frames {
            blocks_per_chunk,
            frames: vec![Frame::default(); frames as usize],
            holders: Vec::new(),
            bits: Vec::new(),
            words: blocks_per_chunk.div_ceil(64) as usize,
            open: PartialChunks::default(),
            free_blocks: 0,
            draining: BTreeSet::new(),
            backed: 0,
        }
    }

    /// Returns the frame of a block.
    pub fn frame_of(&self, block: BlockId) -> FrameId {
        FrameId(block.0 / self.blocks_per_chunk)
    }

    /// Backs the frame with a chunk.
    pub fn back(&mut self, frame: FrameId) {
        let frames = frame.index() + 1;
        if self.bits.len() < frames * self.words {
            self.holders.resize(frames * self.blocks_per_chunk as usize, FREE);
            self.bits.resize(frames * self.words, 0);
        }
        let slot = &mut self.frames[frame.index()];
        assert!(!slot.backed, "{frame:?} is backed twice");
        *slot = Frame { backed: true, draining: false, used: 0 };
        self.backed += 1;
        self.free_blocks += self.blocks_per_chunk;
        self.open.insert(0, frame);
    }

    /// Removes the chunk of an empty frame.
    pub fn unback(&mut self, frame: FrameId) {
        self.set_draining(frame, true);
        let slot = &mut self.frames[frame.index()];
        assert!(slot.backed && slot.used == 0, "{frame:?} is empty when its chunk leaves");
        *slot = Frame::default();
        self.draining.remove(&frame);
        self.backed -= 1;
    }

    /// Stops or resumes allocation in the frame.
    pub fn set_draining(&mut self, frame: FrameId, draining: bool) {
        let slot = &mut self.frames[frame.index()];
        assert!(slot.backed, "a backed frame drains");
        if slot.draining == draining {
            return;
        }
        slot.draining = draining;
        let (used, free) = (slot.used, self.blocks_per_chunk - slot.used);
        if draining {
            self.free_blocks -= free;
            self.draining.insert(frame);
            if free > 0 {
                self.open.remove(used, frame);
            }
        } else {
            self.free_blocks += free;
            self.draining.remove(&frame);
            self.reopen(frame);
        }
    }

    fn reopen(&mut self, frame: FrameId) {
        let slot = &self.frames[frame.index()];
        if slot.used < self.blocks_per_chunk && !slot.draining {
            self.open.insert(slot.used, frame);
        }
    }

    /// Allocates `count` blocks for `column`, from the fullest frames first.
    pub fn take(&mut self, count: u32, column: ColumnId, out: &mut Vec<BlockId>) {
        self.take_for(count, column.0, out);
    }

    /// Reserves `count` blocks as targets of moves.
    pub fn reserve(&mut self, count: u32) -> Vec<BlockId> {
        let mut out = Vec::new();
        self.take_for(count, RESERVED, &mut out);
        out
    }

    /// Allocates `count` blocks for buffers.
    pub fn take_buffer(&mut self, count: u32) -> Vec<BlockId> {
        let mut out = Vec::new();
        self.take_for(count, BUFFER, &mut out);
        out
    }

    /// Whether the block belongs to a buffer.
    pub fn is_buffer(&self, block: BlockId) -> bool {
        self.holders[block.index()] == BUFFER
    }

    fn take_for(&mut self, count: u32, holder: u32, out: &mut Vec<BlockId>) {
        assert!(count <= self.free_blocks, "blocks are taken only when they are there");
        self.free_blocks -= count;
        out.reserve(count as usize);
        let mut missing = count;
        while missing > 0 {
            let frame = self.open.take_fullest().expect("free blocks lie in open frames");
            let first = frame.0 * self.blocks_per_chunk;
            let slot = &mut self.frames[frame.index()];
            let taken = missing.min(self.blocks_per_chunk - slot.used);
            slot.used += taken;
            missing -= taken;
            let before = out.len();
            let words = self.words_of(frame);
            take_bits(&mut self.bits[words], taken, |at| out.push(BlockId(first + at)));
            out[before..].iter().for_each(|block| self.holders[block.index()] = holder);
            self.reopen(frame);
        }
    }

    /// Frees blocks in any order. A run of blocks of one frame costs one update.
    pub fn give(&mut self, mut blocks: &[BlockId]) {
        while let [first, ..] = blocks {
            let frame = self.frame_of(*first);
            let of_frame = frame.0 * self.blocks_per_chunk..(frame.0 + 1) * self.blocks_per_chunk;
            let run = blocks.iter().take_while(|block| of_frame.contains(&block.0)).count();
            let (given, rest) = blocks.split_at(run);
            self.give_of(frame, given);
            blocks = rest;
        }
    }

    /// Frees blocks of one frame.
    fn give_of(&mut self, frame: FrameId, blocks: &[BlockId]) {
        let words = self.words_of(frame);
        let bits = &mut self.bits[words];
        for block in blocks {
            let at = block.0 - frame.0 * self.blocks_per_chunk;
            let (word, bit) = (&mut bits[at as usize / 64], 1 << (at % 64));
            assert!(*word & bit != 0, "{block:?} is given back once");
            *word &= !bit;
            self.holders[block.index()] = FREE;
        }
        let slot = &mut self.frames[frame.index()];
        let (before, given) = (slot.used, blocks.len() as u32);
        slot.used -= given;
        if !slot.draining {
            self.free_blocks += given;
            if before < self.blocks_per_chunk {
                self.open.remove(before, frame);
            }
            self.open.insert(before - given, frame);
        }
    }

    /// Completes a move: the column holds the target block.
    pub fn moved(&mut self, to: BlockId, column: ColumnId) {
        assert_eq!(self.holders[to.index()], RESERVED, "a move ends in the block reserved for it");
        self.holders[to.index()] = column.0;
    }

    /// Transfers blocks to another column.
    pub fn hand_over(&mut self, blocks: &[BlockId], column: ColumnId) {
        blocks.iter().for_each(|block| self.holders[block.index()] = column.0);
    }

    /// Returns the column that holds a block.
    pub fn holder(&self, block: BlockId) -> Option<ColumnId> {
        let holder = self.holders[block.index()];
        (holder < BUFFER).then_some(ColumnId(holder))
    }

    /// Returns the held or reserved blocks of a frame.
    pub fn blocks(&self, frame: FrameId) -> impl Iterator<Item = BlockId> + '_ {
        let first = frame.0 * self.blocks_per_chunk;
        let bits = &self.bits[self.words_of(frame)];
        let set = (0..self.blocks_per_chunk).filter(|b| bits[*b as usize / 64] >> (b % 64) & 1 == 1);
        set.map(move |b| BlockId(first + b))
    }

    /// Returns the range of the frame's bits.
    fn words_of(&self, frame: FrameId) -> Range<usize> {
        let first = frame.index() * self.words;
        first..first + self.words
    }

    /// Returns the used blocks of a frame.
    pub fn used(&self, frame: FrameId) -> u32 {
        self.frames[frame.index()].used
    }

    /// Whether a chunk backs the frame.
    pub fn is_backed(&self, frame: FrameId) -> bool {
        self.frames[frame.index()].backed
    }

    /// Returns the blocks that may be allocated: free ones in frames that do not drain.
    pub fn free_blocks(&self) -> u32 {
        self.free_blocks
    }

    /// Returns the number of frames with a chunk.
    pub fn backed(&self) -> u32 {
        self.backed
    }

    /// Returns the number of blocks in backed frames.
    pub fn total_blocks(&self) -> u32 {
        self.backed * self.blocks_per_chunk
    }

    /// Returns the number of held or reserved blocks.
    pub fn used_blocks(&self) -> u32 {
        let drained: u32 = self.draining.iter().map(|f| self.blocks_per_chunk - self.used(*f)).sum();
        self.total_blocks() - self.free_blocks - drained
    }

    /// Returns the draining frames, in order.
    pub fn draining(&self) -> &BTreeSet<FrameId> {
        &self.draining
    }

    /// Returns the number of empty frames that accept blocks.
    pub fn empty(&self) -> u32 {
        self.open.count(0)
    }

    /// Returns the backed frames that do not drain, fewest blocks first, ties by the last position in the arena.
    pub fn emptiest(&self) -> Vec<FrameId> {
        let frames = (0..self.frames.len() as u32).map(FrameId);
        let mut frames: Vec<_> = frames
            .filter(|f| self.frames[f.index()].backed && !self.frames[f.index()].draining)
            .map(|f| (self.used(f), Reverse(f)))
            .collect();
        frames.sort_unstable();
        frames.into_iter().map(|(_, Reverse(frame))| frame).collect()
    }

    /// Checks the counts against the bits.
    pub fn check(&self) {
        let (mut free, mut backed) = (0, 0);
        for (f, frame) in self.frames.iter().enumerate().filter(|(_, frame)| frame.backed) {
            let id = FrameId(f as u32);
            let used: u32 = self.bits[self.words_of(id)].iter().map(|w| w.count_ones()).sum();
            assert_eq!(used, frame.used, "blocks in use of {id:?}");
            backed += 1;
            let open = frame.used < self.blocks_per_chunk && !frame.draining;
            assert_eq!(self.open.contains(frame.used, id), open, "{id:?} takes blocks");
            free += if frame.draining { 0 } else { self.blocks_per_chunk - used };
            assert_eq!(self.draining.contains(&id), frame.draining, "{id:?} drains");
            let first = f * self.blocks_per_chunk as usize;
            let held = self.holders[first..first + self.blocks_per_chunk as usize].iter();
            assert_eq!(held.filter(|h| **h != FREE).count() as u32, used, "holders of blocks of {id:?}");
        }
        assert_eq!((free, backed), (self.free_blocks, self.backed), "free blocks and backed frames");
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
    assert_eq!(left, 0, "a frame has as many clear bits as it has free blocks");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arena(blocks_per_chunk: u32) -> Frames {
        let mut frames = Frames::new(3, blocks_per_chunk);
        (0..3).for_each(|frame| frames.back(FrameId(frame)));
        frames
    }

    /// Tests frames of one word, of a part of a second word, and of a part of a third word.
    #[test]
    fn blocks_are_taken_and_given_in_frames_of_any_number_of_words() {
        for per in [3, 64, 70, 130] {
            let (mut frames, mut blocks) = (arena(per), Vec::new());
            frames.take(2 * per + 1, ColumnId(7), &mut blocks);
            assert_eq!(blocks, (0..2 * per + 1).map(BlockId).collect::<Vec<_>>(), "frame after frame");
            frames.check();
            // The blocks alternate between the first and the second frame.
            let some = [per - 1, per, per - 2, 2 * per - 1].map(BlockId);
            frames.give(&some);
            frames.check();
            assert_eq!(frames.free_blocks(), per - 1 + 4);
            assert_eq!((frames.holder(some[0]), frames.holder(BlockId(0))), (None, Some(ColumnId(7))));
            let mut again = Vec::new();
            frames.take(4, ColumnId(8), &mut again);
            again.sort_unstable();
            assert_eq!(again, [per - 2, per - 1, per, 2 * per - 1].map(BlockId), "the fullest frames first");
            frames.check();
        }
    }

    #[test]
    fn a_frame_whose_chunk_has_left_comes_back_empty() {
        for per in [3, 70, 130] {
            let (mut frames, mut blocks) = (arena(per), Vec::new());
            frames.take(3 * per, ColumnId(0), &mut blocks);
            frames.give(&blocks);
            [2, 0, 1].iter().for_each(|frame| frames.unback(FrameId(*frame)));
            frames.check();
            assert_eq!((frames.backed(), frames.free_blocks()), (0, 0));
            [1, 2].iter().for_each(|frame| frames.back(FrameId(*frame)));
            assert_eq!(frames.reserve(2 * per).len() as u32, 2 * per);
            frames.check();
        }
    }
}
