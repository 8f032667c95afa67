//! Computes prompts whose KV does not fit on the device (eLLM 4.4.2):
//! [`sluice_policy::memory_manager::AdmittedKv::New`].

use sluice_policy::geometry::{BLOCK_TOKENS, Geometry};
use sluice_policy::memory_manager::{PlannedAdmissions, PrefillOffload};

use super::Planner;
use super::admissions::Admissions;
use crate::sequence::Sequence;
use crate::step_plan::StepPlan;

impl Planner<'_> {
    /// Returns whether the prompt of a planned admission may be offloaded because it does not fit.
    pub(super) fn offload_of_admitted(&self, plan: &StepPlan, at: usize) -> PrefillOffload {
        let one = &plan.admit[at];
        let (Some(prefix), Some(sequence)) = (&one.prefix, self.requests.queue.get(one.id)) else {
            return PrefillOffload::NotNow;
        };
        let fresh = !one.prefill_offloaded && sequence.len() - prefix.tokens() > 1;
        if fresh { self.prefill_offload(one.prompt_kv_blocks, &plan.planned) } else { PrefillOffload::NotNow }
    }

    /// Whether a plan admits the request with offloaded KV although its prompt does not fit on the device.
    pub(super) fn starts_offloaded(&self, sequence: &Sequence, planned: &PlannedAdmissions) -> bool {
        let prompt =
            !sequence.kv_suspended && sequence.pending() > 1 && self.config.max_step_tokens >= BLOCK_TOKENS;
        prompt && self.manager.after(planned).admits_by_prefill_offload(&self.waiter(sequence, 0))
    }

    /// Returns whether a prompt of this size may be offloaded after the planned admissions.
    fn prefill_offload(&self, kv_blocks: u32, planned: &PlannedAdmissions) -> PrefillOffload {
        if self.config.max_step_tokens < BLOCK_TOKENS {
            return PrefillOffload::NotNow;
        }
        self.manager.after(planned).prefill_offload(kv_blocks, kv_blocks.min(self.step_kv_blocks()))
    }

    fn step_kv_blocks(&self) -> u32 {
        Geometry::kv_blocks_for(self.config.max_step_tokens)
    }

    /// Whether a waiting request leaves the reserved buffer to offloaded prefills.
    pub(super) fn leaves_prefill_buffer(&self, front: &Sequence, admissions: &Admissions) -> bool {
        let step = self.step_kv_blocks();
        let leaves_buffer = || {
            let memory = self.manager.after(&admissions.planned);
            let layer_blocks = memory.layer_blocks_needed(&self.waiter(front, 0));
            let tokens = admissions.pending_tokens.saturating_add(front.pending());
            memory.leaves_prefill_buffer(layer_blocks, tokens, step)
        };
        !self.manager.offload_view().reserves_prefill_buffer(step) || leaves_buffer()
    }

    /// Plans requests with offloaded prefills while the first waiting request waits, or waits for capacity after its
    /// own offloaded prefill: they need almost no device memory.
    pub(super) fn plan_offloaded_prefills(&self, admissions: &mut Admissions) {
        while self.manager.offload_view().offloads_prefills()
            && admissions.budget > 0
            && self.requests.running.free_rows() > admissions.list.len()
        {
            let is_planned = |id| admissions.list.iter().any(|one| one.id == id);
            let mut new = self.requests.queue.iter().filter(|one| !one.kv_suspended && !is_planned(one.id()));
            let Some(new) = new.next() else { return };
            if new.len() <= 1 {
                return;
            }
            let offload = self.prefill_offload(Geometry::kv_blocks_for(new.len()), &admissions.planned);
            admissions.notes.memory.probes_link |= offload == PrefillOffload::LinkTooSlow;
            if offload != PrefillOffload::Fits {
                return;
            }
            self.plan_admission(new, 0, true, admissions);
        }
    }
}
