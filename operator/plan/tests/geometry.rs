//! The status fields that keep an inspection's result.

use serde_json::{Value, json};
use sluice_plan::geometry::{EngineGeometry, engine_threads, to_status};
use sluice_plan::resource_demand::{DemandParams, demand};
use sluice_types::pool::Policy;
use sluice_types::tenant::ModelStatus;
use sluice_wire::geometry::Geometry as InspectedGeometry;

use super::fixtures::tenant;

const REPORTED: InspectedGeometry = InspectedGeometry {
    global_bytes: 5,
    layer_bytes: 30,
    layers: 10,
    kv_bytes_per_token: 7,
    max_model_len: 4096,
    activation_bytes: 100,
    step_activation_bytes: 200,
    thread_bytes: 11,
    staging_bytes: 3,
    download_bytes: Some(610),
};

#[test]
fn a_status_keeps_all_of_an_inspection_and_threads_are_paid_for() {
    let kept = to_status(&REPORTED);
    assert_eq!((kept.weights_bytes, kept.layers, kept.kv_bytes_per_token), (305, 10, 7));
    let model = EngineGeometry::from_status(&kept, 4).expect("an inspected model");
    assert_eq!((model.activation_bytes, model.step_activation_bytes), (144, 244));
    assert_eq!((model.weights_bytes(), model.max_model_len, model.staging_bytes), (305, 4096, 3));
    assert_eq!(model.download_bytes, Some(610));
    let before = ModelStatus { download_bytes: None, ..kept };
    assert_eq!(EngineGeometry::from_status(&before, 4).expect("inspected all the same").download_bytes, None);
}

#[test]
fn incomplete_status_gives_no_geometry() {
    let old = ModelStatus { weights_bytes: 305, layers: 10, kv_bytes_per_token: 7, ..ModelStatus::default() };
    assert_eq!(EngineGeometry::from_status(&old, 1), None);
    let negative = ModelStatus { thread_bytes: -1, ..to_status(&REPORTED) };
    assert_eq!(EngineGeometry::from_status(&negative, 1), None);
}

#[test]
fn an_engine_has_the_threads_of_its_cpus() {
    let with = |resources| engine_threads(&tenant("a", json!({"engine": {"resources": resources}})).spec);
    let null = Value::Null;
    assert_eq!(with(null), 1);
    assert_eq!(with(json!({"requests": {"cpu": "3"}})), 3);
    assert_eq!(with(json!({"requests": {"cpu": "3"}, "limits": {"cpu": "5500m"}})), 5);
    assert_eq!(with(json!({"limits": {"cpu": "500m"}})), 1);
}

#[test]
fn a_proxied_engine_whose_memory_is_stated_needs_no_inspection() {
    let spec = |engine: Value| tenant("t", json!({ "engine": engine })).spec;
    let stated = json!({"limits": {"memory": "40Gi"}});
    let proxied = spec(json!({"kind": "Vllm", "resources": stated}));
    let model = EngineGeometry::without_inspection(&proxied).expect("it is placed as it is");
    assert_eq!(model.weights_bytes(), 0);
    let terms =
        DemandParams { chunk_bytes: 1, context_bytes: 7, host_gpu_bytes: None, policy: Policy::Unified };
    let demand = demand(&proxied, &model, &terms);
    // 64 MiB, 2048 streams of 32 KiB, 512 MiB for buffers, a twentieth, and the declared memory.
    assert_eq!((demand.floor_bytes, demand.host_bytes), (7 + 1, 704_643_072 + (40 << 30)));
    assert_eq!(EngineGeometry::without_inspection(&spec(json!({"kind": "Vllm"}))), None);
    assert_eq!(EngineGeometry::without_inspection(&spec(json!({"resources": stated}))), None);
}

#[test]
fn a_block_has_as_many_tokens_as_in_a_sidecar() {
    assert_eq!(sluice_plan::sizes::BLOCK_TOKENS, u64::from(sluice_policy::geometry::BLOCK_TOKENS));
}
