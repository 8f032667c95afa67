//! What a scheduler asks at a boundary: whether a step may begin, and what it waits for.

use crate::chunks::Chunks;
use crate::ids::ActionId;
use crate::kv::Kv;
use crate::memory_manager::{Failed, SleepState};
use crate::orders::Orders;
use crate::sleep::Sleep;
use crate::weights::Weights;

/// The state of a tenant's memory.
#[derive(Clone, Copy, Debug)]
pub struct StatusView<'a> {
    pub(in crate::memory_manager) orders: &'a Orders,
    pub(in crate::memory_manager) kv: &'a Kv,
    pub(in crate::memory_manager) chunks: &'a Chunks,
    pub(in crate::memory_manager) weights: &'a Weights,
    pub(in crate::memory_manager) sleep: &'a Sleep,
    pub(in crate::memory_manager) loaded: bool,
    pub(in crate::memory_manager) failure: Option<Failed>,
}

impl StatusView<'_> {
    /// Every layer was loaded once: resident layers, and the first layer of each slot.
    pub fn is_loaded(&self) -> bool {
        self.loaded && self.failure.is_none()
    }

    /// An action is pending that no step may run with: any but copies of weights and KV.
    pub fn is_blocked(&self) -> bool {
        self.orders.pending().blocking()
    }

    /// The writes of a step are still on their way to the host tier: no step begins.
    pub fn is_spilling(&self) -> bool {
        self.kv.layer_offload().has_pending_spills()
    }

    /// No step can run: lent layers are not restored, or the tenant sleeps, or its embeddings and head are not loaded.
    pub fn lacks_weights(&self) -> bool {
        self.loaded
            && (self.sleep.state() != SleepState::Awake
                || self.absent_layers() > 0
                || !self.weights.is_global_loaded())
    }

    /// Layers without memory: lent, and not restored yet.
    pub fn absent_layers(&self) -> u16 {
        self.chunks.absent_layers()
    }

    /// Every layer has memory, and its contents are complete.
    pub fn is_whole(&self) -> bool {
        self.is_loaded() && self.absent_layers() == 0 && self.weights.is_settled()
    }

    /// Every layer has memory and some weights are loading: a step that begins now waits for them.
    pub fn weights_loading(&self) -> bool {
        self.is_loaded() && !self.weights.is_settled() && !self.lacks_weights()
    }

    /// The step under way, or the last one, began while weights were loading: its waits are no stalls, and its times
    /// are no samples.
    pub fn step_waited_for_weights(&self) -> bool {
        self.orders.step().waited_for_weights()
    }

    /// Whether the tenant holds memory.
    pub fn sleep_state(&self) -> SleepState {
        self.sleep.state()
    }

    /// Why the tenant cannot be served, when the backend has failed for good.
    pub fn failed(&self) -> Option<Failed> {
        self.failure
    }

    /// Running requests lack KV that the next step loads, as after a change of placement.
    pub fn lacks_kv(&self) -> bool {
        self.kv.missing_layer_block_count() > 0
    }

    /// Counts changes of the prefix cache: while it stays, the prefixes that were found are valid.
    pub fn cache_epoch(&self) -> u64 {
        self.kv.prefix_cache().epoch()
    }

    /// The action was ordered and has not ended: only its completion may be passed on.
    pub fn awaits(&self, action: ActionId) -> bool {
        self.orders.pending().contains(action)
    }
}
