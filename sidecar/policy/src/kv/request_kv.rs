//! The KV of one request, for reading.

use super::Kv;
use crate::ids::RequestId;

/// The KV of one request. A request that is not open holds none.
#[derive(Clone, Copy, Debug)]
pub struct RequestKv<'a> {
    kv: &'a Kv,
    request: RequestId,
}

impl<'a> RequestKv<'a> {
    /// The KV of this request.
    pub(crate) fn new(kv: &'a Kv, request: RequestId) -> RequestKv<'a> {
        RequestKv { kv, request }
    }

    /// KV blocks that the request holds.
    pub fn kv_blocks(&self) -> u32 {
        self.kv.kv_blocks(self.request)
    }

    /// KV of this request is loading during steps: it may be admitted again when it is there.
    pub fn is_loading(&self) -> bool {
        self.kv.is_loading(self.request)
    }

    /// The request holds KV on the device.
    pub fn on_device(&self) -> bool {
        self.kv.holds_layer_blocks(self.request)
    }

    /// All later KV blocks of the request go to the host tier.
    pub fn is_prefill_offloaded(&self) -> bool {
        self.kv.is_spilling_prefill(self.request)
    }

    /// KV blocks that would leave the device if this request were paused.
    pub fn exclusive_kv_blocks(&self) -> u32 {
        self.kv.exclusive_kv_blocks(self.request)
    }

    /// The KV of this request was lost, and the scheduler has not been notified yet.
    pub fn is_kv_lost(&self) -> bool {
        self.kv.is_lost(self.request)
    }
}
