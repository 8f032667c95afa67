//! Places in the host tier for blocks that are written there.

use alloc::vec::Vec;

use crate::ids::{KvBlockId, LayerId};
use crate::kv::blocks::HostLocation;
use crate::kv::{Kv, Swap};
use crate::slots::Generations;

impl Kv {
    pub(super) fn begin_write(
        &mut self,
        kv_block: KvBlockId,
        host_location: HostLocation,
        layers: Vec<LayerId>,
    ) -> Swap {
        self.add_reference(kv_block);
        self.transfers.begin_writing(kv_block);
        Swap { kv_block, host_location, layers }
    }

    /// Reserves like [`Kv::reserve_host_place`], but leaves the places that offloaded prefills need.
    pub(super) fn reserve_spare_host_place(
        &mut self,
        kv_block: KvBlockId,
        generations: &mut Generations,
    ) -> Option<HostLocation> {
        let promised = self.kv_blocks.get(kv_block).host_location.is_none()
            && self.host_pool.available() <= self.layer_offload.kv_blocks_to_spill(&self.requests);
        if promised { None } else { self.reserve_host_place(kv_block, generations) }
    }

    /// Returns the KV block's host place; takes a new one if necessary, and evicts host cache for it.
    pub(super) fn reserve_host_place(
        &mut self,
        kv_block: KvBlockId,
        generations: &mut Generations,
    ) -> Option<HostLocation> {
        let host_location = self.kv_blocks.get(kv_block).host_location;
        // A place that a fetch may still read is not free at once.
        if host_location.is_none()
            && self.host_pool.room() == 0
            && !(self.evict_from_host() && self.host_pool.room() > 0)
        {
            return None;
        }
        let fresh =
            || HostLocation { place: self.host_pool.take(), generation: generations.next_generation() };
        let host_location = host_location.unwrap_or_else(fresh);
        self.kv_blocks.get_mut(kv_block).host_location = Some(host_location);
        Some(host_location)
    }
}
