//! `GpuPool`: GPUs, how each is shared, and the policy that moves their memory.

mod status;

use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::status::{GpuPoolStatus, GpuStatus};
use crate::quantity::Quantity;
use crate::rules;
use crate::shared::{Label, Toleration};

/// GPUs of one device class, in groups, each with its sharing mode.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "sluice.dev",
    version = "v1alpha1",
    kind = "GpuPool",
    plural = "gpupools",
    singular = "gpupool",
    shortname = "gpool",
    category = "sluice",
    namespaced,
    status = "GpuPoolStatus",
    derive = "PartialEq",
    doc = "GPUs that tenants share, memory included. A pool, its tenants and their pods are in one namespace.",
    validation = crate::rules::OBJECT_NAME.rule(),
    printcolumn(name = "Class", type_ = "string", json_path = ".spec.deviceClassName"),
    printcolumn(name = "Policy", type_ = "string", json_path = ".spec.policy"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].status"#
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].reason"#
    ),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].message"#,
        priority = "1"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = rules::HOST_DEVICE.rule())]
pub struct GpuPoolSpec {
    /// DRA device class of the GPUs; `host.sluice.dev` means GPUs backed by host memory. Default gpu.nvidia.com.
    #[serde(default = "default_device_class")]
    #[schemars(length(min = 1, max = 253))]
    pub device_class_name: String,
    /// Selects devices of the class, and sets the size of a host-backed GPU. Default: any device of the class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = rules::HOST_CONTEXTS.rule())]
    pub device: Option<Device>,
    /// Groups of GPUs, together at most 1024 GPUs; a tenant may name a group. Required.
    #[x_kube(validation = rules::POOL_SIZE.rule())]
    #[schemars(
        length(min = 1, max = 16),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"])
    )]
    pub gpus: Vec<GpuGroup>,
    /// Host memory that tenants of one GPU may use for master copies of weights and for KV, bytes as a quantity.
    /// Required.
    #[serde(rename = "hostMemoryPerGPU")]
    pub host_memory_per_gpu: Quantity,
    /// How a tenant finds memory when its KV runs short: Unified, or the way of a published system: Recompute (vLLM),
    /// FlexGen, Pie, Ellm, Oneiros, OrbitFlow. Default Unified.
    #[serde(default)]
    pub policy: Policy,
    /// Which tenant lends first, and how fast it gets its memory back. Default as in its fields.
    #[serde(default)]
    pub remap: Remap,
    /// When the operator makes a change that stops pods (device, sharing, nodeSelector, tolerations, runtimeClassName,
    /// fewer gpus): WhenEmpty (on each GPU once no tenant is on it) or Disruptive (at once). Default WhenEmpty.
    #[serde(default)]
    pub update_policy: UpdatePolicy,
    /// Labels that a node must have. Default: none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32))]
    pub node_selector: BTreeMap<String, Label>,
    /// Taints that the pods accept. Default: none; at most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(
        validation = rules::TOLERATION_KEY.rule(),
        validation = rules::TOLERATION_VALUE.rule(),
        validation = rules::TOLERATION_SECONDS.rule()
    )]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "atomic"))]
    pub tolerations: Vec<Toleration>,
    /// RuntimeClass of the pods. Default: the cluster's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub runtime_class_name: Option<String>,
}

fn default_device_class() -> String {
    "gpu.nvidia.com".to_owned()
}

/// Selection of devices, and the size of a host-backed GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Device {
    /// CEL expressions on device attributes, all of which must hold (`device.attributes[...]`, as in a DRA request).
    /// Default: none; at most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 16),
        inner(length(min = 1, max = 1024)),
        extend("x-kubernetes-list-type" = "atomic")
    )]
    pub selectors: Vec<String>,
    /// A host-backed GPU. Required when deviceClassName is host.sluice.dev, refused otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(
        validation = rules::HOST_CHUNK.rule(),
        validation = rules::HOST_MEMORY.rule(),
        validation = rules::HOST_LINK.rule()
    )]
    pub host: Option<HostDevice>,
    /// Device memory that the CUDA contexts of one tenant's two processes take, bytes as a quantity. `sluice gpu-probe`
    /// measures it (question `handles`). Refused with `host`, which has no contexts. Default 1280Mi.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_reserve: Option<Quantity>,
}

/// A GPU made of host memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HostDevice {
    /// Device memory of one GPU, bytes as a quantity. Required.
    pub memory: Quantity,
    /// Unit in which device memory is allocated and lent, bytes as a quantity: 64Ki, 128Ki, 256Ki, 512Ki, 1Mi or 2Mi.
    /// Default 64Ki.
    #[serde(default = "default_chunk")]
    pub chunk_bytes: Quantity,
    /// Simulated bandwidth of copies between host and device, bytes per second as a quantity. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_bytes_per_second: Option<Quantity>,
}

fn default_chunk() -> Quantity {
    Quantity::from_bytes(64 << 10)
}

/// GPUs that are shared in the same way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GpuGroup {
    /// Name of the group, unique in the pool, a DNS-1123 label of at most 40 characters. Required.
    #[schemars(length(min = 1, max = 40), extend("pattern" = rules::DNS_LABEL))]
    pub name: String,
    /// GPUs in the group. Default 1.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 1024))]
    pub count: i32,
    /// How tenants share each GPU of the group. Default Temporal.
    #[serde(default)]
    #[x_kube(validation = rules::SHARING.rule())]
    pub sharing: Sharing,
}

fn one() -> i32 {
    1
}

/// How tenants share one GPU. A union: only the field that `mode` names may be set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Sharing {
    /// Temporal (one tenant at a time, in time slices), Spatial (all at once, MPS) or Isolated (one MIG instance each).
    /// Default Temporal.
    #[serde(default)]
    pub mode: SharingMode,
    /// Time slices, for mode Temporal. Default as in its fields.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = rules::QUANTUM_ORDER.rule())]
    pub temporal: Option<Temporal>,
    /// Limits of a tenant, for mode Spatial. Default as in its fields.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spatial: Option<Spatial>,
    /// The MIG instances of the group. Required when mode is Isolated, refused otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolated: Option<Isolated>,
}

// `Sharing`, `SliceOrder` and `VictimRule` of sluice-wire are what sidecars read: `sluice_plan::spec_convert` converts.
/// Discriminator of [`Sharing`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SharingMode {
    /// One tenant at a time, in time slices.
    #[default]
    Temporal,
    /// All at once (MPS).
    Spatial,
    /// One hardware instance each (MIG).
    Isolated,
}

/// Time slices on one GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Temporal {
    /// Order of time slices: RoundRobin, or Priority (highest first, without starvation). Default RoundRobin.
    pub order: SliceOrder,
    /// Shortest time slice, milliseconds. Default 5.
    #[schemars(range(min = 1, max = 10_000))]
    pub min_quantum_milliseconds: i32,
    /// Longest time slice, milliseconds; a prefill chunk must fit in it. Default 50.
    #[schemars(range(min = 1, max = 10_000))]
    pub max_quantum_milliseconds: i32,
}

impl Default for Temporal {
    fn default() -> Self {
        Temporal { order: SliceOrder::default(), min_quantum_milliseconds: 5, max_quantum_milliseconds: 50 }
    }
}

/// Order of time slices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SliceOrder {
    /// One after the other.
    #[default]
    RoundRobin,
    /// Highest priority first, without starvation.
    Priority,
}

/// Sharing by MPS.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Spatial {
    /// Share of the GPU's threads that a tenant gets, percent. Default 50.
    #[schemars(range(min = 1, max = 100))]
    pub default_active_thread_percent: i32,
}

impl Default for Spatial {
    fn default() -> Self {
        Spatial { default_active_thread_percent: 50 }
    }
}

/// Sharing by MIG.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Isolated {
    /// MIG profile of every instance, such as 3g.71gb. Required.
    #[schemars(length(max = 16), extend("pattern" = rules::MIG_PROFILE))]
    pub profile: String,
}

/// Named policies: the planner with some of its freedoms switched off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Policy {
    /// Least predicted goodput loss per byte freed, over all remedies.
    #[default]
    Unified,
    /// vLLM: preempt and recompute.
    Recompute,
    /// FlexGen's static offload.
    FlexGen,
    /// KV swapping and adaptive expansion.
    Pie,
    /// Elastic memory between activations and KV.
    Ellm,
    /// Parameter remapping.
    Oneiros,
    /// Per-request KV placement.
    OrbitFlow,
}

impl Policy {
    /// All policies.
    pub const ALL: [Policy; 7] = [
        Policy::Unified,
        Policy::Recompute,
        Policy::FlexGen,
        Policy::Pie,
        Policy::Ellm,
        Policy::Oneiros,
        Policy::OrbitFlow,
    ];

    /// Whether a tenant's own weight layers may become KV or another tenant's memory. A test of `sluice-plan` compares
    /// this and [`Policy::reclaims_activations`] with what the sidecar's policies decide.
    pub const fn reclaims_weights(self) -> bool {
        matches!(self, Policy::Unified | Policy::Oneiros)
    }

    /// Whether idle activation space of a tenant becomes KV, so that it keeps only that of its smallest step.
    pub const fn reclaims_activations(self) -> bool {
        matches!(self, Policy::Unified | Policy::Ellm)
    }

    /// The name as written in a manifest.
    pub const fn as_str(self) -> &'static str {
        match self {
            Policy::Unified => "Unified",
            Policy::Recompute => "Recompute",
            Policy::FlexGen => "FlexGen",
            Policy::Pie => "Pie",
            Policy::Ellm => "Ellm",
            Policy::Oneiros => "Oneiros",
            Policy::OrbitFlow => "OrbitFlow",
        }
    }
}

/// Which tenant's layers are remapped.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Remap {
    /// Which inactive tenant of the lowest priority lends first: MostRecentlyUsed (under Unified, the one whose next
    /// request is expected last), LeastRecentlyUsed or FixedOrder (by name). Default MostRecentlyUsed.
    pub victim: VictimRule,
    /// Shortest time that a layer stays on the GPU after it was restored, milliseconds. Default 500.
    #[schemars(range(min = 0, max = 600_000))]
    pub min_residence_milliseconds: i32,
    /// Longest time in which a borrower returns a loan that is revoked, milliseconds. Default 200.
    #[schemars(range(min = 1, max = 60_000))]
    pub revoke_bound_milliseconds: i32,
}

impl Default for Remap {
    fn default() -> Self {
        Remap {
            victim: VictimRule::default(),
            min_residence_milliseconds: 500,
            revoke_bound_milliseconds: 200,
        }
    }
}

/// Order among inactive peers of the same priority.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum VictimRule {
    /// Oneiros 5.3.
    #[default]
    MostRecentlyUsed,
    /// The option of Oneiros.
    LeastRecentlyUsed,
    /// By name.
    FixedOrder,
}

/// When a disruptive change is carried out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum UpdatePolicy {
    /// When no tenant is on the GPU.
    #[default]
    WhenEmpty,
    /// At once.
    Disruptive,
}
