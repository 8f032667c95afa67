//! Draining and compaction: empties chunks of KV without dropping live blocks.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use super::Kv;
use crate::ids::{BlockId, FrameId};

/// State of the draining frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drain {
    /// All are empty.
    Empty,
    /// Blocks must move, and there is space for all of them.
    Movable,
    /// There is not enough space even if all cached columns are evicted.
    NoRoom,
}

impl Kv {
    /// Drains exactly `count` frames, those with the fewest blocks first. Returns the frames that started or stopped
    /// draining.
    pub fn drain(&mut self, count: u32) -> Vec<FrameId> {
        let draining = self.frames.draining().len() as u32;
        if count == draining {
            return Vec::new();
        }
        let changed: Vec<_> = if count >= draining {
            self.frames.emptiest().into_iter().take((count - draining) as usize).collect()
        } else {
            self.frames.draining().iter().copied().take((draining - count) as usize).collect()
        };
        changed.iter().for_each(|frame| self.frames.set_draining(*frame, count >= draining));
        changed
    }

    /// Evicts cached columns, oldest first, until all blocks of draining frames fit elsewhere. Returns what remains and
    /// the number of evicted columns; evicts none if evicting all would not suffice.
    pub fn make_room(&mut self) -> (Drain, u32) {
        let mut evicted = 0;
        if self.overfull_blocks() > 0 {
            return (Drain::NoRoom, 0);
        }
        while self.live_in_draining() > self.frames.free_blocks() && self.evict() {
            evicted += 1;
        }
        let live = self.live_in_draining();
        let drain = match live {
            0 => Drain::Empty,
            _ if live <= self.frames.free_blocks() => Drain::Movable,
            _ => Drain::NoRoom,
        };
        (drain, evicted)
    }

    /// Returns the used blocks that would not fit into the non-draining frames even without any cache.
    pub fn overfull_blocks(&self) -> u32 {
        let draining = self.frames.draining().len() as u32;
        let staying = self.frames.backed() - draining;
        let blocks = self.frames.total_blocks().checked_div(self.frames.backed()).unwrap_or(0);
        self.frames.used_blocks().saturating_sub(staying * blocks + self.evictable_blocks())
    }

    fn live_in_draining(&self) -> u32 {
        self.frames.draining().iter().map(|f| self.frames.used(*f)).sum()
    }

    /// Returns the draining frames that are empty.
    pub fn drained(&self) -> Vec<FrameId> {
        self.frames.draining().iter().copied().filter(|f| self.frames.used(*f) == 0).collect()
    }

    /// Plans up to `limit` moves out of draining frames, those closest to empty first, and reserves the targets. Blocks
    /// of buffers, and blocks being written back or loaded in parallel with steps, are not moved.
    pub fn plan_moves(&mut self, limit: u32) -> Vec<(BlockId, BlockId)> {
        let mut frames: Vec<_> = self.frames.draining().iter().map(|f| (self.frames.used(*f), *f)).collect();
        frames.sort_unstable();
        let stays = |block: &BlockId| {
            self.frames.holder(*block).is_some_and(|id| self.is_copied(id)) || self.frames.is_buffer(*block)
        };
        let blocks = frames.iter().flat_map(|(_, frame)| self.frames.blocks(*frame));
        let from: Vec<_> = blocks
            .filter(|block| !stays(block))
            .take(limit.min(self.frames.free_blocks()) as usize)
            .collect();
        let to = self.frames.reserve(from.len() as u32);
        from.into_iter().zip(to).collect()
    }

    /// Completes the moves. If a block's column was freed during the move, its target is freed.
    pub fn finish_moves(&mut self, moves: impl Iterator<Item = (BlockId, BlockId)>, done: bool) {
        let mut moved = BTreeSet::new();
        for (from, to) in moves {
            let holder = self.frames.holder(from).filter(|_| done);
            let Some(column) = holder else {
                self.frames.give(&[to]);
                continue;
            };
            self.frames.moved(to, column);
            self.columns.move_block(column, from, to);
            self.frames.give(&[from]);
            self.history.word(u64::from(from.0) << 32 | u64::from(to.0));
            moved.insert(column);
        }
        for (request, sequence) in &self.sequences {
            let columns = sequence.columns.iter().enumerate().filter(|(_, id)| moved.contains(id));
            self.dirty.extend(columns.map(|(at, _)| (*request, at as u32)));
        }
    }
}
