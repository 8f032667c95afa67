//! What the containers of a pod have in common: variables, hooks, resources, the security context.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Capabilities, EnvVar, HTTPGetAction, HTTPHeader, Lifecycle, LifecycleHandler, ResourceClaim,
    ResourceRequirements, SecurityContext,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use sluice_types::CpuQuantity;
use sluice_types::pool::SharingMode;
use sluice_types::shared::{ResourceList, Resources};
use sluice_wire::config::DRAIN_HEADER;

use super::placed_slot::PlacedSlot;
use super::{GPU_REQUEST, PROBE_PORT, quantity};
use crate::resource_demand::container_bytes;

/// Name of the pod's claim on its GPU.
pub const CLAIM: &str = "gpu";

/// The last output of a container that fails becomes its status, and so the tenant's condition.
pub(super) const TERMINATION_MESSAGE_POLICY: &str = "FallbackToLogsOnError";

/// The part of the pod's claim that a container uses. A container names a claim once, so it uses one request or all.
#[derive(Clone, Copy)]
pub(super) enum ClaimUse {
    /// The GPU and the ledger folder that its tenants share.
    AllRequests,
    /// The GPU alone.
    Gpu,
}

/// Returns a tenant's share of a GPU in mode `Spatial`, as the variable that MPS reads.
pub fn mps_thread_percentage(placed: &PlacedSlot<'_>) -> Option<EnvVar> {
    let sharing = &placed.gpu.settings.sharing;
    let percent = sharing.spatial.clone().unwrap_or_default().default_active_thread_percent;
    let shared = sharing.mode == SharingMode::Spatial;
    shared.then(|| env_var("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", &percent.to_string()))
}

pub(super) fn env_var(name: &str, value: &str) -> EnvVar {
    EnvVar { name: name.into(), value: Some(value.into()), value_from: None }
}

/// Returns a hook that runs for all containers of a pod at once, before any of them receives SIGTERM; otherwise the
/// kubelet would end the engine first. `/drain` starts a drain. `/drained` waits for the drain and starts none: the
/// kubelet also runs it when it kills a native engine by its liveness probe, while the sidecar continues.
pub(super) fn pre_stop_hook(placed: &PlacedSlot<'_>, path: &str) -> Lifecycle {
    let key = placed.drain_key().map(|value| HTTPHeader { name: DRAIN_HEADER.into(), value });
    let get = HTTPGetAction { http_headers: key.map(|key| vec![key]), ..http_get(path) };
    let handler = LifecycleHandler { http_get: Some(get), ..LifecycleHandler::default() };
    Lifecycle { pre_stop: Some(handler), ..Lifecycle::default() }
}

pub(super) fn http_get(path: &str) -> HTTPGetAction {
    HTTPGetAction { path: Some(path.into()), port: IntOrString::Int(PROBE_PORT), ..HTTPGetAction::default() }
}

/// Returns the tenant's resources, with computed values where it sets none. The memory request equals the limit, so
/// that all usable memory is reserved.
pub(super) fn resources(
    written: Option<&Resources>,
    computed: (&str, u64),
    uses: Option<ClaimUse>,
) -> ResourceRequirements {
    let (cpu, memory) = (computed.0, container_bytes(written, computed.1));
    let requests = written.and_then(|written| written.requests.as_ref());
    let limits = written.and_then(|written| written.limits.as_ref());
    let cpu_of = |list: Option<&ResourceList>| list.and_then(|list| list.cpu.clone());
    let (most, usual) = (cpu_of(limits), cpu.parse::<CpuQuantity>().expect("ours is a quantity"));
    // A request must not exceed the limit.
    let asked = cpu_of(requests)
        .unwrap_or_else(|| most.clone().filter(|most| most.millis() < usual.millis()).unwrap_or(usual));
    let list = |cpu: Option<String>| {
        let memory = ("memory".to_owned(), quantity(memory));
        BTreeMap::from_iter([memory].into_iter().chain(cpu.map(|cpu| ("cpu".to_owned(), Quantity(cpu)))))
    };
    let claim = |uses: ClaimUse| ResourceClaim {
        name: CLAIM.into(),
        request: match uses {
            ClaimUse::AllRequests => None,
            ClaimUse::Gpu => Some(GPU_REQUEST.into()),
        },
    };
    ResourceRequirements {
        requests: Some(list(Some(asked.to_string()))),
        limits: Some(list(most.map(|most| most.to_string()))),
        claims: uses.map(|uses| vec![claim(uses)]),
    }
}

/// Pod Security level `restricted`, with a read-only root file system.
pub(super) fn restricted_security_context() -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        read_only_root_filesystem: Some(true),
        capabilities: Some(Capabilities { drop: Some(vec!["ALL".into()]), add: None }),
        ..SecurityContext::default()
    }
}
