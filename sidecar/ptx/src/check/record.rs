//! The last uses of a few bytes, and whether they are ordered before another use.

use crate::check::clocks::Clocks;
use crate::fault::{Access, FaultKind};
use crate::place::Where;
use crate::slots::LANES;

/// Bytes that one cell stands for. An access of one byte is taken to race with no other such access of the cell.
pub(crate) const CELL_BYTES: u64 = 2;

/// An access of one lane.
#[derive(Clone, Copy)]
pub(crate) struct Me {
    pub warp: usize,
    pub lane: usize,
    pub write: bool,
    /// Atomic, volatile or ordered: no race with another such access.
    pub strong: bool,
}

impl Me {
    pub fn thread(&self) -> u64 {
        (self.warp * LANES + self.lane) as u64
    }
}

/// Who a record stands for.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum Who {
    /// No access yet.
    #[default]
    None,
    Thread,
    /// Several lanes of the thread's warp.
    Warp,
    /// Several warps of the block; the time counts the barriers of the whole block.
    Block,
    /// Several blocks.
    Grid,
}

/// The last access of a kind.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Record {
    block: u32,
    stamp: u32,
    time: u32,
    thread: u16,
    who: Who,
    strong: bool,
}

/// The last write and the reads since then of [`CELL_BYTES`] bytes.
#[derive(Clone, Copy, Default)]
pub(crate) struct Cell {
    writer: Record,
    reader: Record,
    /// The last access had one byte only.
    narrow: bool,
}

/// The other access of a race.
pub(crate) struct Other {
    record: Record,
    write: bool,
}

impl Record {
    fn of(clocks: &Clocks, me: &Me) -> Self {
        Record {
            block: clocks.block,
            stamp: clocks.stamp,
            time: clocks.time(me.warp),
            thread: me.thread() as u16,
            who: Who::Thread,
            strong: me.strong,
        }
    }

    /// Whether it is before an access of `me`.
    fn is_before(&self, clocks: &Clocks, me: &Me) -> bool {
        let (warp, lane) = (self.thread as usize / LANES, self.thread as usize % LANES);
        match self.who {
            Who::None => true,
            Who::Grid => false,
            _ if self.block != clocks.block => clocks.knows_block(self.block, self.stamp),
            Who::Thread => clocks.knows((me.warp, me.lane), (warp, lane), self.time),
            Who::Warp => clocks.knows_warp(me.warp, warp, self.time),
            Who::Block => clocks.full > self.time,
        }
    }

    /// The record of this reader and of another one.
    fn joined(&self, clocks: &Clocks, me: &Me) -> Self {
        let mine = Record::of(clocks, me);
        if self.is_before(clocks, me) {
            return mine;
        }
        let strong = self.strong && mine.strong;
        let one_warp = self.thread as usize / LANES == me.warp && matches!(self.who, Who::Thread | Who::Warp);
        match self.block == mine.block && self.who != Who::Grid {
            false => Record { who: Who::Grid, strong, ..mine },
            true if one_warp => Record { who: Who::Warp, strong, ..mine },
            true => Record { who: Who::Block, time: clocks.full, strong, ..mine },
        }
    }
}

impl Cell {
    /// Notes an access, or returns the one that it races with. `narrow`: it has one byte only.
    pub fn access(&mut self, clocks: &Clocks, me: &Me, narrow: bool) -> Result<(), Other> {
        // Which of the two bytes a narrow access has is not kept: two such accesses are taken to be apart.
        let apart = narrow && self.narrow;
        self.narrow = narrow;
        let harmless = |record: &Record| record.strong && me.strong || record.is_before(clocks, me);
        if !apart && !harmless(&self.writer) {
            return Err(Other { record: self.writer, write: true });
        }
        if !me.write {
            self.reader = self.reader.joined(clocks, me);
            return Ok(());
        }
        if !apart && !harmless(&self.reader) {
            return Err(Other { record: self.reader, write: false });
        }
        self.writer = Record::of(clocks, me);
        self.reader = Record::default();
        Ok(())
    }
}

impl Other {
    /// The fault of an access at `place` that races with this one.
    pub fn race(self, place: Where, access: Access) -> FaultKind {
        FaultKind::Race {
            space: place.space,
            address: place.address,
            access,
            other: match (self.record.strong, self.write) {
                (true, _) => Access::Atomic,
                (false, true) => Access::Write,
                (false, false) => Access::Read,
            },
            other_thread: (self.record.who == Who::Thread).then_some(u32::from(self.record.thread)),
            other_block: u64::from(self.record.block),
        }
    }
}
