//! Plans one admission.

use sluice_policy::geometry::Geometry;
use sluice_policy::memory_manager::CachedPrefix;

use super::Planner;
use super::admissions::Admissions;
use crate::sequence::Sequence;
use crate::step_plan::PlannedAdmission;

impl Planner<'_> {
    pub(super) fn plan_admission(
        &self,
        sequence: &Sequence,
        layer_blocks: u32,
        prefill_offloaded: bool,
        admissions: &mut Admissions,
    ) {
        let prefix = (!sequence.kv_suspended).then(|| self.cached_prefix(sequence));
        let computed_tokens = prefix.as_ref().map_or(sequence.computed_tokens, CachedPrefix::tokens);
        let one = PlannedAdmission {
            id: sequence.id(),
            prefix,
            prompt_kv_blocks: Geometry::kv_blocks_for(sequence.len()),
            prefill_offloaded,
            layer_blocks,
        };
        admissions.budget = admissions.budget.saturating_sub(sequence.len() - computed_tokens);
        admissions.pending_tokens =
            admissions.pending_tokens.saturating_add(sequence.len() - computed_tokens);
        admissions.planned.add(&one.admission(), layer_blocks, &self.manager.offload_view());
        admissions.list.push(one);
    }

    /// Returns the cached part of a new request's tokens.
    pub(super) fn cached_prefix(&self, sequence: &Sequence) -> CachedPrefix {
        self.manager.cached_prefix(sequence.request.salt, &sequence.tokens)
    }

    /// Returns the tokens of requests that the next step may admit.
    pub(super) fn admission_budget(&self) -> u32 {
        let step_tokens = if self.manager.status().weights_loading() {
            self.config.max_model_tokens
        } else {
            self.config.max_step_tokens
        };
        step_tokens.max(self.config.max_step_tokens).saturating_sub(self.requests.running.pending_tokens())
    }
}
