//! Sizes of a model: as its inspection reports them, as the tenant's status keeps them, and as the input of demand.

use sluice_types::shared::Resources;
use sluice_types::tenant::{EngineKind, ModelStatus, ModelTenantSpec};
use sluice_wire::geometry::Geometry as InspectedGeometry;

/// Sizes of a model on an engine with a known number of threads. Bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineGeometry {
    /// Weights outside of layers: embeddings, head, norms.
    pub global_bytes: u64,
    /// Weights of the largest layer.
    pub layer_bytes: u64,
    /// Number of layers; at least 1.
    pub layers: u32,
    /// KV of one token over all layers.
    pub kv_bytes_per_token: u64,
    /// Maximum context length of the model, tokens.
    pub max_model_len: u32,
    /// Activations of the smallest step.
    pub activation_bytes: u64,
    /// Activations of the largest step.
    pub step_activation_bytes: u64,
    /// Staging buffers.
    pub staging_bytes: u64,
    /// Files of a download, as they are stored; `None` = not inspected.
    pub download_bytes: Option<u64>,
}

impl EngineGeometry {
    /// Returns the sizes from a tenant's status, for an engine with `threads` threads; `None` = an older operator
    /// wrote the status with fewer fields, and the model must be inspected again.
    pub fn from_status(model: &ModelStatus, threads: u32) -> Option<EngineGeometry> {
        let bytes = |kept: i64| u64::try_from(kept).ok();
        let count = |kept: i32| u32::try_from(kept).ok().filter(|count| *count > 0);
        let of_threads = bytes(model.thread_bytes)? * u64::from(threads);
        Some(EngineGeometry {
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

    /// Returns placeholder sizes for a proxied engine whose container memory is declared: it lends no memory and
    /// shares no GPU. `None` = the model must be inspected.
    pub fn without_inspection(spec: &ModelTenantSpec) -> Option<EngineGeometry> {
        let proxied = spec.engine.kind == EngineKind::Vllm;
        (proxied && declared_bytes(spec.engine.resources.as_ref()).is_some()).then_some(EngineGeometry {
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

    /// Returns the size of all weights, which is the size of the master copy on the host.
    pub fn weights_bytes(&self) -> u64 {
        self.global_bytes + self.layer_bytes * u64::from(self.layers)
    }
}

/// Converts an inspection's result for the tenant's status.
pub fn to_status(inspected: &InspectedGeometry) -> ModelStatus {
    let bytes = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    let count = |value: u32| i32::try_from(value).unwrap_or(i32::MAX);
    let layers = inspected.layer_bytes.saturating_mul(u64::from(inspected.layers));
    ModelStatus {
        weights_bytes: bytes(inspected.global_bytes.saturating_add(layers)),
        layers: count(inspected.layers),
        kv_bytes_per_token: bytes(inspected.kv_bytes_per_token),
        global_bytes: bytes(inspected.global_bytes),
        layer_bytes: bytes(inspected.layer_bytes),
        max_model_len: count(inspected.max_model_len),
        activation_bytes: bytes(inspected.activation_bytes),
        step_activation_bytes: bytes(inspected.step_activation_bytes),
        thread_bytes: bytes(inspected.thread_bytes),
        staging_bytes: bytes(inspected.staging_bytes),
        download_bytes: inspected.download_bytes.map(bytes),
    }
}

/// Returns the memory that the spec declares for a container, bytes: its limit, else its request.
pub(crate) fn declared_bytes(written: Option<&Resources>) -> Option<u64> {
    let written = written?;
    let lists = [written.limits.as_ref(), written.requests.as_ref()];
    lists.into_iter().flatten().find_map(|list| list.memory.as_ref()).map(|memory| memory.bytes())
}

/// Returns the threads of a tenant's engine: the whole CPUs of its limit, else of its request, else one. The engine's
/// memory depends on its threads, and must be known before its node is.
pub fn engine_threads(spec: &ModelTenantSpec) -> u32 {
    let resources = spec.engine.resources.as_ref();
    let cpu = |list: Option<&sluice_types::shared::ResourceList>| list?.cpu.as_ref().map(|cpu| cpu.millis());
    let limit = cpu(resources.and_then(|resources| resources.limits.as_ref()));
    let millis = limit.or_else(|| cpu(resources.and_then(|resources| resources.requests.as_ref())));
    u32::try_from(millis.unwrap_or(1000) / 1000).unwrap_or(u32::MAX).max(1)
}
