//! What the operator reports about a tenant. Written by the operator alone; readers ignore fields that a newer one adds.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::quantity::Quantity;

/// Status of a tenant.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ModelTenantStatus {
    /// Conditions by type: Accepted, Placed, DevicesAllocated, WeightsLoaded, Serving, Degraded, Ready.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 16),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"])
    )]
    pub conditions: Vec<Condition>,
    /// Generation of the spec that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Address at which the tenant is served inside the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub url: Option<String>,
    /// Slots that exist; read by the scale subresource.
    #[serde(default)]
    #[schemars(range(min = 0, max = 64))]
    pub replicas: i32,
    /// Label selector of the pods, as text; read by the scale subresource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub selector: Option<String>,
    /// Geometry of the model, once inspected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelStatus>,
    /// The slots.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 64),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"])
    )]
    pub slots: Vec<SlotStatus>,
    /// Memory over all slots, at the last report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<TenantMemoryStatus>,
    /// Time since which the tenant has had no request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_since: Option<Time>,
    /// When layers were last remapped or reverted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_remap_time: Option<Time>,
}

/// Geometry of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ModelStatus {
    /// Size of all weights, bytes.
    pub weights_bytes: i64,
    /// Transformer layers.
    pub layers: i32,
    /// KV of one token over all layers, bytes.
    pub kv_bytes_per_token: i64,
    /// Weights that belong to no layer, bytes.
    #[serde(default)]
    pub global_bytes: i64,
    /// Weights of the largest layer, bytes.
    #[serde(default)]
    pub layer_bytes: i64,
    /// Context length of the model, tokens.
    #[serde(default)]
    pub max_model_len: i32,
    /// Activations of the smallest step, without those of each thread of the engine, bytes.
    #[serde(default)]
    pub activation_bytes: i64,
    /// Activations of the largest step, without those of each thread of the engine, bytes.
    #[serde(default)]
    pub step_activation_bytes: i64,
    /// Additional activations for each thread of the engine, bytes.
    #[serde(default)]
    pub thread_bytes: i64,
    /// Staging buffers, bytes.
    #[serde(default)]
    pub staging_bytes: i64,
    /// Size of the files to download, bytes. Absent if the source needs no download.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub download_bytes: Option<i64>,
}

/// One slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SlotStatus {
    /// Name of the slot: tenant and index.
    #[schemars(length(max = 63))]
    pub name: String,
    /// GPU that it is placed on: pool, group and index.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 96))]
    pub gpu: Option<String>,
    /// Node of its pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub node: Option<String>,
    /// Its pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub pod: Option<String>,
    /// Loading, Active, Idle or Hibernated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "SlotState")]
    pub state: Option<SlotState>,
    /// Which memory the slot can release: Layers (layer by layer), Whole (all of it, when it sleeps) or Fixed (none).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Elasticity")]
    pub elasticity: Option<Elasticity>,
}

/// State of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SlotState {
    /// Loads its weights.
    Loading,
    /// Serves requests.
    Active,
    /// Has no request.
    Idle,
    /// Has released its device memory.
    Hibernated,
}

/// Which memory a slot can release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Elasticity {
    /// Layer by layer.
    Layers,
    /// All of it, when it sleeps.
    Whole,
    /// None.
    Fixed,
}

/// Memory of a tenant over all its slots.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TenantMemoryStatus {
    /// Weights on the GPU, bytes as a quantity.
    pub weights: Quantity,
    /// KV on the GPU, bytes as a quantity.
    pub kv: Quantity,
    /// KV in host memory, bytes as a quantity.
    pub host_kv: Quantity,
    /// Layers whose memory is lent, over all slots.
    pub remapped_layers: i32,
}
