//! Writes full columns of paused requests to the host tier in parallel with steps and evicts them when their blocks are
//! needed (OrbitFlow 4.2: they are removable). Columns shared by several requests stay. Last columns stay too as long
//! as others can be evicted: a resumed request writes there, and no step writes a block that is being copied.

use alloc::vec::Vec;

use crate::ids::{ColumnId, RequestId};
use crate::kv::{Kv, Swap};
use crate::slots::Generations;

impl Kv {
    /// Returns the suspended requests.
    fn paused(&self) -> impl Iterator<Item = RequestId> + '_ {
        self.sequences.iter().filter(|(_, sequence)| sequence.suspended).map(|(request, _)| *request)
    }

    /// Adds copies of up to `left` blocks of paused requests that the host tier lacks.
    pub(super) fn plan_paused(
        &mut self,
        left: &mut u32,
        generations: &mut Generations,
        written: &mut Vec<Swap>,
    ) {
        for request in self.paused().collect::<Vec<_>>() {
            while *left > 0 {
                let Some(column) = self.next_paused(request) else { break };
                let Some(stowed) = self.reserve_spare_host_place(column, generations) else { return };
                let layers: Vec<_> =
                    self.columns.get(column).layers_not_on_host().iter().take(*left as usize).collect();
                *left -= layers.len() as u32;
                written.push(self.begin_write(column, stowed, layers));
            }
        }
    }

    /// Returns the next column that only this request uses and that the host tier lacks in part.
    fn next_paused(&mut self, request: RequestId) -> Option<ColumnId> {
        let sequence = &self.sequences[&request];
        let full = &sequence.columns[..sequence.full as usize];
        let from = (sequence.written as usize).min(full.len());
        let lacks = |id: &ColumnId| {
            self.is_exclusive_column(*id) && !self.columns.get(*id).layers_not_on_host().is_empty()
        };
        let at = full[from..].iter().position(lacks).map_or(full.len(), |at| from + at);
        let column = full.get(at).copied();
        self.sequences.get_mut(&request).expect("open").written = at as u32 + u32::from(column.is_some());
        column
    }

    /// Whether exactly one reference exists and the column is not being written back.
    fn is_exclusive_column(&self, id: ColumnId) -> bool {
        self.columns.get(id).refs == 1
            && self.columns.has_blocks(id)
            && !self.layer_offload.writing.contains(&id)
    }

    /// Evicts columns of paused requests that are complete in the host tier until at least `least` blocks are free.
    /// Returns the number of freed blocks.
    pub fn evict_paused(&mut self, least: u32) -> u32 {
        let paused = self.sequences.values().filter(|sequence| sequence.suspended);
        let columns = paused.flat_map(|sequence| sequence.columns[..sequence.full as usize].iter().copied());
        let ready = |id: &ColumnId| {
            self.is_exclusive_column(*id) && self.columns.get(*id).layers_not_on_host().is_empty()
        };
        let columns: Vec<_> = columns.filter(ready).collect();
        let mut freed = 0;
        for id in columns {
            if freed >= least {
                break;
            }
            let blocks = self.columns.take_blocks(id);
            freed += blocks.len() as u32;
            self.frames.give(&blocks);
            self.missing_blocks.recheck(id);
            self.history.word(!u64::from(id.0));
        }
        freed
    }

    /// Returns the number of columns that only this request uses: those evicted with it.
    pub fn exclusive_columns(&self, request: RequestId) -> u32 {
        self.exclusive_columns_of(request).count() as u32
    }

    /// Returns the number of their blocks on the device.
    pub fn exclusive_blocks(&self, request: RequestId) -> u32 {
        self.exclusive_columns_of(request).map(|id| self.layers - self.columns.absent(id)).sum()
    }

    /// Returns the number of their blocks that the host tier lacks.
    pub fn exclusive_unwritten_blocks(&self, request: RequestId) -> u32 {
        self.exclusive_columns_of(request).map(|id| self.columns.get(id).layers_not_on_host().len()).sum()
    }

    fn exclusive_columns_of(&self, request: RequestId) -> impl Iterator<Item = ColumnId> + '_ {
        let columns = self.sequences.get(&request).into_iter().flat_map(|sequence| &sequence.columns);
        columns.copied().filter(|id| self.columns.get(*id).refs == 1)
    }

    /// Returns the number of exclusive columns of paused requests without a place in the host tier.
    pub fn unplaced_paused(&self) -> u32 {
        let paused = self.sequences.values().filter(|sequence| sequence.suspended);
        let columns = paused.flat_map(|sequence| &sequence.columns);
        let leaving = columns.filter(|id| self.columns.get(**id).refs == 1);
        leaving.filter(|id| self.columns.get(**id).host_location.is_none()).count() as u32
    }

    /// Returns the device blocks that paused requests other than this one can lose.
    pub fn evictable_paused_blocks(&self, request: RequestId) -> u32 {
        let paused = self.sequences.iter().filter(|(id, sequence)| sequence.suspended && **id != request);
        let columns = paused.flat_map(|(_, sequence)| &sequence.columns[..sequence.full as usize]);
        let leaving = columns.filter(|id| self.is_exclusive_column(**id));
        leaving.map(|id| self.layers - self.columns.absent(*id)).sum()
    }

    /// Plans like [`Kv::plan_swap_out`], for columns that only paused requests use.
    pub fn plan_paused_out(&mut self, most: u32, generations: &mut Generations) -> Vec<Swap> {
        let paused = self.sequences.values().filter(|sequence| sequence.suspended);
        let columns = paused.flat_map(|sequence| sequence.columns.iter().copied());
        let columns: Vec<_> =
            columns.filter(|id| self.is_exclusive_column(*id)).take(most as usize).collect();
        self.swap_out(columns, generations)
    }

    /// Returns the number of blocks that the request lacks on the device.
    pub fn absent_blocks(&self, request: RequestId) -> u32 {
        let columns = self.sequences.get(&request).map(|sequence| &sequence.columns);
        columns.into_iter().flatten().map(|id| self.columns.absent(*id)).sum()
    }
}
