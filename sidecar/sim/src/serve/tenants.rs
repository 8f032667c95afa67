//! Configures published models as tenants of the production scheduler and policy.

use sluice_policy::geometry::{Geometry, StepShape};
use sluice_policy::loan_negotiator::NegotiationPolicy;
use sluice_policy::params::{self, Params};
use sluice_policy::placement_planner::pause::DEFAULT_BOUND_NS;
use sluice_scheduler::Config;

use super::config::{ServeConfig, TenantModel};
use crate::device::{Kernels, Profile};
use crate::gpu::GpuSharing;
use crate::gpu::tenant::TenantSetup;

/// Largest number of tokens in a step.
pub const STEP_TOKENS: u32 = 2048;

/// Default of a tenant.
const ALLOWED_MISS_PERMILLE: u32 = 10;

/// Largest queue, so large that no request is refused.
const QUEUED: u32 = 1_000_000;

/// Returns the number of chunks of the machine's memory.
pub fn capacity_chunks(case: &ServeConfig) -> u32 {
    u32::try_from(case.hardware.memory_bytes / case.chunk_bytes).unwrap_or(u32::MAX)
}

/// Returns the options of each tenant, in the order of `case.tenants`.
pub fn setups(case: &ServeConfig) -> Vec<TenantSetup> {
    case.tenants.iter().enumerate().map(|(at, place)| setup(case, at, place)).collect()
}

fn setup(case: &ServeConfig, at: usize, place: &TenantModel) -> TenantSetup {
    let model = &place.model;
    let parts = if case.sharing == GpuSharing::Isolated { case.tenants.len() as u64 } else { 1 };
    let kernels = Kernels { hardware: case.hardware.with_sharers(parts), model: *model, launch: case.launch };
    TenantSetup {
        name: format!("{} ({})", model.name, at + 1),
        config: config(case, place),
        params: params(case, place),
        geometry: geometry(case, place),
        profile: Profile::of(kernels),
        vocab: model.vocab as u32,
        terms: NegotiationPolicy { rule: case.rule, ..NegotiationPolicy::default() },
    }
}

fn config(case: &ServeConfig, place: &TenantModel) -> Config {
    Config {
        max_model_tokens: place.model.context_tokens,
        max_step_tokens: STEP_TOKENS,
        max_sequences: case.max_sequences,
        max_queued: QUEUED,
        ..Config::default()
    }
}

fn geometry(case: &ServeConfig, place: &TenantModel) -> Geometry {
    let model = &place.model;
    Geometry {
        chunk_bytes: case.chunk_bytes,
        capacity_chunks: capacity_chunks(case),
        global_bytes: model.global_bytes(),
        slab_bytes: vec![model.layer_bytes(); model.layers.into()],
        layer_block_bytes: 16 * model.kv_layer_bytes(),
        activation: model.activation(STEP_TOKENS),
        staging_chunks: 0,
    }
}

fn params(case: &ServeConfig, place: &TenantModel) -> Params {
    let geometry = geometry(case, place);
    let context = Geometry::kv_blocks_for(place.model.context_tokens);
    let guaranteed = u64::from(geometry.kv_chunks_for(context)) * case.chunk_bytes;
    let share = u64::from(capacity_chunks(case)) * u64::from(place.share_permille) / 1000;
    let shape = |tokens| StepShape { tokens, sequences: case.max_sequences, logit_rows: case.max_sequences };
    case.tunables.of(Params {
        policy: case.policy,
        share_chunks: share as u32,
        max_model_tokens: place.model.context_tokens,
        guaranteed_kv_bytes: guaranteed,
        kv_limit_bytes: case.options.kv_bytes.unwrap_or(u64::MAX),
        host_kv_bytes: case.host_kv_bytes(),
        pause_bound_ns: if case.options.never_pauses { 0 } else { DEFAULT_BOUND_NS },
        max_step: shape(STEP_TOKENS),
        min_step: shape(16),
        prefix_caching: case.prefix_caching,
        slo: params::Slo {
            ttft_ns: case.slo.ttft_ns,
            tbt_ns: case.slo.tbt_ns,
            allowed_miss_permille: ALLOWED_MISS_PERMILLE,
        },
        link_bytes_per_second: case.hardware.link.in_bytes_per_s,
        ..Params::default()
    })
}
