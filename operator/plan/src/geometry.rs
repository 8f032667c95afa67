//! Sizes of a model: as its inspection tells them, as the tenant's status keeps them, as demand is computed from them.

use sluice_types::shared::Resources;
use sluice_types::tenant::{EngineKind, ModelStatus, ModelTenantSpec};
use sluice_wire::geometry::Geometry as Told;

/// Sizes of a model on an engine with a known number of threads. Bytes.
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
    /// Activations of the largest step.
    pub step_activation_bytes: u64,
    /// Staging buffers.
    pub staging_bytes: u64,
    /// Files that a download brings, as they are stored; `None` = nobody has looked.
    pub download_bytes: Option<u64>,
}

impl Geometry {
    /// What a tenant's status keeps, on an engine with so many threads; `None` = it was written by an operator that knew less,
    /// and the model has to be inspected anew.
    pub fn from_status(model: &ModelStatus, threads: u32) -> Option<Geometry> {
        let bytes = |kept: i64| u64::try_from(kept).ok();
        let count = |kept: i32| u32::try_from(kept).ok().filter(|count| *count > 0);
        let of_threads = bytes(model.thread_bytes)? * u64::from(threads);
        Some(Geometry {
            global_bytes: bytes(model.global_bytes)?,
            layer_bytes: bytes(model.layer_bytes).filter(|bytes| *bytes > 0)?,
            layers: count(model.layers)?,
            kv_bytes_per_token: bytes(model.kv_bytes_per_token)?,
            max_model_len: count(model.max_model_len)?,
            activation_bytes: bytes(model.activation_bytes)? + of_threads,
            step_activation_bytes: bytes(model.step_activation_bytes)? + of_threads,
            staging_bytes: bytes(model.staging_bytes)?,
            download_bytes: model.download_bytes.and_then(bytes),
        })
    }

    /// What is planned with where only a proxied engine knows its model: nothing is lent, nobody shares the GPU, and the
    /// memory of its container is stated. `None` = the model has to be inspected.
    pub fn without_inspection(spec: &ModelTenantSpec) -> Option<Geometry> {
        let proxied = spec.engine.kind == EngineKind::Vllm;
        (proxied && declared_bytes(spec.engine.resources.as_ref()).is_some()).then_some(Geometry {
            global_bytes: 0,
            layer_bytes: 0,
            layers: 1,
            kv_bytes_per_token: 0,
            max_model_len: 1,
            activation_bytes: 0,
            step_activation_bytes: 0,
            staging_bytes: 0,
            download_bytes: None,
        })
    }

    /// All weights: the master copy on the host.
    pub fn weights_bytes(&self) -> u64 {
        self.global_bytes + self.layer_bytes * u64::from(self.layers)
    }
}

/// What a tenant's status keeps of an inspection.
pub fn to_status(told: &Told) -> ModelStatus {
    let bytes = |told: u64| i64::try_from(told).unwrap_or(i64::MAX);
    let count = |told: u32| i32::try_from(told).unwrap_or(i32::MAX);
    let layers = told.layer_bytes.saturating_mul(u64::from(told.layers));
    ModelStatus {
        weights_bytes: bytes(told.global_bytes.saturating_add(layers)),
        layers: count(told.layers),
        kv_bytes_per_token: bytes(told.kv_bytes_per_token),
        global_bytes: bytes(told.global_bytes),
        layer_bytes: bytes(told.layer_bytes),
        max_model_len: count(told.max_model_len),
        activation_bytes: bytes(told.activation_bytes),
        step_activation_bytes: bytes(told.step_activation_bytes),
        thread_bytes: bytes(told.thread_bytes),
        staging_bytes: bytes(told.staging_bytes),
        download_bytes: told.download_bytes.map(bytes),
    }
}

/// Memory that somebody states for a container, bytes: its limit, else its request.
pub(crate) fn declared_bytes(written: Option<&Resources>) -> Option<u64> {
    let written = written?;
    let lists = [written.limits.as_ref(), written.requests.as_ref()];
    lists.into_iter().flatten().find_map(|list| list.memory.as_ref()).map(|memory| memory.bytes())
}

/// Threads of a tenant's engine: the whole CPUs that it may use, else those that it asks for, else one. The engine is told, and
/// what each of them needs is known before its node is.
pub fn engine_threads(spec: &ModelTenantSpec) -> u32 {
    let resources = spec.engine.resources.as_ref();
    let cpu = |list: Option<&sluice_types::shared::ResourceList>| list?.cpu.as_ref().map(|cpu| cpu.millis());
    let limit = cpu(resources.and_then(|resources| resources.limits.as_ref()));
    let millis = limit.or_else(|| cpu(resources.and_then(|resources| resources.requests.as_ref())));
    u32::try_from(millis.unwrap_or(1000) / 1000).unwrap_or(u32::MAX).max(1)
}
