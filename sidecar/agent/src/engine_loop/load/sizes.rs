//! Derives ranges, geometry and limits from the configuration and the model's shape.

use sluice_link::message::{Device, EngineSetup};
use sluice_link::slab::SlabLayout;
use sluice_policy::geometry::{ActivationCost, Geometry, StepShape};
use sluice_policy::params::{ForcedRemap, Params, Slo};
use sluice_scheduler::{Config, QueueOrder};
use sluice_wire::config::{LimitsConfig, SidecarConfig};

use super::error::LoadError;
use super::error::config_error;
use super::loaded_tenant::LoadedTenant;
use crate::engine_loop::share_control::ShareTarget;

/// Number of sequences whose decode step must always fit.
const MIN_STEP_TOKENS: u32 = 16;

/// Returns the bytes of all weights in host memory.
pub(super) fn host_weight_bytes(loaded: &LoadedTenant, layout: &SlabLayout) -> u64 {
    layout.global.bytes + layout.layer.bytes * u64::from(loaded.spec.layers)
}

pub(super) fn engine_setup(loaded: &LoadedTenant, device: Device) -> EngineSetup {
    let (config, spec) = (&loaded.config, &loaded.spec);
    let capacity_chunks = capacity_chunks(config);
    EngineSetup {
        spec: spec.clone(),
        device,
        chunk_bytes: config.gpu.chunk_bytes,
        capacity_chunks,
        // Ranges are virtual. Each is as long as the GPU, so that any share of it can back any of them.
        kv_chunks: capacity_chunks,
        activation_chunks: capacity_chunks,
        staging_chunks: 0,
        max_rows: config.limits.max_sequences,
        max_kv_blocks: Geometry::kv_blocks_for(loaded.max_model_tokens) + 1,
        max_history: loaded.max_model_tokens,
        chunk_tokens: chunk_tokens(&config.limits),
        threads: u16::try_from(config.engine.threads).unwrap_or(u16::MAX),
        faults: loaded.faults.engine,
    }
}

pub(super) fn capacity_chunks(config: &SidecarConfig) -> u32 {
    u32::try_from(config.gpu.memory_bytes / config.gpu.chunk_bytes.max(1)).unwrap_or(u32::MAX)
}

pub(super) fn geometry(loaded: &LoadedTenant, layout: &SlabLayout, activation: ActivationCost) -> Geometry {
    let config = &loaded.config;
    Geometry {
        chunk_bytes: config.gpu.chunk_bytes,
        capacity_chunks: capacity_chunks(config),
        global_bytes: layout.global.bytes,
        slab_bytes: vec![layout.layer.bytes; usize::from(loaded.spec.layers)],
        layer_block_bytes: loaded.spec.layer_block_bytes(),
        activation,
        staging_chunks: 0,
    }
}

/// Returns the policy parameters of a tenant on these terms.
pub(super) fn params(loaded: &LoadedTenant, terms: ShareTarget) -> Params {
    let config = &loaded.config;
    let limits = &config.limits;
    let (min_step, max_step) = step_limits(limits);
    let debug = &config.debug;
    loaded.tuned.of(Params {
        policy: terms.policy,
        share_chunks: terms.share_chunks,
        remap_cap_permille: terms.remap_cap_permille,
        forced: debug.force_remap.map(|(alpha, beta)| ForcedRemap { alpha, beta }),
        max_model_tokens: loaded.max_model_tokens,
        guaranteed_kv_bytes: config.memory.guaranteed_kv_bytes.unwrap_or_else(|| one_sequence_bytes(loaded)),
        kv_limit_bytes: config.memory.kv_limit_bytes.unwrap_or(u64::MAX),
        host_kv_bytes: config.memory.host_kv_bytes,
        max_step,
        min_step,
        prefix_caching: !debug.no_prefix_cache,
        slo: Slo {
            ttft_ns: u64::from(config.slo.ttft_milliseconds) * 1_000_000,
            tbt_ns: u64::from(config.slo.tbt_milliseconds) * 1_000_000,
            allowed_miss_permille: config.slo.allowed_miss_permille,
        },
        pause_bound_ns: u64::from(config.slo.max_pause_seconds) * 1_000_000_000,
        link_bytes_per_second: config
            .gpu
            .link_bytes_per_second
            .unwrap_or(Params::default().link_bytes_per_second),
        ..Params::default()
    })
}

/// Returns the smallest step that must always fit, and the largest step.
pub fn step_limits(limits: &LimitsConfig) -> (StepShape, StepShape) {
    let sequences = limits.max_sequences.min(limits.max_step_tokens).max(1);
    let least = MIN_STEP_TOKENS.min(sequences);
    let smallest = StepShape { tokens: least, sequences: least, logit_rows: least };
    (smallest, StepShape { tokens: limits.max_step_tokens, sequences, logit_rows: sequences })
}

/// Returns the maximum number of tokens that the engine processes in one pass through a layer.
pub fn chunk_tokens(limits: &LimitsConfig) -> u32 {
    limits.max_step_tokens.max(1)
}

/// Returns the KV bytes of one sequence of maximum length, rounded up to whole chunks.
fn one_sequence_bytes(loaded: &LoadedTenant) -> u64 {
    let (block, chunk) = (loaded.spec.layer_block_bytes(), loaded.config.gpu.chunk_bytes);
    let blocks = u64::from(Geometry::kv_blocks_for(loaded.max_model_tokens)) * u64::from(loaded.spec.layers);
    blocks.div_ceil((chunk / block).max(1)) * chunk
}

pub(super) fn scheduler_config(loaded: &LoadedTenant) -> Result<Config, LoadError> {
    let limits = &loaded.config.limits;
    let order = match loaded.config.order.as_str() {
        "FirstCome" => QueueOrder::FirstCome,
        "ShortestRemaining" => QueueOrder::ShortestRemaining,
        other => {
            return Err(config_error(
                "order",
                format!("`{other}` is not supported; use FirstCome or ShortestRemaining"),
            ));
        }
    };
    Ok(Config {
        max_model_tokens: loaded.max_model_tokens,
        max_step_tokens: limits.max_step_tokens,
        max_sequences: limits.max_sequences,
        max_queued: limits.max_queued_requests,
        order,
        ..Config::default()
    })
}
