//! Copies whole KV blocks between the device and the host tier; each copy has a generation that is never reused.
//!
//! A KV block in transfer has one more reference, so that a release during the transfer does not free it.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use super::Kv;
use super::admissions::AdmissionEffects;
use super::blocks::HostLocation;
use crate::ids::{KvBlockId, LayerId, RequestId};
use crate::layer_set::LayerSet;
use crate::slots::Generations;

/// A KV block in transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Swap {
    /// The KV block.
    pub kv_block: KvBlockId,
    /// Its location in the host tier.
    pub host_location: HostLocation,
    /// The layers whose blocks are copied.
    pub layers: Vec<LayerId>,
}

impl Kv {
    /// Resumes a suspended request: all its KV must be on the device, in a new row.
    pub fn resume(&mut self, request: RequestId) {
        for id in self.requests.resume(request) {
            self.add_missing(id);
        }
    }

    /// Returns the number of KV blocks without a place in the host tier.
    fn unplaced_kv_blocks(&self) -> u32 {
        self.kv_blocks.live() - (self.host_pool.used() - self.layer_offload.pinned_host_places())
    }

    /// Evicts device blocks that also have a copy in the host tier.
    ///
    /// # Panics
    /// If buffers exist: blocks in use must stay.
    pub fn drop_host_copies(&mut self) {
        assert!(
            self.layer_offload.buffer_layer_blocks() == 0,
            "host copies are dropped while no buffer exists"
        );
        let ids: Vec<_> = self.kv_blocks.iter().map(|(id, _)| id).collect();
        for id in ids {
            let mut layer_blocks = Vec::new();
            self.kv_blocks.take_layers(id, self.kv_blocks.get(id).hosted_layers, &mut layer_blocks);
            self.chunk_pool.give(&layer_blocks);
        }
        self.missing_layer_blocks.recheck_all();
    }

    /// Evicts cache, least recently used first on either side, until all KV on the device fits the host tier. Returns
    /// the number of evicted KV blocks and, if that does not suffice, the number of KV blocks in excess.
    pub fn make_host_room(&mut self) -> (u32, u32) {
        let mut evicted = 0;
        while self.unplaced_kv_blocks() > self.host_pool.room() {
            let on_device = self.prefix_cache.oldest();
            // If only one side has a cached KV block, evict from that side.
            let host_first =
                on_device.is_none_or(|stamp| self.host_pool.oldest().is_some_and(|host| host < stamp));
            if !(if host_first { self.evict_from_host() } else { self.evict() }) {
                break;
            }
            evicted += 1;
        }
        (evicted, self.unplaced_kv_blocks().saturating_sub(self.host_pool.room()))
    }

    /// Evicts all cache, on the device and in the host tier. Returns the number of evicted KV blocks.
    pub fn evict_cache(&mut self) -> u32 {
        let mut count = 0;
        while self.evict() || self.evict_from_host() {
            count += 1;
        }
        count
    }

    /// Evicts like [`Kv::evict`], from the host tier.
    pub fn evict_from_host(&mut self) -> bool {
        self.evict_from_host_for(&AdmissionEffects::default())
    }

    /// Evicts like [`Kv::evict_from_host`], but no KV block that the admissions use.
    pub fn evict_from_host_for(&mut self, effects: &AdmissionEffects) -> bool {
        let Some(id) = self.host_pool.take_oldest(|id| effects.uses(id), &self.kv_blocks) else {
            return false;
        };
        self.evict_kv_block(id);
        true
    }

    /// Plans to copy up to `most` device KV blocks to the host tier: those in use first, then the others by release
    /// time. KV blocks being written back are skipped.
    ///
    /// # Panics
    /// If there is no place: call [`Kv::make_host_room`] first.
    pub fn plan_swap_out(&mut self, most: u32, generations: &mut Generations) -> Vec<Swap> {
        let here = |id: &KvBlockId| self.kv_blocks.has_layer_blocks(*id) && !self.transfers.is_writing(*id);
        let used = self.kv_blocks.iter().filter(|(_, kv_block)| kv_block.refs > 0).map(|(id, _)| id);
        let kv_blocks = used.chain(self.prefix_cache.idle()).filter(here);
        let kv_blocks: Vec<_> = kv_blocks.take(most as usize).collect();
        self.swap_out(kv_blocks, generations)
    }

    pub(super) fn swap_out(&mut self, kv_blocks: Vec<KvBlockId>, generations: &mut Generations) -> Vec<Swap> {
        let plan = |id: &KvBlockId| {
            self.add_reference(*id);
            let fresh =
                || HostLocation { place: self.host_pool.take(), generation: generations.next_generation() };
            let host_location = self.kv_blocks.get(*id).host_location.unwrap_or_else(fresh);
            Swap {
                kv_block: *id,
                host_location,
                layers: self.kv_blocks.get(*id).layers_not_on_host().iter().collect(),
            }
        };
        let swaps: Vec<_> = kv_blocks.iter().map(plan).collect();
        self.transfers.begin_moving(kv_blocks);
        swaps
    }

    /// Handles the end of the copies to the host.
    pub fn finish_swap_out(&mut self, swaps: &[Swap], done: bool) {
        self.transfers.end_moving();
        for swap in swaps {
            let had_place = self.kv_blocks.get(swap.kv_block).host_location.is_some();
            if done {
                self.chunk_pool.give(&self.kv_blocks.take_layer_blocks(swap.kv_block));
                self.missing_layer_blocks.recheck(swap.kv_block);
                self.kv_blocks.set_host_location(swap.kv_block, swap.host_location);
                self.history.word(swap.host_location.generation.0);
            } else if !had_place {
                self.host_pool.give(swap.host_location.place);
            }
            self.release_reference(swap.kv_block);
        }
    }

    /// Plans to load up to `most` missing KV blocks between two steps, those of the admissions too, and allocates their
    /// blocks.
    ///
    /// # Panics
    /// If there are fewer free blocks than they lack.
    pub fn plan_swap_in(&mut self, most: u32, effects: &mut AdmissionEffects) -> Vec<Swap> {
        let swaps = self.plan_in(most, effects);
        self.transfers.begin_moving(swaps.iter().map(|swap| swap.kv_block).collect());
        swaps
    }

    /// Plans like [`Kv::plan_swap_in`], but in parallel with steps in which the requests that need the KV blocks take
    /// no part.
    ///
    /// # Panics
    /// If there are fewer free blocks than they lack.
    pub fn plan_async_swap_in(&mut self, most: u32, effects: &mut AdmissionEffects) -> Vec<Swap> {
        let swaps = self.plan_in(most, effects);
        self.transfers.begin_loading(swaps.iter().map(|swap| swap.kv_block));
        swaps
    }

    /// Whether a running request would read KV that is still being loaded.
    pub fn exceeds_loads(&self) -> bool {
        self.transfers.has_loads() && self.requests.running().any(|request| self.of(request).is_loading())
    }

    fn plan_in(&mut self, most: u32, effects: &mut AdmissionEffects) -> Vec<Swap> {
        let wanted = self.take_missing(most, effects);
        let mut layer_blocks = Vec::new();
        let mut plan = |(id, layers): (KvBlockId, LayerSet)| {
            layer_blocks.clear();
            self.add_reference(id);
            self.chunk_pool.take(layers.len(), id, &mut layer_blocks);
            self.kv_blocks.add_layer_blocks(id, layers, &layer_blocks);
            let host_location =
                self.kv_blocks.get(id).host_location.expect("a wanted KV block lies in the host tier");
            Swap { kv_block: id, host_location, layers: layers.iter().collect() }
        };
        wanted.into_iter().map(&mut plan).collect()
    }

    /// Completes successful loads. A KV block that is complete again frees its host place.
    pub fn finish_swap_in(&mut self, swaps: &[Swap]) {
        swaps.iter().for_each(|swap| self.transfers.end_load(swap.kv_block));
        let arrived: BTreeSet<_> = swaps.iter().map(|swap| swap.kv_block).collect();
        for swap in swaps {
            let idle = self.kv_blocks.get(swap.kv_block).staging_slot().is_none()
                && self.kv_blocks.is_whole(swap.kv_block);
            if idle && !self.transfers.is_writing(swap.kv_block) {
                self.release_host_place(swap.kv_block);
            }
            self.history.word(!swap.host_location.generation.0);
        }
        self.requests.touch(&arrived);
        swaps.iter().for_each(|swap| self.release_reference(swap.kv_block));
    }

    /// Handles failed loads: the contents of the host tier are unknown, so these KV blocks and their successors are
    /// lost, and the requests that need them must be recomputed.
    pub fn on_swap_in_failed(&mut self, swaps: &[Swap]) {
        swaps.iter().for_each(|swap| self.transfers.end_load(swap.kv_block));
        let requests = self.invalidate(&swaps.iter().map(|swap| swap.kv_block).collect());
        swaps.iter().for_each(|swap| self.release_reference(swap.kv_block));
        self.lost_requests.add(requests);
    }

    /// Disables fetching under this placement after a fetch failed. The requests that need the staged KV blocks must be
    /// recomputed. Returns their number.
    pub fn abort_fetches(&mut self) -> u32 {
        let staged = self.layer_offload.disable_fetching();
        let lost = self.invalidate(&staged);
        let count = lost.len() as u32;
        self.lost_requests.add(lost);
        count
    }

    /// Removes KV blocks of unknown content, and their successors, from the prefix index. Returns the requests that use
    /// any of them.
    pub(super) fn invalidate(&mut self, lost: &BTreeSet<KvBlockId>) -> Vec<RequestId> {
        let (requests, spoilt) = self.requests.spoil(lost);
        for id in spoilt.iter().chain(lost).copied().collect::<BTreeSet<_>>() {
            let orphans = self.unpublish(id).map(|name| self.host_pool.take_children(name, &self.kv_blocks));
            orphans.into_iter().flatten().for_each(|orphan| self.evict_kv_block(orphan));
        }
        requests
    }
}
