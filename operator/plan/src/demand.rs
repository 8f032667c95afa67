//! What a slot takes of a GPU and of its host, before anybody has started it.

use sluice_types::ModelTenantSpec;
use sluice_types::tenant::{ModelStatus, TenantMemory};

/// Host memory of a sidecar beside weights and KV, bytes (DESIGN 12).
const SIDECAR_BYTES: u64 = 64 << 20;
/// Host memory of one open stream, bytes (DESIGN 12).
const STREAM_BYTES: u64 = 32 << 10;

/// Sizes of a model, as an inspection of its files tells them. Bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Weights that belong to no layer: embeddings, head, norms.
    pub global_bytes: u64,
    /// Weights of the largest layer.
    pub layer_bytes: u64,
    /// Layers; at least 1.
    pub layers: u32,
    /// KV of one token over all layers.
    pub kv_bytes_per_token: u64,
    /// Tokens that the model was made for.
    pub max_model_len: u32,
    /// Activations of the smallest step.
    pub activation_bytes: u64,
    /// Staging buffers.
    pub staging_bytes: u64,
}

impl Geometry {
    /// All weights: the master copy on the host.
    pub fn weights_bytes(&self) -> u64 {
        self.global_bytes + self.layer_bytes * u64::from(self.layers)
    }
}

impl Geometry {
    /// What `status.model` keeps of an inspection; `None` = it keeps none.
    pub fn of_status(status: &ModelStatus) -> Option<Geometry> {
        let bytes = |value: i64| u64::try_from(value).unwrap_or(0);
        let count = |value: i32| u32::try_from(value).unwrap_or(0);
        (status.layers > 0).then(|| Geometry {
            global_bytes: bytes(status.global_bytes),
            layer_bytes: bytes(status.layer_bytes),
            layers: count(status.layers),
            kv_bytes_per_token: bytes(status.kv_bytes_per_token),
            max_model_len: count(status.max_model_len),
            activation_bytes: bytes(status.activation_bytes),
            staging_bytes: bytes(status.staging_bytes),
        })
    }

    /// As it is kept in `status.model`.
    pub fn to_status(&self) -> ModelStatus {
        let bytes = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        let count = |value: u32| i32::try_from(value).unwrap_or(i32::MAX);
        ModelStatus {
            weights_bytes: bytes(self.weights_bytes()),
            layers: count(self.layers),
            kv_bytes_per_token: bytes(self.kv_bytes_per_token),
            global_bytes: bytes(self.global_bytes),
            layer_bytes: bytes(self.layer_bytes),
            max_model_len: count(self.max_model_len),
            activation_bytes: bytes(self.activation_bytes),
            staging_bytes: bytes(self.staging_bytes),
        }
    }
}

/// What every slot of a GPU pays beside its tenant's own sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Unit in which device memory is handed out, bytes; at least 1.
    pub chunk_bytes: u64,
    /// Device memory of the contexts of its two processes, bytes, as the GPU probe measured it; 0 on host-backed GPUs.
    pub context_bytes: u64,
}

/// What a slot takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// Device memory that it can never lend while it is awake, bytes.
    pub floor_bytes: u64,
    /// Host memory, bytes: the request and the limit of its pod, without what a host-backed GPU adds.
    pub host_bytes: u64,
}

/// What one slot of the tenant takes.
pub fn demand(spec: &ModelTenantSpec, model: &Geometry, terms: &Terms) -> Demand {
    Demand { floor_bytes: floor_bytes(spec, model, terms), host_bytes: host_bytes(spec, model) }
}

/// DESIGN 1, "floor": WeightsGlobal, the layers that the cap keeps at home and one slot for all others, KV, the smallest
/// activations, staging and contexts, each in whole chunks. The second slot that a layout may have counts as memory above
/// the floor, as in the sidecar.
fn floor_bytes(spec: &ModelTenantSpec, model: &Geometry, terms: &Terms) -> u64 {
    let whole = |bytes: u64| bytes.div_ceil(terms.chunk_bytes) * terms.chunk_bytes;
    let layers = u64::from(least_layers(&spec.memory, model.layers));
    whole(model.global_bytes)
        + layers * whole(model.layer_bytes)
        + whole(guaranteed_kv_bytes(spec, model))
        + whole(model.activation_bytes)
        + whole(model.staging_bytes)
        + terms.context_bytes
}

/// Layers' worth of memory that the tenant keeps under its cap: those that stay, and a slot for those that move. At least
/// one always stays, and with fewer than two that move nothing is gained.
fn least_layers(memory: &TenantMemory, layers: u32) -> u32 {
    let percent = u64::try_from(memory.max_remapped_percent).unwrap_or(0).min(100);
    let capped = u64::from(layers) * percent / 100;
    let moving = u32::try_from(capped).unwrap_or(u32::MAX).min(layers.saturating_sub(1));
    if moving < 2 { layers } else { layers - moving + 1 }
}

/// KV that the tenant can always hold: what it asks for; else one sequence of the longest kind, less what the host tier
/// takes of it, within its limit.
fn guaranteed_kv_bytes(spec: &ModelTenantSpec, model: &Geometry) -> u64 {
    let memory = &spec.memory;
    let longest = spec.model.max_model_len.and_then(|tokens| u32::try_from(tokens).ok());
    let sequence = u64::from(longest.unwrap_or(model.max_model_len)) * model.kv_bytes_per_token;
    let limit = memory.kv_limit.as_ref().map_or(u64::MAX, |limit| limit.bytes());
    let default = sequence.saturating_sub(memory.host_kv.bytes()).min(limit);
    memory.guaranteed_kv.as_ref().map_or(default, |asked| asked.bytes())
}

/// Master copy, host tier, the sidecar itself and its streams, and 5 % more.
fn host_bytes(spec: &ModelTenantSpec, model: &Geometry) -> u64 {
    let streams = u64::try_from(spec.limits.max_streams).unwrap_or(0);
    let kept = model.weights_bytes() + spec.memory.host_kv.bytes();
    let all = kept + SIDECAR_BYTES + STREAM_BYTES * streams;
    all + all.div_ceil(20)
}
