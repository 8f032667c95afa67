//! KV between the device and the host tier, whole columns at a time, each copy under a name that is never reused.
//!
//! While a column is on its way it has one reference more, so that whoever lets go of it meanwhile does not free it.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use super::Kv;
use super::columns::Stowed;
use crate::action::BlockSwap;
use crate::ids::{BlockId, ChunkId, ColumnId, HostBlockId, RequestId};
use crate::slots::Generations;

/// A column on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Swap {
    /// Which.
    pub column: ColumnId,
    /// Where it lies in the host tier, or will.
    pub stowed: Stowed,
}

impl Kv {
    /// A request that is admitted uses the column: it has to be on the device.
    pub(super) fn want(&mut self, id: ColumnId) {
        if self.columns.get(id).stowed.is_some() {
            self.wanted.insert(id);
        }
    }

    /// The request, whose KV was kept, is admitted again: all of it has to be on the device, in a row of its own.
    pub fn resume(&mut self, request: RequestId) {
        let columns = self.sequences.get(&request).map_or(Vec::new(), |sequence| sequence.columns.clone());
        for (at, id) in columns.into_iter().enumerate() {
            self.dirty.insert((request, at as u32));
            self.want(id);
        }
    }

    /// Blocks that the columns which are wanted on the device will take there.
    pub fn wanted_blocks(&mut self) -> u32 {
        if !self.wanted.is_empty() {
            let columns = &self.columns;
            let needed = |column: &super::columns::Column| column.stowed.is_some() && column.refs > 0;
            self.wanted.retain(|id| columns.find(*id).is_some_and(needed));
        }
        self.wanted.len() as u32 * self.layers
    }

    /// Columns on the device, while none is on its way.
    pub fn on_device(&self) -> u32 {
        self.columns.live() - self.tier.used()
    }

    /// The request holds blocks on the device.
    pub fn holds_blocks(&self, request: RequestId) -> bool {
        let columns = self.sequences.get(&request).map(|sequence| &sequence.columns);
        columns.is_some_and(|columns| columns.iter().any(|id| self.columns.has_blocks(*id)))
    }

    /// Gives up cache, longest unused first wherever it lies, until all that is on the device fits the host tier. Returns
    /// the columns given up and, if that does not suffice, how many columns of requests are too many.
    pub fn make_host_room(&mut self) -> (u32, u32) {
        let mut evicted = 0;
        while self.on_device() > self.tier.room() {
            let on_device = self.idle.first_key_value().map(|(stamp, _)| *stamp);
            // No column is older than none: where only one side has any, it is that side's turn.
            let host_first =
                on_device.is_none_or(|stamp| self.tier.oldest().is_some_and(|host| host < stamp));
            if !(if host_first { self.evict_from_host() } else { self.evict() }) {
                break;
            }
            evicted += 1;
        }
        (evicted, self.on_device().saturating_sub(self.tier.room()))
    }

    /// Gives up all cache, on the device and in the host tier. Returns the columns given up.
    pub fn give_up_cache(&mut self) -> u32 {
        let mut count = 0;
        while self.evict() || self.evict_from_host() {
            count += 1;
        }
        count
    }

    /// As [`Kv::evict`], of those in the host tier.
    fn evict_from_host(&mut self) -> bool {
        let Some(id) = self.tier.take_oldest(&self.columns) else { return false };
        self.give_up(id);
        true
    }

    /// Up to `most` columns on the device go to the host tier: those in use, then the others in the order in which they were
    /// let go.
    ///
    /// # Panics
    /// If there is no room: [`Kv::make_host_room`] comes first.
    pub fn plan_swap_out(&mut self, most: u32, generations: &mut Generations) -> Vec<Swap> {
        let used = self.columns.iter().filter(|(_, column)| column.refs > 0 && column.stowed.is_none());
        let columns = used.map(|(id, _)| id).chain(self.idle.values().copied());
        let columns: Vec<_> = columns.take(most as usize).collect();
        let plan = |id: &ColumnId| {
            self.refer(*id);
            let stowed = Stowed { place: self.tier.take(), generation: generations.fresh() };
            Swap { column: *id, stowed }
        };
        let swaps: Vec<_> = columns.iter().map(plan).collect();
        self.moving = columns;
        swaps
    }

    /// The copies to the host have ended.
    pub fn finish_swap_out(&mut self, swaps: &[Swap], done: bool) {
        self.moving.clear();
        for swap in swaps {
            if done {
                self.frames.give(&self.columns.take_blocks(swap.column));
                self.columns.get_mut(swap.column).stowed = Some(swap.stowed);
                self.history.word(swap.stowed.generation.0);
            } else {
                self.tier.give(swap.stowed.place);
            }
            self.let_go(swap.column);
        }
    }

    /// Up to `most` columns that are wanted on the device get blocks there.
    ///
    /// # Panics
    /// If there are not [`Kv::wanted_blocks`] free blocks.
    pub fn plan_swap_in(&mut self, most: u32) -> Vec<Swap> {
        self.wanted_blocks();
        let wanted: Vec<_> = self.wanted.iter().copied().take(most as usize).collect();
        self.wanted.retain(|id| !wanted.contains(id));
        let mut blocks = Vec::new();
        let mut plan = |id: ColumnId| {
            blocks.clear();
            self.frames.take(self.layers, id, &mut blocks);
            self.columns.blocks_mut(id).copy_from_slice(&blocks);
            self.refer(id);
            let stowed = self.columns.get(id).stowed.expect("a wanted column lies in the host tier");
            Swap { column: id, stowed }
        };
        let swaps: Vec<_> = wanted.iter().copied().map(&mut plan).collect();
        self.moving = wanted;
        swaps
    }

    /// The copies to the device have ended well.
    pub fn finish_swap_in(&mut self, swaps: &[Swap]) {
        self.moving.clear();
        let arrived: BTreeSet<_> = swaps.iter().map(|swap| swap.column).collect();
        for swap in swaps {
            self.columns.get_mut(swap.column).stowed = None;
            self.tier.give(swap.stowed.place);
            self.history.word(!swap.stowed.generation.0);
        }
        for (request, sequence) in &self.sequences {
            let columns = sequence.columns.iter().enumerate().filter(|(_, id)| arrived.contains(id));
            self.dirty.extend(columns.map(|(at, _)| (*request, at as u32)));
        }
        swaps.iter().for_each(|swap| self.let_go(swap.column));
    }

    /// The copies to the device failed, and nobody knows what lies in the host tier: these columns are lost, with all that
    /// follows them. Returns the requests that need them, which have to be computed again.
    pub fn lose(&mut self, swaps: &[Swap]) -> Vec<RequestId> {
        self.moving.clear();
        let lost: BTreeSet<_> = swaps.iter().map(|swap| swap.column).collect();
        let mut requests = Vec::new();
        let mut spoilt = BTreeSet::new();
        for (request, sequence) in &mut self.sequences {
            if let Some(first) = sequence.columns.iter().position(|id| lost.contains(id)) {
                requests.push(*request);
                spoilt.extend(sequence.columns[first..].iter().copied());
                sequence.chain = None;
            }
        }
        for id in spoilt.iter().chain(&lost).copied().collect::<BTreeSet<_>>() {
            let orphans = self.unpublish(id).map(|name| self.tier.take_children(name, &self.columns));
            orphans.into_iter().flatten().for_each(|orphan| self.give_up(orphan));
        }
        swaps.iter().for_each(|swap| self.let_go(swap.column));
        requests
    }

    /// The blocks of a swap as a backend knows them.
    pub fn block_swaps(&self, swaps: &[Swap], chunk: impl Fn(BlockId) -> ChunkId) -> Vec<BlockSwap> {
        let blocks = |swap: &Swap| {
            let first = swap.stowed.place * self.layers;
            let generation = swap.stowed.generation;
            let one =
                move |(at, block): (usize, BlockId)| (HostBlockId(first + at as u32), block, generation);
            let blocks: Vec<_> =
                self.columns.blocks(swap.column).iter().copied().enumerate().map(one).collect();
            blocks
        };
        let all = swaps.iter().flat_map(blocks);
        all.map(|(host, block, generation)| BlockSwap { block, chunk: chunk(block), host, generation })
            .collect()
    }
}
