//! Demand of a slot. Expected values are computed by hand from the parts of a floor.

use sluice_plan::resource_demand::{DemandError, DemandParams, check_kv_fits, demand};
use sluice_types::pool::Policy;
use sluice_types::{ModelTenantSpec, Quantity};

use super::fixtures::{MIB, MODEL};

const PARAMS: DemandParams =
    DemandParams { chunk_bytes: MIB, context_bytes: 0, host_gpu_bytes: None, policy: Policy::Unified };

fn spec() -> ModelTenantSpec {
    let written = r#"{
        "poolRef": {"name": "p"},
        "model": {"source": {"type": "HuggingFace", "huggingFace": {"repo": "a/b"}}}
    }"#;
    serde_json::from_str(written).expect("a spec")
}

fn floor(spec: &ModelTenantSpec) -> u64 {
    demand(spec, &MODEL, &PARAMS).floor_bytes / MIB
}

#[test]
fn a_floor_is_globals_the_layers_of_the_cap_a_slot_kv_and_activations() {
    // 60 % of ten layers move over one slot: 5 + (4 + 1) * 3 + 4 + 1.
    assert_eq!(floor(&spec()), 25);
}

#[test]
fn a_cap_that_frees_nothing_keeps_all_layers() {
    for (percent, expected) in [(0, 40), (10, 40), (19, 40), (20, 37), (90, 16), (100, 16)] {
        let mut spec = spec();
        spec.memory.max_remapped_percent = percent;
        assert_eq!(floor(&spec), expected, "{percent} %");
    }
}

#[test]
fn guaranteed_kv_is_what_is_asked_for_and_at_least_one_sequence() {
    let with = |change: &dyn Fn(&mut ModelTenantSpec)| {
        let mut spec = spec();
        change(&mut spec);
        floor(&spec) - 21
    };
    // A block is 1.6 KiB, so one chunk of a MiB holds 640 and a sequence of 4,096 tokens has 2,560.
    assert_eq!(with(&|_| ()), 4);
    assert_eq!(with(&|s| s.memory.guaranteed_kv = Some(Quantity::from_bytes(9 * MIB))), 9);
    assert_eq!(with(&|s| s.memory.guaranteed_kv = Some(Quantity::from_bytes(3 * MIB))), 4);
    assert_eq!(with(&|s| s.model.max_model_len = Some(2048)), 2);
    let limited = |s: &mut ModelTenantSpec| {
        s.memory.guaranteed_kv = Some(Quantity::from_bytes(9 * MIB));
        s.memory.kv_limit = Some(Quantity::from_bytes(6 * MIB));
    };
    assert_eq!(with(&limited), 6);
}

#[test]
fn kv_that_fits_nowhere_is_rejected_with_both_numbers() {
    let fit = |change: &dyn Fn(&mut ModelTenantSpec), chunk_bytes| {
        let mut spec = spec();
        change(&mut spec);
        check_kv_fits(&spec, &MODEL, &DemandParams { chunk_bytes, ..PARAMS })
    };
    let limit = |bytes| move |s: &mut ModelTenantSpec| s.memory.kv_limit = Some(Quantity::from_bytes(bytes));
    // Of a sequence of 4,096 tokens: four chunks, as above.
    assert_eq!(fit(&limit(4 * MIB), MIB), Ok(()));
    let refused = DemandError::Context { tokens: 4096, needed_bytes: 4 * MIB, limit_bytes: 3 * MIB };
    assert_eq!(fit(&limit(4 * MIB - 1), MIB), Err(refused));
    let shorter = |s: &mut ModelTenantSpec| (s.model.max_model_len, s.memory.kv_limit) = (Some(64), None);
    assert_eq!(fit(&shorter, MIB), Ok(()));
    // 16 tokens of a layer: 16 KiB over ten layers.
    assert_eq!(fit(&|_| (), 1639), Ok(()));
    assert_eq!(fit(&|_| (), 1024), Err(DemandError::Block { block_bytes: 1638, chunk_bytes: 1024 }));
    let proxied = |s: &mut ModelTenantSpec| s.engine.kind = sluice_types::tenant::EngineKind::Vllm;
    assert_eq!(fit(&proxied, 1024), Ok(()), "its KV is its engine's");
}

#[test]
fn a_policy_that_moves_no_layers_and_lends_no_activations_has_a_higher_floor() {
    let floor = |policy| demand(&spec(), &MODEL, &DemandParams { policy, ..PARAMS }).floor_bytes / MIB;
    // The largest step takes a MiB more than the smallest; all ten layers stay.
    assert_eq!([Policy::Unified, Policy::Oneiros].map(floor), [25, 26]);
    assert_eq!([Policy::Ellm, Policy::Recompute, Policy::OrbitFlow].map(floor), [40, 41, 41]);
}

#[test]
fn everything_is_whole_chunks_and_contexts_are_paid() {
    let terms = DemandParams { chunk_bytes: 2 * MIB, context_bytes: 7, ..PARAMS };
    // Of two MiB each: 3 for the globals, 2 for each of five layers, 2 for KV, 1 for activations.
    let demand = demand(&spec(), &MODEL, &terms);
    assert_eq!(demand.floor_bytes, 2 * (3 + 10 + 2 + 1) * MIB + 7);
    assert_eq!(demand.chunks_bytes(), 2 * (3 + 10 + 2 + 1) * MIB, "contexts are no chunks");
}

#[test]
fn the_host_keeps_the_master_copy_the_tier_and_the_sidecar() {
    let mut spec = spec();
    spec.memory.host_kv = Quantity::from_bytes(65 * MIB);
    spec.limits.max_streams = 1024;
    let on = |host_gpu_bytes| demand(&spec, &MODEL, &DemandParams { host_gpu_bytes, ..PARAMS });
    // 35 + 65 + 64 + 32 MiB, and a twentieth of it.
    let without_context = 196 * MIB + (196 * MIB).div_ceil(20);
    let (host, cuda) = (on(Some(96 * MIB)), on(None));
    assert_eq!(host.host_bytes, without_context);
    // The context of the sidecar on a CUDA device takes host memory too. The container's limit holds all of it.
    assert_eq!(cuda.host_bytes, without_context + 1024 * MIB);
    assert_eq!(cuda.pod.sidecar_bytes, cuda.host_bytes);
    assert_eq!(host.pod.sidecar_bytes, without_context + 96 * MIB, "chunks are its memory");
}

#[test]
fn a_proxied_engine_moves_no_layers_and_keeps_its_weights_in_its_own_host_memory() {
    let mut proxied = spec();
    proxied.engine.kind = sluice_types::tenant::EngineKind::Vllm;
    // All ten layers stay: 5 + 10 * 3 + 4 + 1.
    assert_eq!(floor(&proxied), 40);
    let host = demand(&proxied, &MODEL, &PARAMS).host_bytes;
    // Sidecar, streams and buffers, 640 MiB, and weights, 35 MiB, each with a twentieth, and 8 GiB.
    let twentieth_more = |mib: u64| mib * MIB + (mib * MIB).div_ceil(20);
    assert_eq!(host, twentieth_more(640) + twentieth_more(35) + 8192 * MIB);
}
