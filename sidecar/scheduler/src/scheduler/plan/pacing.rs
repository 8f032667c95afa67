//! Limits the prompt tokens of a step with decodes, because the decodes wait until it ends.

use sluice_policy::geometry::BLOCK_TOKENS;
use sluice_policy::peers::time_slice::Quantum;

use super::Planner;
use crate::sequence::Sequence;
use crate::step_request::{StepRequest, decodes};

/// A step with prompts may take as long as this number of decode-only steps: decodes keep this part of their pace, and
/// prompts use the rest of the device.
const DECODE_STEPS: u64 = 2;
/// Part of the time-between-tokens objective that a step with prompts may take, permille. The rest covers estimation
/// errors: steps as long as the objective itself would miss it half of the time.
const OBJECTIVE_PERMILLE: u64 = 800;
/// Without an objective, steps up to this duration are not shortened, nanoseconds: 25 tokens per second are faster than
/// people read.
const UNCUT_NS: u64 = 40_000_000;

impl Planner<'_> {
    /// Returns the token limit of the next step. With decodes it ends within [`OBJECTIVE_PERMILLE`] of the
    /// time-between-tokens objective, or within [`DECODE_STEPS`] decode steps if they are longer. Prompts progress by
    /// at least one block.
    pub(super) fn tokens_beside_decodes(&self, requests: &[StepRequest<'_>]) -> u32 {
        let (decodes, measures) = (decodes(requests), self.manager.timing().step_stats());
        if decodes == 0 || !measures.compute_known() {
            return u32::MAX;
        }
        let decode_ns = measures.decode_step_ns().min(u128::from(u64::MAX)) as u64;
        // A step that waits for remapped layers does not become shorter with a shorter prompt chunk.
        let step_ns = decode_ns.saturating_mul(DECODE_STEPS).max(self.manager.timing().streaming_ns());
        let objective_ns = match self.manager.params().slo.tbt_ns {
            0 => UNCUT_NS,
            tbt_ns => tbt_ns / 1000 * OBJECTIVE_PERMILLE,
        };
        let within_ns = step_ns.max(objective_ns);
        decodes.saturating_add(measures.prefill_tokens_within(decodes, within_ns).max(BLOCK_TOKENS))
    }

    /// Predicts the duration of the next step: all decodes, and as many prompt tokens as fit into a full quantum. The
    /// slice thus ends instead of computing small remainders of a prompt, each of which would read all weights.
    pub(in crate::scheduler) fn predicted_step_ns(&self, quantum: Quantum) -> u64 {
        let running: Vec<_> = self.requests.running.iter().map(StepRequest::running).collect();
        let prompts = running.iter().map(StepRequest::pending).filter(|pending| *pending > 1);
        let waiting = self.requests.queue.iter().map(Sequence::len);
        let pending = prompts.chain(waiting).fold(0, u32::saturating_add);
        let (decodes, measures) = (decodes(&running), self.manager.timing().step_stats());
        let max_tokens = measures.prefill_tokens_within(decodes, quantum.max_ns());
        measures.step_ns(decodes, pending.min(max_tokens).min(self.config.max_step_tokens))
    }
}
