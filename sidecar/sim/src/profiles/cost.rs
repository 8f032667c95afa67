//! What a step costs: the longer of reading memory and of multiplying, for each layer, and a constant for launching it.
//!
//! Constants are calibrated against what DistServe publishes of OPT-13B on an A100 80 GB (simdistserve's profile: a prefill of
//! t tokens takes 22.05 + 0.1405 t + 8.08e-6 t^2 ms, a decode of bs sequences with ctx tokens of context in all
//! 23.475 + 5.93e-4 ctx + 0.0607 bs ms); `sluice-sim estimate` is therefore right for kernels of that kind, and its test
//! compares it with those formulas. The share of bandwidth that reading weights reaches, 0.8, is aiconfigurator's.

use super::hardware::Hardware;
use super::model::Model;

/// Share of memory bandwidth that reading weights reaches, permille.
const WEIGHTS_PERMILLE: u64 = 800;

/// Share of memory bandwidth that reading KV reaches, permille: 819,200 bytes in 593 ns on 2.039 TB/s.
const KV_PERMILLE: u64 = 680;

/// Share of peak arithmetic that large products reach, permille: 25.7 G operations in 140.5 us of 312 T.
const FLOPS_PERMILLE: u64 = 585;

/// Launching one layer, nanoseconds: what is left of 23.475 ms, over 40 layers. Captured graphs launch in a tenth of it.
const LAUNCH_NS: u64 = 190_000;

/// What one sequence adds to a decode step of one layer, nanoseconds: 60.7 us over 40 layers.
const SEQUENCE_NS: u64 = 1_500;

/// One step's work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Sequences that decode a token each.
    pub decodes: u64,
    /// Tokens of context that they attend to, all together.
    pub context: u64,
    /// Prompt tokens.
    pub prefill: u64,
    /// Tokens of context that the prompt tokens attend to, summed over prompt tokens.
    pub prefill_context: u64,
}

impl Batch {
    /// A decode of so many sequences with so much context each.
    pub const fn decode(sequences: u64, context_each: u64) -> Batch {
        Batch { decodes: sequences, context: sequences * context_each, prefill: 0, prefill_context: 0 }
    }

    /// One prompt of so many tokens.
    pub const fn prefill(tokens: u64) -> Batch {
        Batch { decodes: 0, context: 0, prefill: tokens, prefill_context: tokens * tokens / 2 }
    }
}

/// What launches a layer's kernels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Launch {
    /// The host, kernel by kernel, as the engines did that were measured.
    #[default]
    Eager,
    /// A captured graph: a tenth of it.
    Graph,
}

/// Time of one layer, nanoseconds.
pub fn layer_ns(hardware: &Hardware, model: &Model, batch: &Batch, launch: Launch) -> u64 {
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

/// Time of a whole step, nanoseconds: its layers, and the head that every step reads.
pub fn step_ns(hardware: &Hardware, model: &Model, batch: &Batch, launch: Launch) -> u64 {
    u64::from(model.layers) * layer_ns(hardware, model, batch, launch) + head_ns(hardware, model)
}

/// Time of the head, nanoseconds.
pub fn head_ns(hardware: &Hardware, model: &Model) -> u64 {
    ns(model.vocab * model.hidden * 2, hardware.memory_bytes_per_s, WEIGHTS_PERMILLE)
}

/// Time for `amount` at this share of `peak_per_s`, nanoseconds, rounded up.
fn ns(amount: u64, peak_per_s: u64, permille: u64) -> u64 {
    let per_s = u128::from(peak_per_s) * u128::from(permille) / 1000;
    u64::try_from((u128::from(amount) * 1_000_000_000).div_ceil(per_s)).unwrap_or(u64::MAX)
}
