//! The message of a claim that no driver satisfies names the fields of the pool that it comes from.

use serde_json::{Value, json};
use sluice_plan::observed::{ObservedPod, ObservedPool};
use sluice_plan::pool_plan::plan;
use sluice_plan::report::tenant_status;
use sluice_types::{GpuPool, ModelTenant};

use super::fixtures::{inspected, placed_and_ready, plan_context, pool};

/// A vLLM tenant, which any kind of GPU may have.
fn vllm() -> ModelTenant {
    let mut tenant = inspected();
    tenant.spec.engine =
        serde_json::from_value(json!({"kind": "Vllm", "image": "vllm/vllm-openai:v1"})).unwrap();
    tenant
}

/// Reason and message of `DevicesAllocated` while the pod of the slot is in this state.
fn allocated(pool: &GpuPool, has_device: bool, pod: ObservedPod) -> (String, String) {
    let (mut seen, tenant): (ObservedPool, _) = (placed_and_ready(pool), vllm());
    if !has_device {
        seen.claims[0].device = None;
    }
    seen.pods = vec![ObservedPod { tenant: "t".into(), claim: "p-chat-0-e4".into(), ..pod }];
    let tenants = [&tenant];
    let given = plan_context(pool, &tenants, &seen);
    let plan = plan(&given);
    let status = tenant_status(&given, &plan, &plan.tenants[0], None);
    let found = status.conditions.into_iter().find(|one| one.type_ == "DevicesAllocated").unwrap();
    (found.reason, found.message)
}

fn refused(by: &str) -> ObservedPod {
    ObservedPod { prepare_error: Some(by.into()), ..ObservedPod::default() }
}

fn unschedulable(why: &str) -> ObservedPod {
    ObservedPod { unschedulable_reason: Some(why.into()), ..ObservedPod::default() }
}

fn with_sharing(sharing: Value) -> GpuPool {
    pool(json!({"gpus": [{"name": "chat", "sharing": sharing}], "hostMemoryPerGPU": "64Gi"}))
}

#[test]
fn a_refused_claim_names_the_mode_that_its_driver_does_not_know() {
    // The driver's words without its feature gate, v0.4.1.
    let words =
        "\"MPS\" is selected as the GPU sharing strategy, but the \"MPSSupport\" feature gate is not enabled";
    let (reason, message) = allocated(&with_sharing(json!({"mode": "Spatial"})), true, refused(words));
    assert_eq!(reason, "DriverRefused");
    let fields = "; GpuPool `p` asks for spec.deviceClassName: gpu.nvidia.com, spec.gpus[chat].sharing.mode: Spatial \
                  (NVIDIA's driver needs its feature gate MPSSupport)";
    assert_eq!(message, format!("slot t-0: {words}{fields}"));
}

#[test]
fn an_unallocated_claim_names_the_class_or_the_profile_that_no_node_has() {
    let words = "0/2 nodes are available: 2 cannot allocate all claims";
    let isolated = json!({"mode": "Isolated", "isolated": {"profile": "7g.999gb"}});
    for (sharing, field) in [
        (json!({}), "spec.deviceClassName: gpu.nvidia.com"),
        (isolated, "spec.gpus[chat].sharing.isolated.profile: 7g.999gb (of class mig.nvidia.com)"),
    ] {
        let (reason, message) = allocated(&with_sharing(sharing), false, unschedulable(words));
        assert_eq!(reason, "NotAllocated");
        assert_eq!(message, format!("slot t-0: {words}; GpuPool `p` asks for {field}"));
    }
}

#[test]
fn a_claim_that_has_a_device_is_not_what_a_pod_lacks() {
    let words = "0/2 nodes are available: 2 Insufficient cpu";
    let (_, message) = allocated(&with_sharing(json!({})), true, unschedulable(words));
    assert_eq!(message, format!("slot t-0: {words}"));
}

#[test]
fn the_driver_of_host_memory_names_its_own_field() {
    let words = "claim ns/p-chat-0-e4, request gpu: memory exceeds the device";
    let device = json!({"host": {"memory": "96Mi"}});
    let spec = json!({"deviceClassName": "host.sluice.dev", "device": device, "hostMemoryPerGPU": "64Gi"});
    assert_eq!(allocated(&pool(spec), true, refused(words)).1, format!("slot t-0: {words}"));
}
