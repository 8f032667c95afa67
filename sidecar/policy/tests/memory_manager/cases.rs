//! Builds small tenants.

use sluice_policy::geometry::{ActivationCost, Geometry, StepShape};
use sluice_policy::ids::{Nanos, RequestId};
use sluice_policy::memory_manager::{Admission, MemoryManager, Prepared, StepNeed};
use sluice_policy::params::Params;
use sluice_policy::reclaim::PolicyName;

pub const CHUNK: u64 = 64;
pub const BLOCK: u64 = 16;

/// Returns a tenant of one layer per entry of `slabs` (chunks each) with `kv_chunks` chunks of KV in addition to all
/// resident layers.
pub fn tenant(policy: PolicyName, slabs: &[u64], kv_chunks: u32, model_tokens: u32) -> (Params, Geometry) {
    let max_step = StepShape { tokens: 64, sequences: 8, logit_rows: 8 };
    let min_step = StepShape { tokens: 24, sequences: 1, logit_rows: 1 };
    let activation = ActivationCost {
        fixed_bytes: CHUNK,
        stream_per_token_bytes: 6,
        chunk_per_token_bytes: 2,
        chunk_tokens: max_step.tokens,
        per_sequence_bytes: 4,
        per_logit_row_bytes: 4,
    };
    let mut geometry = Geometry {
        chunk_bytes: CHUNK,
        capacity_chunks: 0,
        global_bytes: 2 * CHUNK - 5,
        slab_bytes: slabs.iter().map(|chunks| chunks * CHUNK - 3).collect(),
        layer_block_bytes: BLOCK,
        activation,
        staging_chunks: 1,
    };
    let activations = geometry.chunks_for(activation.bytes(max_step));
    geometry.capacity_chunks = 2 + slabs.iter().sum::<u64>() as u32 + activations + 1 + kv_chunks;
    let kv_blocks = Geometry::kv_blocks_for(model_tokens);
    let params = Params {
        policy,
        max_model_tokens: model_tokens,
        guaranteed_kv_bytes: u64::from(geometry.kv_chunks_for(kv_blocks)) * CHUNK,
        max_step,
        min_step,
        remap_cap_permille: 900,
        layer_compute_ns: 1_000_000,
        link_bytes_per_second: 1 << 40,
        revert_patience_steps: 3,
        compact_budget_bytes: 4 * BLOCK,
        ..Params::default()
    };
    (params, geometry)
}

/// Returns the chunks of guaranteed KV.
pub fn guaranteed_chunks(params: &Params) -> u32 {
    (params.guaranteed_kv_bytes / CHUNK) as u32
}

/// Admits a new request without KV blocks of its own.
pub fn open(manager: &mut MemoryManager, request: RequestId, salt: u64, tokens: &[u32]) {
    let admission = Admission::new(request, manager.cached_prefix(salt, tokens));
    let need = StepNeed { admit: vec![admission], ..StepNeed::default() };
    assert_eq!(manager.prepare(Nanos(0), &need, &mut Vec::new()), Prepared::Ready);
}
