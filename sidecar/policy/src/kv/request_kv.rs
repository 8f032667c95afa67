//! The KV of one request, for reading.

use super::Kv;
use crate::ids::{KvBlockId, LayerId, RequestId};
use crate::layer_set::LayerSet;

/// The KV of one request. A request that is not open holds none.
#[derive(Clone, Copy, Debug)]
pub struct RequestKv<'a> {
    kv: &'a Kv,
    request: RequestId,
}

impl Kv {
    /// Returns the KV of one request.
    pub fn of(&self, request: RequestId) -> RequestKv<'_> {
        RequestKv { kv: self, request }
    }
}

impl<'a> RequestKv<'a> {
    fn held(&self) -> impl Iterator<Item = KvBlockId> + use<'a> {
        self.kv.requests.kv_blocks(self.request).iter().copied()
    }

    /// KV blocks that the request holds.
    pub fn kv_blocks(&self) -> u32 {
        self.kv.requests.kv_blocks(self.request).len() as u32
    }

    /// Full KV blocks that the request holds.
    pub(crate) fn full_kv_blocks(&self) -> u32 {
        self.kv.requests.full(self.request)
    }

    /// KV of this request is loading during steps: it may be admitted again when it is there.
    pub fn is_loading(&self) -> bool {
        let transfers = &self.kv.transfers;
        transfers.has_loads() && self.held().any(|id| transfers.is_loading(id))
    }

    /// The request holds KV on the device.
    pub fn on_device(&self) -> bool {
        self.held().any(|id| self.kv.kv_blocks.has_layer_blocks(id))
    }

    /// All later KV blocks of the request go to the host tier.
    pub fn is_prefill_offloaded(&self) -> bool {
        self.kv.layer_offload.is_spilling_prefill(self.request)
    }

    /// The KV of this request was lost, and the scheduler has not been notified yet.
    pub fn is_kv_lost(&self) -> bool {
        self.kv.lost_requests.contains(self.request)
    }

    /// KV blocks that only this request uses.
    fn exclusive(&self) -> impl Iterator<Item = KvBlockId> + use<'a> {
        let kv_blocks = &self.kv.kv_blocks;
        self.held().filter(|id| kv_blocks.get(*id).refs == 1)
    }

    /// KV blocks that would leave the device if this request were paused.
    pub fn exclusive_kv_blocks(&self) -> u32 {
        self.exclusive().count() as u32
    }

    /// Their layer blocks on the device.
    pub(crate) fn exclusive_layer_blocks(&self) -> u32 {
        self.exclusive().map(|id| self.kv.layers - self.kv.kv_blocks.absent(id)).sum()
    }

    /// Their layer blocks that the host tier lacks.
    pub(crate) fn exclusive_unwritten_layer_blocks(&self) -> u32 {
        self.exclusive().map(|id| self.kv.kv_blocks.get(id).layers_not_on_host().len()).sum()
    }

    /// KV blocks with a place in the host tier.
    pub(crate) fn placed_kv_blocks(&self) -> u32 {
        self.held().filter(|id| self.kv.kv_blocks.get(*id).host_location.is_some()).count() as u32
    }

    /// Layer blocks that the request lacks on the device.
    pub(crate) fn absent_layer_blocks(&self) -> u32 {
        self.held().map(|id| self.kv.kv_blocks.absent(id)).sum()
    }

    /// Layer blocks that a new KV block of this request takes on the device.
    pub(crate) fn kv_block_layer_blocks(&self) -> u32 {
        if self.is_prefill_offloaded() {
            u32::from(self.kv.layer_offload.placement().layout.beta)
        } else {
            self.kv.layers
        }
    }

    /// KV blocks that are neither complete on the device nor staged, each with its index.
    pub(in crate::kv) fn unstaged(&self) -> impl Iterator<Item = (usize, KvBlockId)> + use<'a> {
        let kv_blocks = &self.kv.kv_blocks;
        let unstaged = |id: KvBlockId| !kv_blocks.is_whole(id) && kv_blocks.get(id).staging_slot().is_none();
        self.held().enumerate().filter(move |(_, id)| unstaged(*id))
    }

    /// Layer blocks on the device that the request needs to continue with these layers offloaded: its missing blocks,
    /// except that full KV blocks with these layers in the host tier need only a staging slot.
    pub(crate) fn layer_blocks_to_join(&self, set: &[LayerId]) -> u32 {
        let (full, set): (_, LayerSet) = (self.full_kv_blocks(), set.iter().copied().collect());
        let cost = |(at, id): (usize, KvBlockId)| {
            let offloaded = if (at as u32) < full { set } else { LayerSet::NONE };
            let (missing, staged) = self.kv.needs_of(id, offloaded);
            missing.len() + staged
        };
        self.unstaged().map(cost).sum()
    }
}
