//! Carries out what `prepare_plan` decides about the memory of a step, until there is an answer.

use alloc::vec::Vec;

use super::prepare_plan::{Attempt, MemoryStep, ReclaimAction, Tried};
use super::{MemoryManager, Prepared, StepNeed};
use crate::action::Action;
use crate::kv::admissions::{Admission, AdmissionEffects, AdmittedKv};
use crate::offload::EvictedPaused;
use crate::reason::Reason;
use crate::transition::RemapKind;

/// What a step towards memory has led to.
enum Progress {
    /// The engine step has its memory, waits for it or does not get it.
    Answered(Prepared),
    /// Memory has changed: the attempt begins again.
    Changed,
    /// Nothing was gained: the attempt goes on.
    Nothing(Tried),
}

impl MemoryManager {
    pub(super) fn prepare_step(&mut self, need: &StepNeed, out: &mut Vec<Action>) -> Prepared {
        self.kv.recount_missing();
        // Whatever the answer is, a request that asks touches its cache: changes of memory that the step waits for
        // evict other cache first. Nothing but the order of evictions changes.
        for admission in &need.admit {
            match &admission.kv {
                AdmittedKv::New { prefix, .. } => self.kv.mark_used(prefix),
                AdmittedKv::Suspended => self.kv.recheck_paused(admission.request),
            }
        }
        let mut attempt = self.attempt(need);
        loop {
            let step = self.plan_memory(need, &attempt);
            match self.carry_out(step, need, &mut attempt, out) {
                Progress::Answered(answer) => return answer,
                Progress::Changed => attempt = self.attempt(need),
                Progress::Nothing(tried) => attempt.tried = tried,
            }
        }
    }

    fn carry_out(
        &mut self,
        step: MemoryStep,
        need: &StepNeed,
        attempt: &mut Attempt,
        out: &mut Vec<Action>,
    ) -> Progress {
        match step {
            MemoryStep::Answer(answer) => Progress::Answered(answer),
            MemoryStep::Allocate => self.allocate(need, attempt, out),
            MemoryStep::AbortTransition => {
                self.abort_transition();
                Progress::Changed
            }
            MemoryStep::CompactStaging => {
                self.offloading().compact_staging();
                Progress::Changed
            }
            MemoryStep::Start(start) => {
                self.start_transition(start, out);
                Progress::Answered(Prepared::Wait)
            }
            MemoryStep::Recreate(chunks) => {
                self.transfers().recreate(chunks, out);
                Progress::Answered(Prepared::Wait)
            }
            MemoryStep::AskPeers { sizes, missing } => {
                self.loans.ask(sizes);
                match self.loans.borrow_request() {
                    Some(_) => Progress::Answered(Prepared::Wait),
                    None => Progress::Nothing(Tried::Peers { missing, steps: 0 }),
                }
            }
            MemoryStep::Reclaim { missing, tried, action } => self
                .reclaim(action, missing, &attempt.effects, out)
                .unwrap_or(Progress::Nothing(Tried::Peers { missing, steps: tried })),
        }
    }

    /// Does what the policy names. None = nothing was gained.
    fn reclaim(
        &mut self,
        action: ReclaimAction,
        missing: u32,
        effects: &AdmissionEffects,
        out: &mut Vec<Action>,
    ) -> Option<Progress> {
        match action {
            ReclaimAction::Start(start) => {
                self.start_transition(start, out);
                Some(Progress::Answered(Prepared::Wait))
            }
            ReclaimAction::EvictPaused => {
                Some(match self.offloading().evict_paused(missing, effects, out)? {
                    EvictedPaused::Freed => Progress::Changed,
                    EvictedPaused::UnderWay => Progress::Answered(Prepared::Wait),
                })
            }
            ReclaimAction::Decline { reason, remember } => {
                self.orders.count(reason);
                if let Some(chunks) = remember {
                    self.transitions.decline(RemapKind::Hidden, self.orders.steps(), chunks);
                }
                None
            }
        }
    }

    /// There are enough free blocks: loads KV from the host tier first.
    fn allocate(&mut self, need: &StepNeed, attempt: &mut Attempt, out: &mut Vec<Action>) -> Progress {
        if attempt.demand.to_load > 0 {
            self.evict_until(attempt.demand.layer_blocks, &attempt.effects);
            let steps_wait = self.offloading().load_missing(&mut attempt.effects, out);
            return Progress::Answered(if steps_wait { Prepared::Wait } else { Prepared::Loading });
        }
        let admitted = |request| need.admit.iter().any(|one| one.request == request && one.spills_prefill());
        let spills = |request| self.kv.layer_offload().is_spilling_prefill(request) || admitted(request);
        let spilled = need.kv_blocks.iter().filter(|(request, _)| spills(*request));
        let spilled_kv_blocks = spilled.map(|(_, count)| *count).sum();
        if !self.offloading().reserve_host_places(spilled_kv_blocks, &attempt.effects) {
            // A host block that a fetch may still read is free when the fetch has ended.
            let waits = self.kv.layer_offload().fetches() > 0;
            return Progress::Answered(if waits { Prepared::Wait } else { self.shortfall(self.kv.layers()) });
        }
        if need.admit.iter().any(Admission::spills_prefill) {
            // Before the request has KV: a KV block that it shares keeps its staging slot only if all of its users
            // offload it, and this request does not yet.
            self.offloading().place_prefills();
            if self.kv.missing_layer_block_count() > 0 {
                return Progress::Changed;
            }
        }
        self.evict_until(attempt.demand.layer_blocks, &attempt.effects);
        self.commit_need(need);
        Progress::Answered(Prepared::Ready)
    }

    /// Opens or resumes the requests that the step admits, and allocates its KV blocks.
    fn commit_need(&mut self, need: &StepNeed) {
        for admission in &need.admit {
            match &admission.kv {
                AdmittedKv::New { prefix, .. } => self.kv.open(admission.request, prefix),
                AdmittedKv::Suspended => self.kv.resume(admission.request),
            }
            self.offloading().join_plan(admission.request);
        }
        for admission in &need.admit {
            if let AdmittedKv::New { spilled_kv_blocks: Some(kv_blocks), .. } = admission.kv {
                self.kv.start_prefill_spill(admission.request, kv_blocks);
            }
        }
        self.kv.allocate(&need.kv_blocks, &mut self.generations);
        self.kv.set_buffers_idle(
            need.without_offloaded_prefills && self.kv.layer_offload().stages_prefills_only(),
        );
    }

    fn evict_until(&mut self, layer_blocks: u32, effects: &AdmissionEffects) {
        let evicted = self.kv.evict_until(layer_blocks, effects);
        self.orders.count_many(Reason::PrefixEvicted, evicted);
    }
}
