//! `ModelTenant`: one model served under its own priority, SLOs and memory bounds.

mod serving;
mod source;
mod status;

use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::serving::{
    Access, AccessPeer, Engine, EngineKind, Idle, Limits, Pacing, PacingMode, QueueOrder, Scheduling,
    Sidecar, Slo,
};
pub use self::source::{
    Cache, FileSource, HuggingFaceSource, ImageSource, Model, PvcSource, S3Source, Source, SourceType,
    WeightType,
};
pub use self::status::{
    Elasticity, ModelStatus, ModelTenantStatus, SlotState, SlotStatus, TenantMemoryStatus,
};
use crate::quantity::Quantity;
use crate::rules::{self, CelRule};
use crate::shared::{Annotation, Label, NameRef, PoolRef};

/// One model served on GPUs of one pool.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "sluice.dev",
    version = "v1alpha1",
    kind = "ModelTenant",
    plural = "modeltenants",
    singular = "modeltenant",
    shortname = "mt",
    category = "sluice",
    namespaced,
    status = "ModelTenantStatus",
    derive = "PartialEq",
    doc = "One model served on GPUs of a GpuPool of the same namespace, with its own priority, SLOs and memory bounds.",
    validation = crate::rules::TENANT_NAME.rule(),
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    selectable = ".spec.poolRef.name",
    printcolumn(name = "Pool", type_ = "string", json_path = ".spec.poolRef.name"),
    printcolumn(name = "Priority", type_ = "integer", json_path = ".spec.priority"),
    printcolumn(name = "Wanted", type_ = "integer", json_path = ".spec.replicas"),
    printcolumn(name = "Slots", type_ = "integer", json_path = ".status.replicas"),
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
        name = "Serving",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Serving")].status"#,
        priority = "1"
    ),
    printcolumn(name = "URL", type_ = "string", json_path = ".status.url", priority = "1"),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].message"#,
        priority = "1"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = rules::ENGINE_KIND_IMMUTABLE.rule(), validation = rules::CACHE.rule())]
pub struct ModelTenantSpec {
    /// The pool that serves the tenant. Immutable. Required.
    #[x_kube(validation = rules::POOL_REF_IMMUTABLE.rule())]
    pub pool_ref: PoolRef,
    /// Group of the pool's GPUs, by name. Default: any group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 40), extend("pattern" = rules::DNS_LABEL))]
    pub gpu_group: Option<String>,
    /// The model that is served. Immutable. Required.
    #[x_kube(validation = rules::MODEL_IMMUTABLE.rule())]
    pub model: Model,
    /// Volume that keeps the downloaded model, for a source of type HuggingFace whose revision is a commit. Default:
    /// none, each pod downloads the model to its node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<Cache>,
    /// Priority among tenants of the GPU, higher is more important; the tenant with the lowest lends memory first.
    /// Default 100.
    #[serde(default = "default_priority")]
    #[schemars(range(min = 0, max = 1000))]
    pub priority: i32,
    /// PriorityClass of the pods, for the cluster's scheduler. Default: the cluster's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub pod_priority_class_name: Option<String>,
    /// Service level objectives. Default as in its fields.
    #[serde(default)]
    pub slo: Slo,
    /// Order of the tenant's requests. Default as in its fields.
    #[serde(default)]
    pub scheduling: Scheduling,
    /// Bounds on the tenant's memory. Default as in its fields.
    #[serde(default)]
    #[x_kube(validation = rules::KV_WITHIN_LIMIT.rule())]
    pub memory: TenantMemory,
    /// How tokens are written to clients. Default as in its fields.
    #[serde(default)]
    pub pacing: Pacing,
    /// When the tenant counts as idle, and when it hibernates. Default as in its fields.
    #[serde(default)]
    #[x_kube(validation = rules::HIBERNATE_AFTER_IDLE.rule())]
    pub idle: Idle,
    /// The process that runs the model. Default as in its fields.
    #[serde(default)]
    #[x_kube(
        validation = rules::ENGINE_IMAGE.rule(),
        validation = rules::ENGINE_HANG_TIMEOUT.rule(),
        validation = rules::CPU_WITHIN_LIMIT.rule()
    )]
    pub engine: Engine,
    /// The process that owns the memory and answers requests. Default as in its fields.
    #[serde(default)]
    #[x_kube(validation = rules::CPU_WITHIN_LIMIT.rule())]
    pub sidecar: Sidecar,
    /// Limits on clients. Default as in its fields.
    #[serde(default)]
    pub limits: Limits,
    /// Clients that may send requests. Default: all pods of the cluster, without a key.
    #[serde(default)]
    #[x_kube(validation = rules::ONE_KEY_SOURCE.rule())]
    pub access: Access,
    /// Slots (one pod on one GPU each); 0 means no pods and refused requests. Default 1.
    #[serde(default = "one")]
    #[schemars(range(min = 0, max = 64))]
    pub replicas: i32,
    /// Removes all slots and refuses requests; the object stays. Default false.
    #[serde(default)]
    pub suspend: bool,
    /// Time that open streams have to end when a pod stops, seconds. Default 30.
    #[serde(default = "default_drain")]
    #[schemars(range(min = 0, max = 3600))]
    pub drain_seconds: i32,
    /// Secrets for pulling images. Default: none; at most 8.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 8),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"])
    )]
    pub image_pull_secrets: Vec<NameRef>,
    /// ServiceAccount of the pods. Default: the namespace's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub service_account_name: Option<String>,
    /// Labels added to the pods; no key may begin with `sluice.dev/` or `app.kubernetes.io/`. Default: none; at most
    /// 32.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[x_kube(validation = rules::POD_LABELS.rule())]
    #[schemars(extend("maxProperties" = 32))]
    pub pod_labels: BTreeMap<String, Label>,
    /// Annotations added to the pods; no key may begin with `sluice.dev/`. Default: none; at most 32.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[x_kube(validation = rules::POD_ANNOTATIONS.rule())]
    #[schemars(extend("maxProperties" = 32))]
    pub pod_annotations: BTreeMap<String, Annotation>,
}

fn default_priority() -> i32 {
    100
}

fn one() -> i32 {
    1
}

fn default_drain() -> i32 {
    30
}

impl ModelTenantSpec {
    /// The rules on immutable fields that a change from `old` to `self` breaks, each with the field's path: what the
    /// API server would refuse.
    pub fn immutable_changes(&self, old: &Self) -> Vec<(&'static str, &'static CelRule)> {
        let changes = [
            (self.pool_ref != old.pool_ref, "spec.poolRef", &rules::POOL_REF_IMMUTABLE),
            (self.model != old.model, "spec.model", &rules::MODEL_IMMUTABLE),
            (self.engine.kind != old.engine.kind, "spec.engine.kind", &rules::ENGINE_KIND_IMMUTABLE),
        ];
        changes.into_iter().filter_map(|(changed, path, rule)| changed.then_some((path, rule))).collect()
    }
}

/// Bounds on a tenant's memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct TenantMemory {
    /// KV that the tenant can always hold on the GPU, bytes as a quantity; part of its floor. A smaller value counts as the
    /// default. Default: KV for one sequence of maxModelLen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guaranteed_kv: Option<Quantity>,
    /// KV that the tenant may hold on the GPU at most, bytes as a quantity. Default: as much as the GPU has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_limit: Option<Quantity>,
    /// KV that the tenant may keep in host memory, bytes as a quantity. Default 0.
    pub host_kv: Quantity,
    /// Share of the model's layers that may be remapped at one time, percent; never the whole model. Default 60.
    #[schemars(range(min = 0, max = 100))]
    pub max_remapped_percent: i32,
}

impl Default for TenantMemory {
    fn default() -> Self {
        TenantMemory {
            guaranteed_kv: None,
            kv_limit: None,
            host_kv: Quantity::from_bytes(0),
            max_remapped_percent: 60,
        }
    }
}
