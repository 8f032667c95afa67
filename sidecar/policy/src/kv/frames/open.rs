//! Frames that take blocks, by how full they are.
//!
//! A step takes and gives blocks of a hundred frames, and each time a frame's place here changes: all of this is a few bits
//! in words that lie side by side.

use alloc::vec::Vec;

use crate::ids::FrameId;

/// Levels of a set: numbers below 64^2 are found in two looks, larger ones in one more for each 64^2.
const LEVELS: usize = 2;

/// A set of small numbers. The lowest level has a bit for each number, the next one a bit for each word that is not 0.
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

    /// The number was not in it.
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

    /// The number was in it.
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

    /// From a word of the top level, which is not 0, to the number that `choose` leads to.
    fn descend(&self, word: usize, choose: impl Fn(u64) -> u32) -> u32 {
        let numbers = self.levels.iter().rev();
        numbers.fold(word, |word, level| word * 64 + choose(level[word]) as usize) as u32
    }
}

/// The frames.
#[derive(Clone, Debug, Default)]
pub(super) struct PartialChunks {
    /// By blocks in use.
    by_used: Vec<Bits>,
    /// Where there are any.
    fills: Bits,
}

impl PartialChunks {
    /// The frame, of which so many blocks are in use, takes more.
    pub fn insert(&mut self, used: u32, frame: FrameId) {
        if self.by_used.len() <= used as usize {
            self.by_used.resize(used as usize + 1, Bits::default());
        }
        let frames = &mut self.by_used[used as usize];
        if frames.count == 0 {
            self.fills.insert(used);
        }
        frames.insert(frame.0);
    }

    /// The frame, which was inserted with so many, is not among them any more.
    pub fn remove(&mut self, used: u32, frame: FrameId) {
        let frames = &mut self.by_used[used as usize];
        frames.remove(frame.0);
        if frames.count == 0 {
            self.fills.remove(used);
        }
    }

    /// Takes out the fullest one, the first in the arena on a tie.
    pub fn take_fullest(&mut self) -> Option<FrameId> {
        let used = self.fills.last()?;
        let frame = FrameId(self.by_used[used as usize].first()?);
        self.remove(used, frame);
        Some(frame)
    }

    /// Those of which so many blocks are in use.
    pub fn count(&self, used: u32) -> u32 {
        self.by_used.get(used as usize).map_or(0, |frames| frames.count)
    }

    /// The frame was inserted with so many.
    pub fn contains(&self, used: u32, frame: FrameId) -> bool {
        self.by_used.get(used as usize).is_some_and(|frames| frames.contains(frame.0))
    }
}
