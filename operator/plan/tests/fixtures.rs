//! A pool, tenants and a release for building objects.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use sluice_plan::gpu::{Gpu, GpuSizes, gpus};
use sluice_plan::objects::{PlacedSlot, Release, claim_digest};
use sluice_plan::observed::{ObservedClaim, ObservedDevice, ObservedNode, ObservedPool, ObservedSlot};
use sluice_plan::plan_context::PlanContext;
use sluice_plan::resource_demand::{Demand, EngineGeometry, demand, pod_memory};
use sluice_plan::validate::ClusterFeatures;
use sluice_plan::zone_disruption::ZoneDisruption;
use sluice_types::tenant::EngineKind;
use sluice_types::{GpuPool, ModelTenant};

pub const MIB: u64 = 1 << 20;
/// A node that has not been ready for this long is lost, seconds.
pub const GRACE: i64 = 60;
pub const NOW: i64 = 1_000_000;

/// Ten layers of 3 MiB, 5 MiB of other weights, 1 KiB of KV a token.
pub const MODEL: EngineGeometry = EngineGeometry {
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

/// Merges the fields of `from` into `into`, at any depth.
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
pub fn first_gpu(pool: &GpuPool) -> Gpu {
    gpus(pool, &|_| GpuSizes { capacity_bytes: Some(96 * MIB), ..GpuSizes::default() }).remove(0)
}

pub fn placed<'a>(pool: &'a GpuPool, tenant: &'a ModelTenant, gpu: &'a Gpu) -> PlacedSlot<'a> {
    let terms = gpu.settings.demand_params(&pool.spec);
    let pod = match tenant.spec.engine.kind {
        EngineKind::Native => pod_memory(&tenant.spec, &MODEL, &terms, 200 * MIB),
        EngineKind::Vllm => demand(&tenant.spec, &MODEL, &terms).pod,
    };
    let demand = Demand { floor_bytes: 25 * MIB, host_bytes: 200 * MIB, pod, ..Demand::default() };
    PlacedSlot { pool, tenant, index: 1, gpu, epoch: 3, model: MODEL, demand, share_bytes: 48 * MIB }
}

/// A tenant that serves on `p-chat-0-e4`, on the node `a`.
pub fn placed_and_ready(pool: &GpuPool) -> ObservedPool {
    let device = ObservedDevice { node: Some("a".into()), name: "gpu-0".into(), ..ObservedDevice::default() };
    let claim = ObservedClaim {
        name: "p-chat-0-e4".into(),
        digest: claim_digest(pool, &first_gpu(pool)),
        device: Some(device),
        ..ObservedClaim::default()
    };
    ObservedPool {
        claims: vec![claim],
        slots: vec![ObservedSlot { tenant: "t".into(), index: 0, claim: "p-chat-0-e4".into() }],
        nodes: BTreeMap::from([(
            "a".to_owned(),
            ObservedNode { allocatable_bytes: u64::MAX, ..ObservedNode::default() },
        )]),
        ..ObservedPool::default()
    }
}

pub fn inspected() -> ModelTenant {
    let mut tenant = tenant("t", json!({}));
    let model = json!({"weightsBytes": 9, "layers": 8, "kvBytesPerToken": 1024, "globalBytes": 1 << 20,
        "layerBytes": 1 << 20, "maxModelLen": 1024, "activationBytes": 65536, "stepActivationBytes": 65536,
        "threadBytes": 0, "stagingBytes": 0});
    tenant.status = Some(serde_json::from_value(json!({"model": model})).unwrap());
    tenant
}

pub fn plan_context<'a>(
    pool: &'a GpuPool,
    tenants: &'a [&'a ModelTenant],
    seen: &'a ObservedPool,
) -> PlanContext<'a> {
    let cluster = ClusterFeatures { has_image_volumes: true };
    let outage = ZoneDisruption::default();
    PlanContext {
        pool: Some(pool),
        tenants,
        observed: seen,
        cluster,
        grace_seconds: GRACE,
        disruption: outage,
        now: NOW,
    }
}
