//! What a scheduler asks at a boundary: whether a step may begin, and what it waits for.

use crate::ids::ActionId;
use crate::memory_manager::{Failed, MemoryManager, SleepState};
use crate::planner::request::PlanAnswer;

/// The state of a tenant's memory.
#[derive(Clone, Copy, Debug)]
pub struct StatusView<'a> {
    pub(in crate::memory_manager) manager: &'a MemoryManager,
}

impl StatusView<'_> {
    /// Every layer was loaded once: resident layers, and the first layer of each slot.
    pub fn is_loaded(&self) -> bool {
        self.manager.loaded && self.manager.failure.is_none()
    }

    /// An action is pending that no step may run with: any but copies of weights and KV.
    pub fn is_blocked(&self) -> bool {
        self.manager.orders.pending.blocking()
    }

    /// Without new requests the coming boundaries change nothing: everything borrowed has been returned.
    pub fn is_idle(&self) -> bool {
        self.manager.is_steady()
    }

    /// The writes of a step are still on their way to the host tier: no step begins.
    pub fn is_spilling(&self) -> bool {
        self.manager.kv.layer_offload().has_pending_spills()
    }

    /// No step can run: lent layers are not restored, or the tenant sleeps, or its embeddings and head are not loaded.
    pub fn lacks_weights(&self) -> bool {
        self.manager.loaded
            && (self.manager.sleep.state() != SleepState::Awake
                || self.absent_layers() > 0
                || !self.manager.weights.is_global_loaded())
    }

    /// Layers without memory: lent, and not restored yet.
    pub fn absent_layers(&self) -> u16 {
        self.manager.chunks.absent_layers()
    }

    /// Every layer has memory, and its contents are complete.
    pub fn is_whole(&self) -> bool {
        self.is_loaded() && self.absent_layers() == 0 && self.manager.weights.is_settled()
    }

    /// Lent layers are being restored: their memory is here.
    pub fn can_restore(&self) -> bool {
        self.manager.loans().wants_layers() && !self.manager.loans.awaits_loans()
    }

    /// Whether the tenant holds memory.
    pub fn sleep_state(&self) -> SleepState {
        self.manager.sleep.state()
    }

    /// A change that must happen, such as a return, found too few chunks to free at a boundary: the scheduler pauses or
    /// preempts a request and calls the boundary again.
    pub fn debt_lacks_room(&self) -> bool {
        self.manager.loans.lacks_room()
    }

    /// Why the tenant cannot be served, when the backend has failed for good.
    pub fn failed(&self) -> Option<Failed> {
        self.manager.failure
    }

    /// Running requests lack KV that the next step loads, as after a change of placement.
    pub fn lacks_kv(&self) -> bool {
        self.manager.kv.missing_layer_block_count() > 0
    }

    /// Counts changes of the prefix cache: while it stays, the prefixes that were found are valid.
    pub fn cache_epoch(&self) -> u64 {
        self.manager.kv.prefix_cache().epoch()
    }

    /// The action was ordered and has not ended: only its completion may be passed on.
    pub fn awaits(&self, action: ActionId) -> bool {
        self.manager.orders.pending.contains(action)
    }

    /// Whether this answers the requested plan.
    pub fn expects_plan(&self, answer: &PlanAnswer) -> bool {
        self.manager.offload.expects_plan(answer)
    }
}
