//! Offloads KV while its requests run: carries out the placement that [`super::kv_placement`] decides.

use alloc::vec::Vec;

use super::{MemoryManager, Prepared};
use crate::action::{Action, Work};
use crate::event::{Failure, Outcome};
use crate::ids::{Generation, Nanos, RequestId};
use crate::kv::Swap;
use crate::kv::admissions::AdmissionEffects;
use crate::kv::layer_offload::Placement;
use crate::orders::pending::Pending;
use crate::reason::Reason;

impl MemoryManager {
    /// Takes the placement one boundary further.
    pub(super) fn place_kv(&mut self, out: &mut Vec<Action>) {
        if self.kv.is_fetching_disabled() {
            if self.kv.fetches() == 0 {
                self.kv.place(Placement::default());
            }
            return;
        }
        self.choose_placement();
        self.take_placement();
        if !self.kv.placement().layout.moving.is_empty() {
            let (staged, holes) = self.kv.slot_counts();
            if staged == 0 && holes > 0 {
                self.compact_staging();
            }
            self.kv.evict_staged();
        }
        self.write_back(None, &AdmissionEffects::default(), out);
    }

    /// Puts the due placement in force, if no copy into a buffer is under way.
    fn take_placement(&mut self) {
        if self.kv.fetches() > 0 {
            return;
        }
        if let Some(placement) = self.offload.due.take() {
            self.orders.count(Reason::Place);
            self.kv.place(placement);
        }
    }

    /// Nothing is offloaded any more: KV that the device lacks is loaded, or stays in the host tier as a whole.
    pub(super) fn restore_all(&mut self) {
        self.offload.forget_plan();
        if !self.kv.placement().layout.moving.is_empty() {
            self.kv.place(Placement::default());
        }
        self.kv.drop_host_copies();
    }

    /// No copy is under way, and every buffer is in use.
    pub(super) fn is_offload_idle(&self) -> bool {
        self.kv.open_requests() > 0
            || (self.kv.buffer_layer_blocks() == 0 && self.kv.fetches() == 0 && !self.kv.is_writing_back())
    }

    /// Compacts the staging slots: buffers keep blocks for slots without a request, and freeing them costs the early
    /// fetches. Not during a fetch.
    pub(super) fn compact_staging(&mut self) -> bool {
        let idle = self.kv.fetches() == 0;
        if idle {
            let placement = self.kv.placement().clone();
            self.kv.place(placement);
        }
        idle
    }

    /// Moves buffers out of draining chunks. `None` = they are out; else whether the change can continue.
    pub(super) fn free_buffers(&mut self) -> Option<bool> {
        if !self.kv.drains_buffers() {
            return None;
        }
        if self.kv.fetches() > 0 {
            return Some(false);
        }
        while !self.kv.move_buffers() {
            if !self.kv.evict() {
                return Some(false);
            }
            self.orders.count(Reason::PrefixEvicted);
        }
        None
    }

    /// Writes the next piece back to the host tier, by `due` if a step waits for its blocks.
    fn write_back(&mut self, due: Option<Nanos>, effects: &AdmissionEffects, out: &mut Vec<Action>) {
        if self.kv.is_writing_back() || !self.write_back_is_healthy() {
            return;
        }
        let piece = self.offload.write_back.piece(self.geometry.layer_block_bytes);
        let which = (self.offload.longest_pause_ns().is_some(), self.offload.prompts_in_force().is_none());
        let mut written = self.kv.plan_write_back(piece, which, effects, &mut self.generations);
        if self.offload.write_back.take_probe() && written.is_empty() {
            written.extend(self.kv.plan_probe(piece, &mut self.generations));
        }
        if written.is_empty() {
            return;
        }
        let layer_blocks = self.swapped_layer_blocks(&written);
        self.orders.order_by(
            due,
            Work::WriteBack(layer_blocks),
            Reason::WriteBack,
            Pending::WriteBack(written),
            out,
        );
    }

    /// No write-back failed a moment ago.
    pub(super) fn write_back_is_healthy(&self) -> bool {
        self.offload.write_back.is_healthy(self.orders.boundaries())
    }

    /// Evicts KV of paused requests: blocks that the host tier has at once, others when they are written back. `None` =
    /// there is none, or it would take too long. `Ready` = blocks are free now.
    pub(super) fn evict_paused(
        &mut self,
        missing: u32,
        effects: &AdmissionEffects,
        out: &mut Vec<Action>,
    ) -> Option<Prepared> {
        // A request that is admitted while none runs waits for its loading KV. Else that KV would be evicted for it and
        // loaded again, and so on without a step.
        if self.kv.has_loading_swaps() && !self.had_running {
            return Some(Prepared::Wait);
        }
        if self.kv.evict_paused(missing, effects) > 0 {
            return Some(Prepared::Ready);
        }
        if !self.offload.write_back.is_fast_enough(missing) {
            return None;
        }
        self.write_back(Some(self.orders.now()), effects, out);
        if !self.kv.is_writing_back() {
            self.offload.write_back.layer_block_ns()?;
            let room = self.kv.host_room().saturating_sub(self.kv.kv_blocks_to_spill());
            let max = missing.div_ceil(self.kv.layers()).min(self.swap_piece()).min(room);
            let swaps = self.kv.plan_paused_out(max, effects, &mut self.generations);
            if swaps.is_empty() {
                return None;
            }
            self.order_swaps_out(swaps, out);
        }
        Some(Prepared::Wait)
    }

    /// Evicts KV of paused requests for a change that must happen, if the policy does so. Returns the evicted
    /// blocks, 0 while they are being written back. `None` = there is none, or it would take too long.
    pub(super) fn evict_paused_for(&mut self, reason: Reason, out: &mut Vec<Action>) -> Option<u32> {
        let missing = self.kv.overfull_layer_blocks();
        if !(reason.must_happen()
            && self.offload_view().can_evict_paused()
            && self.offload.write_back.is_fast_enough(missing))
        {
            return None;
        }
        let effects = AdmissionEffects::default();
        let shed = self.kv.evict_paused(missing, &effects);
        if shed > 0 {
            return Some(shed);
        }
        self.write_back(Some(self.orders.now()), &effects, out);
        self.kv.is_writing_back().then_some(0)
    }

    pub(super) fn on_written_back(&mut self, written: &[Swap], outcome: Outcome) {
        let done = matches!(outcome, Outcome::Done { .. });
        self.kv.finish_write_back(written, done);
        if let Outcome::Done { duration_ns, .. } = outcome {
            let layer_blocks = written.iter().map(|one| one.layers.len() as u64).sum::<u64>();
            self.offload.write_back.on_written(layer_blocks, duration_ns);
        } else {
            self.orders.count(Reason::BackendFailed);
            self.offload.write_back.on_failed(self.orders.boundaries());
        }
    }

    /// Handles the end of a spill.
    pub(super) fn on_spilled(&mut self, name: Generation, outcome: Outcome) {
        let repeated = self.orders.step.holds_lease();
        let end = match outcome {
            Outcome::Done { bytes, duration_ns } => {
                let layer_blocks = bytes / self.geometry.layer_block_bytes.max(1);
                self.offload.write_back.on_written(layer_blocks, duration_ns);
                Ok(())
            }
            Outcome::Failed(failure) => Err(failure == Failure::Dropped),
        };
        let lost = self.kv.spilled(name, end, repeated);
        if end.is_err_and(|dropped| !dropped) {
            self.orders.count(Reason::BackendFailed);
            // Once for all layers of a step.
            if self.write_back_is_healthy() {
                self.offload.write_back.on_failed(self.orders.boundaries());
            }
        }
        self.drop_kv(lost);
    }

    /// Records that the KV of these requests is lost, once for each however many copies failed.
    pub(super) fn drop_kv(&mut self, requests: Vec<RequestId>) {
        for request in requests {
            if !self.lost_requests.contains(&request) {
                self.orders.count(Reason::SwapLost);
                self.lost_requests.push(request);
            }
        }
    }
}
