//! Who has a seat, which blocks leave the device for it, and where the buffers are.

use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use super::{StagingSlot, group_by_slots};
use crate::ids::{ColumnId, LayerId, RequestId};
use crate::kv::Kv;
use crate::layer_set::LayerSet;

impl Kv {
    /// Columns of running requests that miss blocks: a seat for each if the placement allows and there is room, else they are
    /// wanted.
    pub(super) fn restage(&mut self) {
        let users: Vec<_> = (self.sequences.iter().filter(|(_, s)| !s.suspended))
            .flat_map(|(request, s)| {
                let at = |(at, id): (usize, &ColumnId)| (*id, (*request, at as u32));
                s.columns.iter().enumerate().map(at)
            })
            .collect();
        for (column, user) in users {
            if self.columns.is_whole(column) || self.columns.get(column).staging_slot().is_some() {
                continue;
            }
            let full = user.1 < self.sequences[&user.0].full;
            if let Some(set) = self.resident_set(column, user.0).filter(|_| full) {
                self.stage(StagingSlot { column, set, user });
            }
            self.missing_blocks.add(column);
        }
    }

    /// The part of the request's set that lies in the host tier, if the column may have a seat with it.
    pub(super) fn resident_set(&mut self, column: ColumnId, request: RequestId) -> Option<u16> {
        let set = *self.layer_offload.placement.of.get(&request)?;
        if self.frames.free_blocks() < u32::from(self.layer_offload.placement.layout.beta) {
            return None;
        }
        let members =
            self.layer_offload.sets[usize::from(set)].members & self.columns.get(column).hosted_layers;
        let kept = self.layer_offload.set_index(members);
        self.saves_blocks(kept).then_some(kept)
    }

    /// The request, which is open and runs from now on, has these layers away. Its columns that are not on the device have seats
    /// as far as the placement in force allows, and there is room. Returns whether there are such columns.
    ///
    /// # Panics
    /// If a fetch is under way, or one of the layers does not move.
    pub fn join(&mut self, request: RequestId, set: Vec<LayerId>) -> bool {
        let layout = &self.layer_offload.placement.layout;
        assert!(set.iter().all(|layer| layout.slot_of(*layer).is_some()), "what is away moves");
        let set = self.layer_offload.set_index(set.into_iter().collect());
        self.register(request, set);
        let some = self.unstaged_columns(request).next().is_some();
        if some {
            self.place(self.layer_offload.placement.clone());
        }
        some
    }

    /// Columns of the request that are not whole on the device and have no seat.
    fn unstaged_columns(&self, request: RequestId) -> impl Iterator<Item = (usize, ColumnId)> + '_ {
        let columns = self.sequences.get(&request).into_iter().flat_map(|sequence| &sequence.columns);
        let homeless =
            |id: &ColumnId| !self.columns.is_whole(*id) && self.columns.get(*id).staging_slot().is_none();
        columns.copied().enumerate().filter(move |(_, id)| homeless(id))
    }

    /// Blocks that the request takes on the device when it goes on with these layers away: those that it lacks, but for full
    /// columns whose blocks of these layers lie in the host tier, which take a seat instead.
    pub fn blocks_to_join(&self, request: RequestId, set: &[LayerId]) -> u32 {
        let (full, buffers) =
            (self.full_columns(request), u32::from(self.layer_offload.placement.layout.beta));
        let set: LayerSet = set.iter().copied().collect();
        let cost = |(at, id): (usize, ColumnId)| {
            let (gone, kept) = (self.columns.missing_blocks_of(id), set & self.columns.get(id).hosted_layers);
            if at as u32 >= full || buffers == 0 || kept.len() < 2 * buffers {
                return gone.len();
            }
            (gone - kept).len() + buffers
        };
        self.unstaged_columns(request).map(cost).sum()
    }

    /// A seat with this set takes no more blocks than it frees at once, though the buffers' next fetches may be ordered: they
    /// keep as many blocks as there are buffers, and the buffers take as many. So a request alone always fits.
    pub(super) fn saves_blocks(&self, set: u16) -> bool {
        let set = self.layer_offload.set(set);
        !set.is_empty() && set.len() >= 2 * usize::from(self.layer_offload.placement.layout.beta)
    }

    pub(super) fn stage(&mut self, seat: StagingSlot) {
        let at = self.layer_offload.staging_slots.len() as u32;
        self.layer_offload.staging_slots.push(Some(seat));
        self.columns.set_staging_slot(seat.column, Some(at));
        self.missing_blocks.recheck(seat.column);
        for buffer in &mut self.layer_offload.buffers {
            if buffer.len() <= at as usize {
                buffer.extend(self.frames.take_buffer(1));
            }
        }
        self.history.word(u64::from(seat.column.0) << 16 ^ u64::from(seat.set));
    }

    pub(super) fn release_buffers(&mut self) {
        for buffer in core::mem::take(&mut self.layer_offload.buffers) {
            self.frames.give(&buffer);
        }
    }

    /// The tables of every request that uses one of these columns are told anew.
    pub(in crate::kv) fn touch(&mut self, columns: &BTreeSet<ColumnId>) {
        if columns.is_empty() {
            return;
        }
        let last = columns.last().map_or(0, |id| id.index());
        let mut marked = vec![false; last + 1];
        columns.iter().for_each(|id| marked[id.index()] = true);
        for (request, sequence) in &self.sequences {
            let is_marked = |id: &ColumnId| marked.get(id.index()) == Some(&true);
            let touched = sequence.columns.iter().enumerate().filter(|(_, id)| is_marked(id));
            self.dirty.extend(touched.map(|(at, _)| (*request, at as u32)));
        }
    }

    /// Columns whose copies are complete get seats, as long as there are blocks for the buffers; then blocks that every
    /// coming step reads from a buffer leave the device.
    pub fn evict_staged(&mut self) {
        let beta = u32::from(self.layer_offload.placement.layout.beta);
        while let Some(seat) = self.layer_offload.ready.pop_front() {
            let column = self.columns.find(seat.column);
            let runs = self.sequences.get(&seat.user.0).is_some_and(|user| !user.suspended);
            let fits =
                runs && column.is_some_and(|column| column.refs > 0 && column.staging_slot().is_none());
            if !fits
                || !self.columns.is_whole(seat.column)
                || !self.missing_on_host(seat.column, seat.set).is_empty()
                || !self.saves_blocks(seat.set)
            {
                continue;
            }
            if self.frames.free_blocks() < beta {
                self.layer_offload.ready.push_front(seat);
                break;
            }
            self.stage(seat);
        }
        self.evict_staged_blocks();
    }

    /// By moving layer: the seats that the next fetch of the layer which is ordered already covers; all where none is.
    fn covered_by_all(&self) -> Vec<u32> {
        let stream = &self.layer_offload;
        let mut covered = vec![stream.staging_slots.len() as u32; stream.placement.layout.moving.len()];
        // Later steps' fetches cover more.
        let window = stream.slots.window().map(|instance| instance.generation);
        for (covered, known) in covered.iter_mut().zip(stream.covered.walk(window)) {
            *covered = known.unwrap_or(*covered);
        }
        covered
    }

    /// By groups of layers, and in each seat by seat, as a column's blocks mostly lie side by side.
    fn evict_staged_blocks(&mut self) {
        let (covered, stream) = (self.covered_by_all(), &mut self.layer_offload);
        // Most layers go of the same seats, and those whose next fetch is early of the ones before.
        let going =
            group_by_slots(stream.placement.layout.moving.iter().zip(covered).map(|(layer, covered)| {
                (*layer, [core::mem::replace(&mut stream.evicted_slots[layer.index()], covered), covered])
            }));
        let mut left = Vec::new();
        for ([from, to], layers) in going {
            for seat in stream.staging_slots[from as usize..to as usize].iter().flatten() {
                let members = stream.sets[usize::from(seat.set)].members;
                self.columns.take_layers(seat.column, members & layers, &mut left);
            }
        }
        self.frames.give(&left);
    }

    /// The request does not run for now: what it has in buffers alone has no seat any more.
    pub fn suspend(&mut self, request: RequestId) {
        self.layer_offload.forget_request(request);
        let Some(sequence) = self.sequences.get_mut(&request) else { return };
        (sequence.suspended, sequence.written) = (true, 0);
        let columns = sequence.columns.clone();
        let running: BTreeSet<_> = (self.sequences.values().filter(|sequence| !sequence.suspended))
            .flat_map(|sequence| sequence.columns.iter().copied())
            .collect();
        self.missing_blocks.retain(|id| running.contains(id));
        for id in columns.into_iter().filter(|id| !running.contains(id)) {
            if let Some(seat) = self.columns.set_staging_slot(id, None) {
                self.missing_blocks.recheck(id);
                self.layer_offload.vacate(seat);
            }
        }
    }

    /// Blocks of draining frames that belong to a buffer.
    pub fn drains_buffers(&self) -> bool {
        let frames = self.frames.draining();
        let mut blocks = self.layer_offload.buffers.iter().flatten();
        !frames.is_empty() && blocks.any(|block| frames.contains(&self.frames.frame_of(*block)))
    }

    /// Buffers leave draining frames. Their contents are fetched anew. Returns whether there was room.
    ///
    /// # Panics
    /// If a fetch is under way.
    pub fn move_buffers(&mut self) -> bool {
        assert!(self.layer_offload.fetching.is_empty(), "buffers move while nothing is copied into them");
        let draining = self.frames.draining().clone();
        let mut going = Vec::new();
        for block in self.layer_offload.buffers.iter_mut().flatten() {
            if draining.contains(&self.frames.frame_of(*block)) {
                if self.frames.free_blocks() == 0 {
                    break;
                }
                going.push(*block);
                *block = self.frames.take_buffer(1)[0];
            }
        }
        going.sort_unstable();
        self.frames.give(&going);
        self.layer_offload.table = Arc::default();
        self.forget_fetches();
        let seated: BTreeSet<_> =
            self.layer_offload.staging_slots.iter().flatten().map(|seat| seat.column).collect();
        self.touch(&seated);
        !self.drains_buffers()
    }

    /// Blocks of seated columns that are not on the device.
    pub fn offloaded_blocks(&self) -> u32 {
        self.columns.offloaded_layers()
    }

    /// Columns that have a seat, and seats that nobody has.
    pub fn slot_counts(&self) -> (u32, u32) {
        (
            self.layer_offload.staging_slots.len() as u32 - self.layer_offload.free_slots,
            self.layer_offload.free_slots,
        )
    }

    /// Full columns of a request.
    pub fn full_columns(&self, request: RequestId) -> u32 {
        self.sequences.get(&request).map_or(0, |sequence| sequence.full)
    }
}
