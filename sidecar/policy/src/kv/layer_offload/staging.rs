//! Assigns staging slots, evicts the staged blocks and manages the buffers.

use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use super::{StagingSlot, group_by_slots};
use crate::ids::{ColumnId, LayerId, RequestId};
use crate::kv::Kv;
use crate::layer_set::LayerSet;

impl Kv {
    /// Stages the incomplete columns of running requests if the placement allows it and there is space; otherwise
    /// queues them for swap-in.
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

    /// Returns the part of the request's set that is in the host tier, if the column may be staged with it.
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

    /// Offloads these layers of the request, which is open and runs from now on. Its columns that are not on the device
    /// are staged as far as the placement and the space allow. Returns whether there are such columns.
    ///
    /// # Panics
    /// If a fetch is in progress, or one of the layers does not move.
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

    /// Returns the request's columns that are neither complete on the device nor staged.
    fn unstaged_columns(&self, request: RequestId) -> impl Iterator<Item = (usize, ColumnId)> + '_ {
        let columns = self.sequences.get(&request).into_iter().flat_map(|sequence| &sequence.columns);
        let homeless =
            |id: &ColumnId| !self.columns.is_whole(*id) && self.columns.get(*id).staging_slot().is_none();
        columns.copied().enumerate().filter(move |(_, id)| homeless(id))
    }

    /// Returns the device blocks that the request needs to continue with these layers offloaded: its missing blocks,
    /// except that full columns with these layers in the host tier need only a staging slot.
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

    /// Whether a staging slot with this set takes no more blocks than it frees at once, even if the buffers' next
    /// fetches are already ordered: those keep as many blocks as there are buffers, and the buffers take as many. A
    /// request alone therefore always fits.
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

    /// Marks the table entries of every request that uses one of these columns for an update.
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

    /// Stages columns whose copies are complete, as long as there are blocks for the buffers; then evicts the blocks
    /// that every later step reads from a buffer.
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

    /// Returns, for each moving layer, the staging slots that its next ordered fetch covers; all slots if none is
    /// ordered.
    fn covered_by_all(&self) -> Vec<u32> {
        let stream = &self.layer_offload;
        let mut covered = vec![stream.staging_slots.len() as u32; stream.placement.layout.moving.len()];
        // Later fetches cover more.
        let window = stream.slots.window().map(|instance| instance.generation);
        for (covered, known) in covered.iter_mut().zip(stream.covered.walk(window)) {
            *covered = known.unwrap_or(*covered);
        }
        covered
    }

    /// Evicts blocks by groups of layers, and slot by slot within a group, because a column's blocks are mostly
    /// adjacent.
    fn evict_staged_blocks(&mut self) {
        let (covered, stream) = (self.covered_by_all(), &mut self.layer_offload);
        // Most layers share a range of slots; layers whose next fetch was ordered early have a shorter one.
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

    /// Suspends the request: columns that no running request uses lose their staging slots.
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

    /// Whether draining frames contain blocks of a buffer.
    pub fn drains_buffers(&self) -> bool {
        let frames = self.frames.draining();
        let mut blocks = self.layer_offload.buffers.iter().flatten();
        !frames.is_empty() && blocks.any(|block| frames.contains(&self.frames.frame_of(*block)))
    }

    /// Moves buffers out of draining frames. Their contents are fetched again. Returns whether all fitted.
    ///
    /// # Panics
    /// If a fetch is in progress.
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

    /// Returns the blocks of staged columns that are not on the device.
    pub fn offloaded_blocks(&self) -> u32 {
        self.columns.offloaded_layers()
    }

    /// Returns the number of used and of free staging slots.
    pub fn slot_counts(&self) -> (u32, u32) {
        (
            self.layer_offload.staging_slots.len() as u32 - self.layer_offload.free_slots,
            self.layer_offload.free_slots,
        )
    }

    /// Returns the number of full columns of a request.
    pub fn full_columns(&self, request: RequestId) -> u32 {
        self.sequences.get(&request).map_or(0, |sequence| sequence.full)
    }
}
