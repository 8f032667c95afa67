//! A pool, tenants and a release to build objects for.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use sluice_plan::demand::{Demand, Geometry, demand, pod_memory};
use sluice_plan::gpu::{Gpu, Known, gpus};
use sluice_plan::objects::{Placed, Release};
use sluice_types::tenant::EngineKind;
use sluice_types::{GpuPool, ModelTenant};

pub const MIB: u64 = 1 << 20;

/// Ten layers of 3 MiB, 5 MiB of other weights, 1 KiB of KV a token.
pub const MODEL: Geometry = Geometry {
    global_bytes: 5 * MIB,
    layer_bytes: 3 * MIB,
    layers: 10,
    kv_bytes_per_token: 1 << 10,
    max_model_len: 4096,
    activation_bytes: MIB,
    step_activation_bytes: 2 * MIB,
    staging_bytes: 0,
    download_bytes: None,
};

pub fn pool(spec: Value) -> GpuPool {
    let mut whole = json!({"gpus": [{"name": "chat"}], "hostMemoryPerGPU": "2Gi"});
    merge(&mut whole, spec);
    object("GpuPool", "p", whole)
}

/// A pool of host memory.
pub fn host_pool() -> GpuPool {
    pool(json!({"deviceClassName": "host.sluice.dev", "device": {"host": {"memory": "96Mi"}}}))
}

pub fn tenant(name: &str, spec: Value) -> ModelTenant {
    let source = json!({"type": "PersistentVolumeClaim", "persistentVolumeClaim": {"claimName": "models"}});
    let mut whole = json!({"poolRef": {"name": "p"}, "model": {"source": source}});
    merge(&mut whole, spec);
    object("ModelTenant", name, whole)
}

fn object<K: serde::de::DeserializeOwned>(kind: &str, name: &str, spec: Value) -> K {
    let metadata = json!({"name": name, "namespace": "ns", "uid": format!("uid-of-{name}")});
    let whole =
        json!({"apiVersion": "sluice.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec});
    serde_json::from_value(whole).expect("an object of ours")
}

/// Puts the fields of `from` into `into`, at any depth.
fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}

pub fn release() -> Release {
    Release {
        pull_secrets: Vec::new(),
        sidecar_image: "example.org/sluice-sidecar:1".into(),
        engine_image: "example.org/sluice-engine:1".into(),
        operator: BTreeMap::from([("app".to_owned(), "sluice-operator".to_owned())]),
        operator_namespace: "sluice-system".into(),
    }
}

/// The first GPU of a pool.
pub fn first(pool: &GpuPool) -> Gpu {
    gpus(pool, &|_| Known { capacity_bytes: Some(96 * MIB), ..Known::default() }).remove(0)
}

pub fn placed<'a>(pool: &'a GpuPool, tenant: &'a ModelTenant, gpu: &'a Gpu) -> Placed<'a> {
    let terms = gpu.settings.terms(&pool.spec);
    let pod = match tenant.spec.engine.kind {
        EngineKind::Native => pod_memory(&tenant.spec, &MODEL, &terms, 200 * MIB),
        EngineKind::Vllm => demand(&tenant.spec, &MODEL, &terms).pod,
    };
    let demand = Demand { floor_bytes: 25 * MIB, host_bytes: 200 * MIB, pod, ..Demand::default() };
    Placed { pool, tenant, index: 1, gpu, epoch: 3, model: MODEL, demand, share_bytes: 48 * MIB }
}
