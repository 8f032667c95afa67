//! How much of a prompt a step takes beside requests that decode: they wait for its end.

use sluice_policy::geometry::BLOCK_TOKENS;

use super::Scheduler;

/// A step with prompts takes at most as long as this number of steps without: requests that decode keep this part of their
/// pace, and prompts have the rest of the device.
const DECODE_STEPS: u64 = 2;
/// Of the objective for the time between tokens, what a step with prompts is to take. The rest is for what an estimate of a step
/// is wrong by: steps as long as the objective miss it every other time.
const OBJECTIVE_PERMILLE: u64 = 800;
/// A step within this time is not cut where there is no objective, nanoseconds: 25 tokens per second are faster than people read.
const UNCUT_NS: u64 = 40_000_000;

impl Scheduler {
    /// The most tokens of the next step. Beside decodes it ends within [`OBJECTIVE_PERMILLE`] of the objective for the time
    /// between tokens, or [`DECODE_STEPS`] steps if they are longer; prompts go on by a block at least.
    pub(super) fn tokens_beside_decodes(&self) -> u32 {
        let (decodes, measures) = (self.decodes(), self.manager.step_stats());
        if decodes == 0 || !measures.compute_known() {
            return u32::MAX;
        }
        let decode_ns = measures.decode_step_ns().min(u128::from(u64::MAX)) as u64;
        // A step that waits for moving layers is no shorter for a prompt that was cut.
        let step_ns = decode_ns.saturating_mul(DECODE_STEPS).max(self.manager.streaming_ns());
        let objective_ns = match self.manager.params().slo.tbt_ns {
            0 => UNCUT_NS,
            tbt_ns => tbt_ns / 1000 * OBJECTIVE_PERMILLE,
        };
        let within_ns = step_ns.max(objective_ns);
        decodes.saturating_add(measures.prefill_tokens_within(decodes, within_ns).max(BLOCK_TOKENS))
    }
}
