//! The planned floor of a tenant equals the floor that its sidecar declares.

use proptest::prelude::*;
use sluice_plan::geometry::EngineGeometry;
use sluice_plan::resource_demand::{DemandParams, demand};
use sluice_policy::geometry::{ActivationCost, Geometry as Inside, StepShape};
use sluice_policy::memory_manager::MemoryManager;
use sluice_policy::params::Params;
use sluice_policy::reclaim::PolicyName;
use sluice_types::pool::Policy;
use sluice_types::{ModelTenantSpec, Quantity};

const KIB: u64 = 1 << 10;
const CAPACITY_CHUNKS: u32 = 1 << 20;
/// An engine that takes one byte for each row of logits: only these differ between the two shapes.
const COST: ActivationCost = ActivationCost {
    fixed_bytes: 0,
    stream_per_token_bytes: 0,
    chunk_per_token_bytes: 0,
    chunk_tokens: 1,
    per_sequence_bytes: 0,
    per_logit_row_bytes: 1,
};

#[derive(Clone, Debug)]
struct Case {
    chunk: u64,
    model: EngineGeometry,
    block: u64,
    policy: Policy,
    percent: u32,
    guaranteed: Option<u64>,
    limit: Option<u64>,
    length: Option<u32>,
}

fn cases() -> impl Strategy<Value = Case> {
    let policies = prop::sample::select(Policy::ALL.to_vec());
    let sizes = (6_u32..9, 1..900 * KIB, 1..700 * KIB, 2..40_u32, 1..4 * KIB, 1..5000_u32);
    let step = (1..500 * KIB, 0..900 * KIB);
    let kv = (any::<bool>(), any::<bool>(), 1..9000 * KIB, 1..9000 * KIB, proptest::option::of(1..5000_u32));
    (policies, sizes, step, 0..=100_u32, kv).prop_map(|(policy, sizes, step, percent, kv)| {
        let (chunk, global_bytes, layer_bytes, layers, per_layer, max_model_len) = sizes;
        let model = EngineGeometry {
            global_bytes,
            layer_bytes,
            layers,
            kv_bytes_per_token: per_layer * u64::from(layers),
            max_model_len,
            activation_bytes: step.0,
            step_activation_bytes: step.0 + step.1,
            staging_bytes: 0,
            download_bytes: None,
        };
        let (asks, limits, asked, limit, length) = kv;
        let (guaranteed, limit) = (asks.then_some(asked), limits.then_some(limit));
        let length = length.map(|length| length.min(max_model_len));
        Case { chunk: KIB << chunk, model, block: 16 * per_layer, policy, percent, guaranteed, limit, length }
    })
}

fn spec(case: &Case) -> ModelTenantSpec {
    let written = r#"{
        "poolRef": {"name": "p"},
        "model": {"source": {"type": "HuggingFace", "huggingFace": {"repo": "a/b"}}}
    }"#;
    let mut spec: ModelTenantSpec = serde_json::from_str(written).expect("a spec");
    spec.memory.max_remapped_percent = case.percent as i32;
    spec.memory.guaranteed_kv = case.guaranteed.map(Quantity::from_bytes);
    spec.memory.kv_limit = case.limit.map(Quantity::from_bytes);
    spec.model.max_model_len = case.length.map(|length| length as i32);
    spec
}

/// Returns the floor of the sidecar's policy for the same tenant; `None` = the policy rejects it.
fn declared(case: &Case) -> Option<u64> {
    let model = &case.model;
    let rows = |bytes: u64| StepShape { tokens: 1, sequences: 1, logit_rows: bytes as u32 };
    let name = case.policy.as_str();
    let max_model_tokens = case.length.unwrap_or(model.max_model_len);
    let blocks = u64::from(Inside::kv_blocks_for(max_model_tokens)) * u64::from(model.layers);
    let one_sequence = blocks.div_ceil((case.chunk / case.block).max(1)) * case.chunk;
    let params = Params {
        policy: PolicyName::ALL.into_iter().find(|policy| policy.name() == name)?,
        remap_cap_permille: case.percent * 10,
        max_model_tokens,
        guaranteed_kv_bytes: case.guaranteed.unwrap_or(one_sequence),
        kv_limit_bytes: case.limit.unwrap_or(u64::MAX),
        max_step: rows(model.step_activation_bytes),
        min_step: rows(model.activation_bytes),
        ..Params::default()
    };
    let geometry = Inside {
        chunk_bytes: case.chunk,
        capacity_chunks: CAPACITY_CHUNKS,
        global_bytes: model.global_bytes,
        slab_bytes: vec![model.layer_bytes; model.layers as usize],
        layer_block_bytes: case.block,
        activation: COST,
        staging_chunks: 0,
    };
    let manager = MemoryManager::new(params, geometry).ok()?;
    Some(u64::from(manager.loans().floor_chunks()) * case.chunk)
}

/// What manifests say of a policy is what the type of the sidecar decides.
#[test]
fn facts_of_each_policy_are_decisions_of_its_type() {
    let smallest = StepShape { tokens: 1, sequences: 1, logit_rows: 1 };
    let mut decided: Vec<_> = PolicyName::ALL
        .map(|name| {
            let policy = name.policy();
            (name.name(), policy.movable_layers(2).is_some(), policy.kept_activations(smallest).is_some())
        })
        .into();
    let mut declared: Vec<_> = Policy::ALL
        .map(|policy| (policy.as_str(), policy.reclaims_weights(), policy.reclaims_activations()))
        .into();
    decided.sort_unstable();
    declared.sort_unstable();
    assert_eq!(declared, decided);
}

proptest! {
    #[test]
    fn planned_floor_equals_floor_declared_by_sidecar(case in cases()) {
        let terms = DemandParams { chunk_bytes: case.chunk, context_bytes: 0, host_gpu_bytes: None, policy: case.policy };
        let planned = demand(&spec(&case), &case.model, &terms).floor_bytes;
        let declared = declared(&case);
        prop_assume!(declared.is_some());
        prop_assert_eq!(Some(planned), declared);
    }
}
