//! Copies whole columns between the device and the host tier; each copy has a generation that is never reused.
//!
//! A column in transfer has one more reference, so that a release during the transfer does not free it.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use super::Kv;
use super::columns::HostLocation;
use crate::action::BlockSwap;
use crate::ids::{BlockId, ChunkId, ColumnId, HostBlockId, LayerId, RequestId};
use crate::slots::Generations;

/// A column in transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Swap {
    /// The column.
    pub column: ColumnId,
    /// Its location in the host tier.
    pub host_location: HostLocation,
    /// The layers whose blocks are copied.
    pub layers: Vec<LayerId>,
}

impl Kv {
    /// Resumes a suspended request: all its KV must be on the device, in a new row.
    pub fn resume(&mut self, request: RequestId) {
        let Some(sequence) = self.sequences.get_mut(&request) else { return };
        (sequence.suspended, sequence.written) = (false, 0);
        for (at, id) in sequence.columns.clone().into_iter().enumerate() {
            self.dirty.insert((request, at as u32));
            self.add_missing(id);
        }
    }

    /// Returns the free places of the host tier.
    pub fn host_room(&self) -> u32 {
        self.host_pool.room()
    }

    /// Returns the used places of the host tier, without its cache.
    pub fn host_used(&self) -> u32 {
        self.host_pool.used() - self.host_pool.idle()
    }

    /// Returns the places of the host tier that are free or used only by its cache.
    pub fn host_places(&self) -> u32 {
        self.host_pool.room() + self.host_pool.idle()
    }

    /// Returns the request's columns with a place in the host tier.
    pub fn placed_columns(&self, request: RequestId) -> u32 {
        let columns = self.sequences.get(&request).into_iter().flat_map(|sequence| &sequence.columns);
        columns.filter(|id| self.columns.get(**id).host_location.is_some()).count() as u32
    }

    /// Returns the number of columns without a place in the host tier.
    fn unplaced_columns(&self) -> u32 {
        self.columns.live() - (self.host_pool.used() - self.layer_offload.pinned_host_places())
    }

    /// Whether any column has blocks on the device.
    pub fn has_device_only_blocks(&self) -> bool {
        self.columns.iter().any(|(id, _)| self.columns.has_blocks(id))
    }

    /// Evicts device blocks that also have a copy in the host tier.
    ///
    /// # Panics
    /// If buffers exist: blocks in use must stay.
    pub fn drop_host_copies(&mut self) {
        assert!(self.layer_offload.buffer_blocks() == 0, "what is in use stays");
        let ids: Vec<_> = self.columns.iter().map(|(id, _)| id).collect();
        for id in ids {
            let mut blocks = Vec::new();
            self.columns.take_layers(id, self.columns.get(id).hosted_layers, &mut blocks);
            self.frames.give(&blocks);
        }
        self.missing_blocks.recheck_all();
    }

    /// Whether the request holds blocks on the device.
    pub fn holds_blocks(&self, request: RequestId) -> bool {
        let columns = self.sequences.get(&request).map(|sequence| &sequence.columns);
        columns.is_some_and(|columns| columns.iter().any(|id| self.columns.has_blocks(*id)))
    }

    /// Evicts cache, least recently used first on either side, until all KV on the device fits the host tier. Returns
    /// the number of evicted columns and, if that does not suffice, the number of columns in excess.
    pub fn make_host_room(&mut self) -> (u32, u32) {
        let mut evicted = 0;
        while self.unplaced_columns() > self.host_pool.room() {
            let on_device = self.idle.first_key_value().map(|(stamp, _)| *stamp);
            // If only one side has a cached column, evict from that side.
            let host_first =
                on_device.is_none_or(|stamp| self.host_pool.oldest().is_some_and(|host| host < stamp));
            if !(if host_first { self.evict_from_host() } else { self.evict() }) {
                break;
            }
            evicted += 1;
        }
        (evicted, self.unplaced_columns().saturating_sub(self.host_pool.room()))
    }

    /// Evicts all cache, on the device and in the host tier. Returns the number of evicted columns.
    pub fn evict_cache(&mut self) -> u32 {
        let mut count = 0;
        while self.evict() || self.evict_from_host() {
            count += 1;
        }
        count
    }

    /// Evicts like [`Kv::evict`], from the host tier.
    pub fn evict_from_host(&mut self) -> bool {
        let Some(id) = self.host_pool.take_oldest(&self.columns) else { return false };
        self.evict_column(id);
        true
    }

    /// Plans to copy up to `most` device columns to the host tier: those in use first, then the others by release time.
    /// Columns being written back are skipped.
    ///
    /// # Panics
    /// If there is no place: call [`Kv::make_host_room`] first.
    pub fn plan_swap_out(&mut self, most: u32, generations: &mut Generations) -> Vec<Swap> {
        let here = |id: &ColumnId| self.columns.has_blocks(*id) && !self.layer_offload.writing.contains(id);
        let used = self.columns.iter().filter(|(_, column)| column.refs > 0).map(|(id, _)| id);
        let columns = used.chain(self.idle.values().copied()).filter(here);
        let columns: Vec<_> = columns.take(most as usize).collect();
        self.swap_out(columns, generations)
    }

    pub(super) fn swap_out(&mut self, columns: Vec<ColumnId>, generations: &mut Generations) -> Vec<Swap> {
        let plan = |id: &ColumnId| {
            self.add_reference(*id);
            let fresh =
                || HostLocation { place: self.host_pool.take(), generation: generations.next_generation() };
            let stowed = self.columns.get(*id).host_location.unwrap_or_else(fresh);
            Swap {
                column: *id,
                host_location: stowed,
                layers: self.columns.get(*id).layers_not_on_host().iter().collect(),
            }
        };
        let swaps: Vec<_> = columns.iter().map(plan).collect();
        self.moving_columns = columns;
        swaps
    }

    /// Handles the end of the copies to the host.
    pub fn finish_swap_out(&mut self, swaps: &[Swap], done: bool) {
        self.moving_columns.clear();
        for swap in swaps {
            let had_place = self.columns.get(swap.column).host_location.is_some();
            if done {
                self.frames.give(&self.columns.take_blocks(swap.column));
                self.missing_blocks.recheck(swap.column);
                self.columns.set_host_location(swap.column, swap.host_location);
                self.history.word(swap.host_location.generation.0);
            } else if !had_place {
                self.host_pool.give(swap.host_location.place);
            }
            self.release_reference(swap.column);
        }
    }

    /// Plans to load up to `most` missing columns between two steps, and allocates their blocks.
    ///
    /// # Panics
    /// If there are fewer free blocks than [`Kv::missing_block_count`].
    pub fn plan_swap_in(&mut self, most: u32) -> Vec<Swap> {
        let swaps = self.plan_in(most);
        self.moving_columns = swaps.iter().map(|swap| swap.column).collect();
        swaps
    }

    /// Plans like [`Kv::plan_swap_in`], but in parallel with steps in which the requests that need the columns take no
    /// part.
    ///
    /// # Panics
    /// If there are fewer free blocks than [`Kv::missing_block_count`].
    pub fn plan_async_swap_in(&mut self, most: u32) -> Vec<Swap> {
        let swaps = self.plan_in(most);
        self.loading_swaps.extend(swaps.iter().map(|swap| swap.column));
        swaps
    }

    /// Whether, of the running requests, only these lack KV on the device.
    pub fn missing_only_for(&self, requests: &[RequestId]) -> bool {
        let others = self.sequences.iter().filter(|(id, one)| !one.suspended && !requests.contains(id));
        let mut columns = others.flat_map(|(_, sequence)| &sequence.columns);
        !columns.any(|id| self.missing_blocks.contains(*id))
    }

    /// Whether columns are being loaded in parallel with steps.
    pub fn has_loading_swaps(&self) -> bool {
        !self.loading_swaps.is_empty()
    }

    /// Whether some of the request's KV is being loaded in parallel with steps.
    pub fn is_loading(&self, request: RequestId) -> bool {
        let columns =
            self.sequences.get(&request).filter(|_| self.has_loading_swaps()).map(|one| &one.columns);
        columns.is_some_and(|columns| columns.iter().any(|id| self.loading_swaps.contains(id)))
    }

    /// Whether a running request would read KV that is still being loaded.
    pub fn exceeds_loads(&self) -> bool {
        self.has_loading_swaps() && self.running_requests().any(|request| self.is_loading(request))
    }

    fn plan_in(&mut self, most: u32) -> Vec<Swap> {
        let wanted = self.take_missing(most);
        let mut blocks = Vec::new();
        let mut plan = |id: ColumnId| {
            blocks.clear();
            let layers = self.missing(id);
            self.frames.take(layers.len(), id, &mut blocks);
            self.columns.add_blocks(id, layers, &blocks);
            self.add_reference(id);
            let stowed = self.columns.get(id).host_location.expect("a wanted column lies in the host tier");
            Swap { column: id, host_location: stowed, layers: layers.iter().collect() }
        };
        wanted.into_iter().map(&mut plan).collect()
    }

    /// Removes the columns from those in transfer.
    fn arrive(&mut self, swaps: &[Swap]) {
        for swap in swaps {
            if !self.loading_swaps.remove(&swap.column) {
                self.moving_columns.retain(|id| *id != swap.column);
            }
        }
    }

    /// Completes successful loads. A column that is complete again frees its host place.
    pub fn finish_swap_in(&mut self, swaps: &[Swap]) {
        self.arrive(swaps);
        let arrived: BTreeSet<_> = swaps.iter().map(|swap| swap.column).collect();
        for swap in swaps {
            let idle =
                self.columns.get(swap.column).staging_slot().is_none() && self.columns.is_whole(swap.column);
            if idle && !self.layer_offload.writing.contains(&swap.column) {
                self.release_host_place(swap.column);
            }
            self.history.word(!swap.host_location.generation.0);
        }
        self.touch(&arrived);
        swaps.iter().for_each(|swap| self.release_reference(swap.column));
    }

    /// Handles failed loads: the contents of the host tier are unknown, so these columns and their successors are lost.
    /// Returns the requests that need them, which must be recomputed.
    pub fn on_swap_in_failed(&mut self, swaps: &[Swap]) -> Vec<RequestId> {
        self.arrive(swaps);
        let requests = self.invalidate(&swaps.iter().map(|swap| swap.column).collect());
        swaps.iter().for_each(|swap| self.release_reference(swap.column));
        requests
    }

    /// Disables fetching under this placement after a fetch failed. Returns the requests that need the staged columns,
    /// which must be recomputed.
    pub fn abort_fetches(&mut self) -> Vec<RequestId> {
        let seated = self.layer_offload.disable_fetching();
        self.invalidate(&seated)
    }

    /// Removes columns of unknown content, and their successors, from the prefix index. Returns the requests that use
    /// any of them.
    pub(super) fn invalidate(&mut self, lost: &BTreeSet<ColumnId>) -> Vec<RequestId> {
        let mut requests = Vec::new();
        let mut spoilt = BTreeSet::new();
        for (request, sequence) in &mut self.sequences {
            if let Some(first) = sequence.columns.iter().position(|id| lost.contains(id)) {
                requests.push(*request);
                spoilt.extend(sequence.columns[first..].iter().copied());
                sequence.chain = None;
            }
        }
        for id in spoilt.iter().chain(lost).copied().collect::<BTreeSet<_>>() {
            let orphans = self.unpublish(id).map(|name| self.host_pool.take_children(name, &self.columns));
            orphans.into_iter().flatten().for_each(|orphan| self.evict_column(orphan));
        }
        requests
    }

    /// Returns a column's blocks of these layers in the backend's form.
    pub fn block_swaps(
        &self,
        (column, stowed): (ColumnId, HostLocation),
        layers: &[LayerId],
        chunk: impl Fn(BlockId) -> ChunkId,
    ) -> impl Iterator<Item = BlockSwap> {
        let swap = move |layer: &LayerId| {
            let block = self.columns.block(column, *layer).expect("what is copied is on the device");
            let host = HostBlockId(stowed.place * self.layers + u32::from(layer.0));
            BlockSwap { block, chunk: chunk(block), host, generation: stowed.generation }
        };
        layers.iter().map(swap)
    }
}
