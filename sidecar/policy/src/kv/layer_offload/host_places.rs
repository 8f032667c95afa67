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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{KvChunkId, RequestId};
    use crate::kv::admissions::AdmissionEffects;
    use crate::kv::layer_offload::Placement;
    use crate::step_model::Layout;

    /// KV of a paused request with one KV block, next to a prompt that goes to the host tier and still needs two of its
    /// `host_kv_blocks` places.
    fn kv(host_kv_blocks: u32) -> Kv {
        let mut kv = Kv::new(2, 4, 4, host_kv_blocks, true);
        (0..4).for_each(|chunk| kv.chunk_pool_mut().back(KvChunkId(chunk)));
        for request in [1, 2].map(RequestId) {
            let prefix = kv.cached_prefix(request.0, &[]);
            kv.open(request, &prefix);
        }
        kv.allocate(&[(RequestId(1), 1)], &mut Generations::default());
        kv.on_tokens_computed(RequestId(1), &[7; 16]);
        kv.suspend(RequestId(1));
        let layout = Layout { moving: [0, 1].map(LayerId).to_vec(), beta: 1 };
        kv.place(Placement::uniform(layout, core::iter::empty()));
        kv.start_prefill_spill(RequestId(2), 2);
        kv
    }

    #[test]
    fn paused_kv_takes_no_place_that_a_prompt_needs() {
        let written = |host_kv_blocks| {
            let none = AdmissionEffects::default();
            kv(host_kv_blocks).plan_write_back(8, (true, false), &none, &mut Generations::default()).len()
        };
        assert_eq!([2, 3].map(written), [0, 1]);
    }
}
