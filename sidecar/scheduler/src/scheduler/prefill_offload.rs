//! Computes prompts whose KV does not fit on the device (eLLM 4.4.2):
//! [`sluice_policy::memory_manager::AdmittedKv::New`].

use sluice_policy::ellm::Violations;
use sluice_policy::geometry::{BLOCK_TOKENS, Geometry};
use sluice_policy::ids::Nanos;
use sluice_policy::memory_manager::{MemoryNotes, PlannedAdmissions, PrefillOffload, SuspendReason};
use sluice_ports::compute::Sampled;

use super::Scheduler;
use super::admit::Admissions;
use crate::sequence::Sequence;
use crate::step_plan::StepPlan;

/// Waiting requests that a step checks for lateness.
const MAX_CHECKED: usize = 64;

impl Scheduler {
    /// Suspends requests whose offloaded prompt has its first token; they wait until their KV fits on the device.
    /// Requests whose prompt is no longer offloaded become ordinary ones.
    pub(super) fn suspend_offloaded(&mut self) {
        for sequence in self.running.values_mut().filter(|sequence| sequence.prefill_offloaded) {
            sequence.prefill_offloaded = self.manager.kv_of(sequence.id()).is_prefill_offloaded();
            sequence.waiting_offloaded &= sequence.prefill_offloaded;
        }
        let computed = self.running.values().filter(|sequence| sequence.waiting_offloaded);
        for id in computed.map(Sequence::id).collect::<Vec<_>>() {
            self.suspend_with_kv(id, SuspendReason::PrefillOffloaded);
        }
    }

    /// Returns whether the prompt of a planned admission may be offloaded because it does not fit.
    pub(super) fn offload_of_admitted(&self, plan: &StepPlan, at: usize) -> PrefillOffload {
        let one = &plan.admit[at];
        let (Some(prefix), Some(sequence)) = (&one.prefix, self.queue.get(one.id)) else {
            return PrefillOffload::NotNow;
        };
        let fresh = !one.prefill_offloaded && sequence.len() - prefix.tokens() > 1;
        if fresh { self.prefill_offload(one.prompt_kv_blocks, &plan.planned) } else { PrefillOffload::NotNow }
    }

    /// Whether a plan admits the request with offloaded KV although its prompt does not fit on the device.
    pub(super) fn starts_offloaded(
        &self,
        now: Nanos,
        sequence: &Sequence,
        planned: &PlannedAdmissions,
    ) -> bool {
        let prompt =
            !sequence.kv_suspended && sequence.pending() > 1 && self.config.max_step_tokens >= BLOCK_TOKENS;
        prompt && self.manager.after(planned).admits_by_prefill_offload(&self.waiter(sequence, now, 0))
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
    pub(super) fn leaves_prefill_buffer(
        &self,
        now: Nanos,
        front: &Sequence,
        admissions: &Admissions,
    ) -> bool {
        let step = self.step_kv_blocks();
        let leaves_buffer = || {
            let memory = self.manager.after(&admissions.planned);
            let layer_blocks = memory.layer_blocks_needed(&self.waiter(front, now, 0));
            let tokens = admissions.pending_tokens.saturating_add(front.pending());
            memory.leaves_prefill_buffer(layer_blocks, tokens, step)
        };
        !self.manager.offload_view().reserves_prefill_buffer(step) || leaves_buffer()
    }

    /// Plans requests with offloaded prefills while the first waiting request waits, or waits for capacity after its own
    /// offloaded prefill: they need almost no device memory.
    pub(super) fn plan_offloaded_prefills(&self, admissions: &mut Admissions) {
        while self.manager.offload_view().offloads_prefills()
            && admissions.budget > 0
            && self.free_rows.len() > admissions.list.len()
        {
            let is_planned = |id| admissions.list.iter().any(|one| one.id == id);
            let mut new = self.queue.iter().filter(|one| !one.kv_suspended && !is_planned(one.id()));
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

    /// Reports SLO violations to Algorithm 2: first tokens that were or already are late, and requests with fewer
    /// tokens than they should have by now.
    pub(super) fn record_slo_violations(&mut self, now: Nanos, sampled: &[Sampled]) {
        let slo = self.manager.params().slo;
        if !self.manager.offload_view().offloads_prefills() || (slo.ttft_ns == 0 && slo.tbt_ns == 0) {
            return;
        }
        let late =
            |from: Nanos, tokens: u32, ns: u64| ns > 0 && now.since(from) > ns.saturating_mul(tokens.into());
        let ttft = |one: &Sequence| one.first_token.is_none() && late(one.arrived, 1, slo.ttft_ns);
        let tpot =
            |one: &Sequence| one.first_token.is_some_and(|first| late(first, one.generated(), slo.tbt_ns));
        let made: Vec<_> = sampled.iter().filter_map(|token| self.request_in_row(token.row)).collect();
        let waiting = || self.queue.iter().take(MAX_CHECKED);
        let out = || waiting().filter(|one| one.waiting_offloaded);
        let slo_violations = Some(Violations {
            ttft: made.iter().any(|one| ttft(one)) || waiting().any(ttft),
            tpot: made.iter().any(|one| tpot(one)) || out().any(tpot),
        });
        self.manager.note(&MemoryNotes { slo_violations, ..MemoryNotes::default() });
    }
}
