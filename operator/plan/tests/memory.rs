//! A pod requests the memory that its slot was placed with.

use serde_json::{Value, json};
use sluice_plan::objects::{PlacedSlot, deployment, sidecar_config};
use sluice_plan::resource_demand::demand;
use sluice_types::{GpuPool, ModelTenant, Quantity};

use super::fixtures::{MIB, MODEL, first_gpu, host_pool, placed, pool, release, tenant};

/// Returns the result of `then` for a slot with computed memory.
fn with<T>(pool: &GpuPool, tenant: &ModelTenant, then: impl FnOnce(&PlacedSlot<'_>) -> T) -> T {
    let gpu = first_gpu(pool);
    let demand = demand(&tenant.spec, &MODEL, &gpu.settings.demand_params(&pool.spec));
    then(&PlacedSlot { demand, ..placed(pool, tenant, &gpu) })
}

/// Memory of a container in `list`, bytes.
fn memory(container: &Value, list: &str) -> u64 {
    let text = container["resources"][list]["memory"].as_str().expect("a quantity");
    text.parse::<Quantity>().expect("a quantity").bytes()
}

/// Returns the memory that the scheduler counts: containers and sidecars together, or an ordinary init container with
/// the sidecars before it.
fn pod_request_bytes(pod: &Value) -> u64 {
    let (mut sidecars, mut largest) = (0, 0);
    for init in pod["initContainers"].as_array().expect("init containers") {
        let own = memory(init, "requests");
        if init["restartPolicy"] == "Always" {
            sidecars += own;
        } else {
            largest = largest.max(sidecars + own);
        }
    }
    let containers = pod["containers"].as_array().expect("containers");
    largest.max(sidecars + containers.iter().map(|one| memory(one, "requests")).sum::<u64>())
}

fn limits(part: &str, memory: &str) -> Value {
    json!({part: {"resources": {"limits": {"memory": memory}}}})
}

#[test]
fn a_slot_is_placed_by_all_that_its_pod_asks_for() {
    let hub = json!({"type": "HuggingFace", "persistentVolumeClaim": null, "huggingFace": {"repo": "a/b"}});
    let small = json!({"sidecar": {"resources": {"limits": {"memory": "64Mi"}}},
        "engine": {"resources": {"limits": {"memory": "64Mi"}}}, "model": {"source": hub.clone()}});
    let proxied = json!({"engine": {"kind": "Vllm", "image": "v"}});
    let tenants = [
        json!({}),
        json!({"model": {"source": hub}}),
        limits("sidecar", "3Gi"),
        limits("engine", "2Gi"),
        json!({"engine": {"resources": {"limits": {"memory": "2Gi"}, "requests": {"memory": "1Gi"}}}}),
        small,
        proxied,
    ];
    for spec in tenants {
        for pool in [host_pool(), pool(json!({}))] {
            let (by, asks) = with(&pool, &tenant("t", spec.clone()), |placed| {
                let whole =
                    serde_json::to_value(deployment(placed, &release())).expect("an object serialises");
                (placed.demand.pod.bytes(), pod_request_bytes(&whole["spec"]["template"]["spec"]))
            });
            assert_eq!(by, asks, "{spec} on {}", pool.spec.device_class_name);
        }
    }
}

#[test]
fn sidecar_config_has_container_memory_without_gpu() {
    let host_memory = |spec: Value| {
        let tenant = tenant("t", spec);
        with(&host_pool(), &tenant, |placed| sidecar_config(placed).gpu.host_memory_bytes)
    };
    // 35 MiB of weights, 64 MiB and 2048 streams of 32 KiB, and a twentieth.
    let computed = host_memory(json!({})).expect("a figure");
    assert_eq!(computed, 163 * MIB + (163 * MIB).div_ceil(20));
    // The host-backed GPU has 96 MiB of the limit.
    assert_eq!(host_memory(limits("sidecar", "100Mi")), Some(4 * MIB));
    assert_eq!(
        host_memory(limits("sidecar", "1Mi")),
        Some(0),
        "nothing is left for weights: it says so at its start"
    );
}
