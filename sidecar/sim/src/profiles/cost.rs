//! Step cost per layer: the longer of memory reads and arithmetic, plus a constant launch time.
//!
//! Constants are calibrated against DistServe's published figures for OPT-13B on an A100 80 GB (simdistserve's profile:
//! a prefill of t tokens takes 22.05 + 0.1405 t + 8.08e-6 t^2 ms; a decode of bs sequences with ctx tokens of context
//! in total takes 23.475 + 5.93e-4 ctx + 0.0607 bs ms). `sluice-sim estimate` is therefore valid for kernels of that
//! kind, and its test compares it with those formulas. The share of bandwidth for weights, 0.8, is aiconfigurator's.

use super::hardware::Hardware;
use super::model::ModelProfile;

/// Share of memory bandwidth that weight reads reach, permille.
const WEIGHTS_PERMILLE: u64 = 800;

/// Share of memory bandwidth that KV reads reach, permille: 819,200 bytes in 593 ns at 2.039 TB/s.
const KV_PERMILLE: u64 = 680;

/// Share of peak arithmetic that large products reach, permille: 25.7 G operations in 140.5 us at 312 T/s.
const FLOPS_PERMILLE: u64 = 585;

/// Launch time of one layer, nanoseconds: the remainder of 23.475 ms, over 40 layers. Captured graphs need a tenth.
const LAUNCH_NS: u64 = 190_000;

/// Time that one sequence adds to a decode step of one layer, nanoseconds: 60.7 us over 40 layers.
const SEQUENCE_NS: u64 = 1_500;

/// The work of one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchShape {
    /// Sequences that decode one token each.
    pub decodes: u64,
    /// Context tokens that they attend to, in total.
    pub context: u64,
    /// Prompt tokens.
    pub prefill: u64,
    /// Context tokens that the prompt tokens attend to, summed over prompt tokens.
    pub prefill_context: u64,
}

impl BatchShape {
    /// Creates a decode batch of `sequences` with `context_each` tokens of context each.
    pub const fn decode(sequences: u64, context_each: u64) -> BatchShape {
        BatchShape { decodes: sequences, context: sequences * context_each, prefill: 0, prefill_context: 0 }
    }

    /// Creates a batch of one prompt of `tokens`.
    pub const fn prefill(tokens: u64) -> BatchShape {
        BatchShape { decodes: 0, context: 0, prefill: tokens, prefill_context: tokens * tokens / 2 }
    }
}

/// How a layer's kernels are launched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Launch {
    /// Kernel by kernel from the host, as in the measured engines.
    #[default]
    Eager,
    /// A captured graph: a tenth of the launch time.
    Graph,
}

/// Returns the time of one layer, nanoseconds.
pub fn layer_ns(hardware: &Hardware, model: &ModelProfile, batch: &BatchShape, launch: Launch) -> u64 {
    let reading_ns = ns(model.layer_bytes(), hardware.memory_bytes_per_s, WEIGHTS_PERMILLE)
        + ns(batch.context * model.kv_layer_bytes(), hardware.memory_bytes_per_s, KV_PERMILLE);
    let tokens = batch.decodes + batch.prefill;
    let products = 2 * tokens * model.layer_parameters() + 4 * batch.prefill_context * model.hidden;
    let multiplying_ns = ns(products, hardware.flops, FLOPS_PERMILLE);
    let launching_ns = match launch {
        Launch::Eager => LAUNCH_NS,
        Launch::Graph => LAUNCH_NS / 10,
    };
    reading_ns.max(multiplying_ns) + launching_ns + batch.decodes * SEQUENCE_NS
}

/// Returns the time of a whole step, nanoseconds: its layers, and the head that every step reads.
pub fn step_ns(hardware: &Hardware, model: &ModelProfile, batch: &BatchShape, launch: Launch) -> u64 {
    u64::from(model.layers) * layer_ns(hardware, model, batch, launch) + head_ns(hardware, model)
}

/// Returns the time of the head, nanoseconds.
pub fn head_ns(hardware: &Hardware, model: &ModelProfile) -> u64 {
    ns(model.vocab * model.hidden * 2, hardware.memory_bytes_per_s, WEIGHTS_PERMILLE)
}

/// Returns the time for `amount` at this share of `peak_per_s`, nanoseconds, rounded up.
fn ns(amount: u64, peak_per_s: u64, permille: u64) -> u64 {
    let per_s = u128::from(peak_per_s) * u128::from(permille) / 1000;
    u64::try_from((u128::from(amount) * 1_000_000_000).div_ceil(per_s)).unwrap_or(u64::MAX)
}
