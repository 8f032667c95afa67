//! Encodes and decodes the journal header: everything that a replay needs besides the events.

use sluice_policy::geometry::{ActivationCost, Geometry, StepShape};
use sluice_policy::params::{ForcedRemap, Params, Slo};
use sluice_policy::pie::expansion;
use sluice_policy::placement_planner::replan;
use sluice_policy::reclaim::{Ablations, PolicyName};

use super::peers;
use super::text_codec::{Encoder, Reader, by_code, code_of};
use crate::config::{Config, QueueOrder};

const ORDERS: [QueueOrder; 2] = [QueueOrder::FirstCome, QueueOrder::ShortestRemaining];

/// Encodes the scheduler's limits.
pub fn config_words(config: &Config) -> Encoder {
    let Config { max_model_tokens, max_step_tokens, max_sequences, max_queued, order, .. } = config;
    let mut words = Encoder::default();
    words.put(*max_model_tokens).put(*max_step_tokens).put(*max_sequences).put(*max_queued);
    words.put(code_of(&ORDERS, order));
    peers::put_membership(&mut words, config);
    words
}

/// Reads what [`config_words`] wrote.
pub fn config(r: &mut Reader<'_>) -> Result<Config, String> {
    let limits = Config {
        max_model_tokens: r.int()?,
        max_step_tokens: r.int()?,
        max_sequences: r.int()?,
        max_queued: r.int()?,
        order: by_code(&ORDERS, r)?,
        ..Config::default()
    };
    let (sharing, membership) = peers::membership(r)?;
    Ok(Config { sharing, membership, ..limits })
}

fn put_shape(words: &mut Encoder, shape: &StepShape) {
    words.put(shape.tokens).put(shape.sequences).put(shape.logit_rows);
}

fn shape(r: &mut Reader<'_>) -> Result<StepShape, String> {
    Ok(StepShape { tokens: r.int()?, sequences: r.int()?, logit_rows: r.int()? })
}

/// Encodes the policy's tunables.
pub fn params_words(params: &Params) -> Encoder {
    let Params { policy, remap_cap_permille, forced, max_model_tokens, guaranteed_kv_bytes, .. } = params;
    let Params { kv_limit_bytes, max_step, min_step, stall_allowance_permille, .. } = params;
    let Params { revert_patience_steps, revert_reserve_permille, compact_budget_bytes, .. } = params;
    let Params {
        prefix_caching, link_bytes_per_second, layer_compute_ns, share_chunks, host_kv_bytes, ..
    } = params;
    let mut words = Encoder::default();
    words.put(code_of(&PolicyName::ALL, policy)).put(*remap_cap_permille);
    words.put_option(forced.map(|f| u64::from(f.alpha))).put(forced.map_or(0, |f| f.beta));
    words.put(*max_model_tokens).put(*guaranteed_kv_bytes).put(*kv_limit_bytes);
    put_shape(&mut words, max_step);
    put_shape(&mut words, min_step);
    words.put(*stall_allowance_permille).put(*revert_patience_steps).put(*revert_reserve_permille);
    words.put(*compact_budget_bytes).put(*prefix_caching).put(*link_bytes_per_second).put(*layer_compute_ns);
    words.put(*share_chunks).put(*host_kv_bytes);
    put_offload(&mut words, params);
    words
}

/// Encodes the tunables of KV placement.
fn put_offload(words: &mut Encoder, params: &Params) {
    let Params { fixed_away_permille, offload_reserve_permille, expansion, replan, plan_expansions, .. } =
        params;
    words.put(*fixed_away_permille).put(*offload_reserve_permille).put(*plan_expansions);
    words.put(expansion.early_permille).put(expansion.trial_tokens).put(expansion.gain_permille);
    words.put(expansion.probe_after_trials).put(expansion.stall_permille);
    words.put(replan.window).put(replan.mismatch_permille).put(replan.mismatches);
    words.put(params.pause_bound_ns);
    let Params { slo, cost_window_steps, .. } = params;
    words.put(slo.ttft_ns).put(slo.tbt_ns).put(slo.allowed_miss_permille).put(*cost_window_steps);
    words.put(params.plan_alike).put(params.plan_first_come);
    words.put(params.premap_bytes).put(params.defers_unmap);
    let Ablations { reclaim_by_cost, next_use_by_arrivals } = params.ablations;
    words.put(params.link_by_deadline).put(reclaim_by_cost).put(next_use_by_arrivals);
}

/// Reads what [`params_words`] wrote.
pub fn params(r: &mut Reader<'_>) -> Result<Params, String> {
    let (policy, remap_cap_permille) = (by_code(&PolicyName::ALL, r)?, r.int()?);
    let (alpha, beta) = (r.option()?, r.int()?);
    let alpha = alpha.map(|a| u16::try_from(a).map_err(|_| format!("{a} is too large"))).transpose()?;
    Ok(Params {
        policy,
        remap_cap_permille,
        forced: alpha.map(|alpha| ForcedRemap { alpha, beta }),
        max_model_tokens: r.int()?,
        guaranteed_kv_bytes: r.u64()?,
        kv_limit_bytes: r.u64()?,
        max_step: shape(r)?,
        min_step: shape(r)?,
        stall_allowance_permille: r.int()?,
        revert_patience_steps: r.int()?,
        revert_reserve_permille: r.int()?,
        compact_budget_bytes: r.u64()?,
        prefix_caching: r.bool()?,
        link_bytes_per_second: r.u64()?,
        layer_compute_ns: r.u64()?,
        share_chunks: r.int()?,
        host_kv_bytes: r.u64()?,
        fixed_away_permille: r.int()?,
        offload_reserve_permille: r.int()?,
        plan_expansions: r.int()?,
        expansion: expansion::ExpansionTunables {
            early_permille: r.int()?,
            trial_tokens: r.int()?,
            gain_permille: r.int()?,
            probe_after_trials: r.int()?,
            stall_permille: r.int()?,
        },
        replan: replan::ReplanTunables {
            window: r.int()?,
            mismatch_permille: r.int()?,
            mismatches: r.int()?,
            ..Default::default()
        },
        pause_bound_ns: r.u64()?,
        slo: Slo { ttft_ns: r.u64()?, tbt_ns: r.u64()?, allowed_miss_permille: r.int()? },
        cost_window_steps: r.int()?,
        plan_alike: r.bool()?,
        plan_first_come: r.bool()?,
        premap_bytes: r.u64()?,
        defers_unmap: r.bool()?,
        link_by_deadline: r.bool()?,
        ablations: Ablations { reclaim_by_cost: r.bool()?, next_use_by_arrivals: r.bool()? },
    })
}

/// Encodes the sizes of the tenant.
pub fn geometry_words(geometry: &Geometry) -> Encoder {
    let Geometry { chunk_bytes, capacity_chunks, global_bytes, slab_bytes, .. } = geometry;
    let Geometry { layer_block_bytes, activation, staging_chunks, .. } = geometry;
    let mut words = Encoder::default();
    words.put(*chunk_bytes).put(*capacity_chunks).put(*global_bytes);
    words.put_list(slab_bytes, |w, bytes| {
        w.put(*bytes);
    });
    words.put(*layer_block_bytes).put(activation.fixed_bytes).put(activation.stream_per_token_bytes);
    words.put(activation.chunk_per_token_bytes).put(activation.chunk_tokens);
    words.put(activation.per_sequence_bytes).put(activation.per_logit_row_bytes).put(*staging_chunks);
    words
}

/// Reads what [`geometry_words`] wrote.
pub fn geometry(r: &mut Reader<'_>) -> Result<Geometry, String> {
    Ok(Geometry {
        chunk_bytes: r.u64()?,
        capacity_chunks: r.int()?,
        global_bytes: r.u64()?,
        slab_bytes: r.list(Reader::u64)?,
        layer_block_bytes: r.u64()?,
        activation: ActivationCost {
            fixed_bytes: r.u64()?,
            stream_per_token_bytes: r.u64()?,
            chunk_per_token_bytes: r.u64()?,
            chunk_tokens: r.int()?,
            per_sequence_bytes: r.u64()?,
            per_logit_row_bytes: r.u64()?,
        },
        staging_chunks: r.int()?,
    })
}
