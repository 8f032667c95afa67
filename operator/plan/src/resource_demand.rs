//! The resources that a slot takes of a GPU and of its host, computed before it starts.

use sluice_types::ModelTenantSpec;
use sluice_types::pool::Policy;
use sluice_types::shared::Resources;
use sluice_types::tenant::EngineKind;

pub use crate::geometry::EngineGeometry;
use crate::geometry::declared_bytes;
use crate::model_source::fetches;
use crate::sizes::{SMALL_PROCESS_BYTES, block_bytes, block_chunks, sequence_blocks};

/// Host memory of a sidecar in addition to weights and KV, bytes.
const SIDECAR_BYTES: u64 = 64 << 20;
/// Host memory of one open stream, bytes.
const STREAM_BYTES: u64 = 32 << 10;

/// Host memory of a sidecar for request bodies and early tokens that it buffers for a proxied engine, bytes.
const BUFFERED_BYTES: u64 = 512 << 20;
/// Host memory of a proxied engine in addition to its weights, bytes.
const PROXIED_ENGINE_BYTES: u64 = 8 << 30;
/// Host memory of a sidecar for its CUDA context, bytes: an estimate that no GPU has confirmed. A container above its
/// limit is killed, so it is a large one.
const CUDA_SIDECAR_BYTES: u64 = 1 << 30;
/// Host memory of an engine with a CUDA context and its libraries, bytes.
const CUDA_ENGINE_BYTES: u64 = 4 << 30;

/// Per-slot parameters of demand that do not depend on the tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DemandParams {
    /// Allocation unit of device memory, bytes; at least 1.
    pub chunk_bytes: u64,
    /// Device memory of the contexts of its two processes, bytes, as the GPU probe measures it; 0 on host-backed
    /// GPUs.
    pub context_bytes: u64,
    /// Memory of a host-backed GPU, bytes; `None` = it is a CUDA device.
    pub host_gpu_bytes: Option<u64>,
    /// Policy of its pool, which determines what can be lent.
    pub policy: Policy,
}

/// The resources that a slot takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// Device memory that it cannot lend while it is awake, bytes.
    pub floor_bytes: u64,
    /// The part of the floor for contexts, bytes. It is not in chunks of the GPU.
    pub context_bytes: u64,
    /// Host memory that counts against the pool's `hostMemoryPerGPU`, bytes.
    pub host_bytes: u64,
    /// Memory requests of its pod.
    pub pod: PodMemory,
}

/// Host memory of a pod's containers, bytes: request and limit of each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PodMemory {
    /// Bytes of the sidecar.
    pub sidecar_bytes: u64,
    /// Bytes of the engine.
    pub engine_bytes: u64,
    /// The download's, which ends before the others start; 0 = none.
    pub fetch_bytes: u64,
}

impl Demand {
    /// Returns the part of the floor in chunks, as its sidecar counts it, bytes.
    pub const fn chunks_bytes(&self) -> u64 {
        self.floor_bytes.saturating_sub(self.context_bytes)
    }
}

impl PodMemory {
    /// Returns the pod's memory request, as the Kubernetes scheduler counts it, bytes.
    pub fn bytes(&self) -> u64 {
        self.sidecar_bytes.saturating_add(self.engine_bytes).max(self.fetch_bytes)
    }
}

/// Returns the resources that one slot of the tenant takes.
pub fn demand(spec: &ModelTenantSpec, model: &EngineGeometry, terms: &DemandParams) -> Demand {
    let sidecar_bytes = sidecar_bytes(spec, model, terms);
    let pod = pod_memory(spec, model, terms, sidecar_bytes);
    let host_bytes = match spec.engine.kind {
        EngineKind::Native => sidecar_bytes,
        // Its weights stay in its own host memory while it sleeps.
        EngineKind::Vllm => sidecar_bytes.saturating_add(pod.engine_bytes),
    };
    let floor_bytes = floor_bytes(spec, model, terms);
    Demand { floor_bytes, context_bytes: terms.context_bytes, host_bytes, pod }
}

/// Returns the memory of a slot's containers: what the tenant declares, else the computed values. The sidecar takes
/// `sidecar_bytes` without the GPU; chunks of a host-backed GPU are charged to the sidecar, up to the whole GPU.
pub fn pod_memory(
    spec: &ModelTenantSpec,
    model: &EngineGeometry,
    terms: &DemandParams,
    sidecar_bytes: u64,
) -> PodMemory {
    let (chunks, engine) = match (spec.engine.kind, terms.host_gpu_bytes) {
        (EngineKind::Native, Some(gpu)) => (gpu, SMALL_PROCESS_BYTES),
        (EngineKind::Native, None) => (0, CUDA_ENGINE_BYTES),
        (EngineKind::Vllm, _) => (0, proxied_engine_bytes(model)),
    };
    PodMemory {
        sidecar_bytes: container_bytes(spec.sidecar.resources.as_ref(), sidecar_bytes.saturating_add(chunks)),
        engine_bytes: container_bytes(spec.engine.resources.as_ref(), engine),
        fetch_bytes: if fetches(spec) { SMALL_PROCESS_BYTES } else { 0 },
    }
}

/// Returns the memory of a container, bytes: its declared limit, else its request, else `computed`.
pub(crate) fn container_bytes(written: Option<&Resources>, computed: u64) -> u64 {
    declared_bytes(written).unwrap_or(computed)
}

/// The floor of a tenant: WeightsGlobal, the layers that the cap keeps resident and one slot for all others, KV,
/// activations, staging and contexts, each in whole chunks. The sidecar declares the same value. A layout's second
/// slot counts as memory above the floor, also in the sidecar.
fn floor_bytes(spec: &ModelTenantSpec, model: &EngineGeometry, terms: &DemandParams) -> u64 {
    let whole = |bytes: u64| bytes.div_ceil(terms.chunk_bytes) * terms.chunk_bytes;
    let layers = u64::from(min_layers(spec, model.layers, terms.policy));
    whole(model.global_bytes)
        + layers * whole(model.layer_bytes)
        + kv_chunks(spec, model, terms.chunk_bytes) * terms.chunk_bytes
        + whole(activation_bytes(model, terms.policy))
        + whole(model.staging_bytes)
        + terms.context_bytes
}

/// The activations of the smallest step if the policy reclaims the others, else of the largest.
const fn activation_bytes(model: &EngineGeometry, policy: Policy) -> u64 {
    if policy.reclaims_activations() { model.activation_bytes } else { model.step_activation_bytes }
}

/// Whether layers of the tenant may leave the GPU. Most policies move no layers, and a proxied engine moves none.
pub fn moves_layers(spec: &ModelTenantSpec, policy: Policy) -> bool {
    spec.engine.kind == EngineKind::Native && policy.reclaims_weights()
}

/// Returns how many layers' memory the tenant keeps under its cap: the resident layers, and a slot for the moving
/// ones. At least one layer stays; moving fewer than two frees nothing.
fn min_layers(spec: &ModelTenantSpec, layers: u32, policy: Policy) -> u32 {
    let percent = u64::try_from(spec.memory.max_remapped_percent).unwrap_or(0).min(100);
    let capped = u64::from(layers) * percent / 100;
    let moving = u32::try_from(capped).unwrap_or(u32::MAX).min(layers.saturating_sub(1));
    if moving < 2 || !moves_layers(spec, policy) { layers } else { layers - moving + 1 }
}

/// Returns the chunks of KV that the tenant can always hold: its guarantee, within its limit, and at least one
/// sequence of maximum length.
fn kv_chunks(spec: &ModelTenantSpec, model: &EngineGeometry, chunk_bytes: u64) -> u64 {
    let memory = &spec.memory;
    let limit = memory.kv_limit.as_ref().map_or(u64::MAX, |limit| limit.bytes() / chunk_bytes);
    let asked = memory.guaranteed_kv.as_ref().map_or(0, |asked| asked.bytes().div_ceil(chunk_bytes));
    asked.min(limit).max(LongestSequence::of(spec, model).chunks(chunk_bytes))
}

/// KV of the longest sequence that a tenant serves, in blocks of 16 tokens of a layer, which never straddle two
/// chunks.
struct LongestSequence {
    tokens: u32,
    block_bytes: u64,
    blocks: u64,
}

impl LongestSequence {
    fn of(spec: &ModelTenantSpec, model: &EngineGeometry) -> LongestSequence {
        let layers = model.layers.max(1);
        let longest = spec.model.max_model_len.and_then(|tokens| u32::try_from(tokens).ok());
        let tokens = longest.unwrap_or(model.max_model_len);
        LongestSequence {
            tokens,
            block_bytes: block_bytes(model.kv_bytes_per_token, layers),
            blocks: sequence_blocks(tokens, layers),
        }
    }

    fn chunks(&self, chunk_bytes: u64) -> u64 {
        block_chunks(self.blocks, self.block_bytes, chunk_bytes)
    }
}

/// Why a tenant's KV fits on no GPU, whatever memory is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DemandError {
    /// A block of KV is larger than a chunk.
    #[error(
        "KV of 16 tokens of one layer takes {block_bytes} bytes and must fit into one chunk, but chunks of \
         the pool have {chunk_bytes} bytes; raise device.host.chunkBytes of the pool"
    )]
    Block {
        /// Size of a block, bytes.
        block_bytes: u64,
        /// Size of a chunk, bytes.
        chunk_bytes: u64,
    },
    /// One sequence of maximum length exceeds the tenant's limit.
    #[error(
        "spec.memory.kvLimit: KV of one sequence of {tokens} tokens (spec.model.maxModelLen) takes \
         {needed_bytes} bytes, and the limit holds {limit_bytes} bytes; lower maxModelLen or raise kvLimit"
    )]
    Context {
        /// Tokens of the sequence.
        tokens: u32,
        /// Whole chunks of it, bytes.
        needed_bytes: u64,
        /// Whole chunks of the limit, bytes.
        limit_bytes: u64,
    },
}

/// Checks that the KV of a tenant's longest sequence fits. A proxied engine manages its own KV.
///
/// # Errors
/// [`DemandError`].
pub fn check_kv_fits(
    spec: &ModelTenantSpec,
    model: &EngineGeometry,
    terms: &DemandParams,
) -> Result<(), DemandError> {
    let (sequence, chunk_bytes) = (LongestSequence::of(spec, model), terms.chunk_bytes);
    if spec.engine.kind != EngineKind::Native {
        return Ok(());
    }
    if sequence.block_bytes > chunk_bytes {
        return Err(DemandError::Block { block_bytes: sequence.block_bytes, chunk_bytes });
    }
    let Some(limit) = &spec.memory.kv_limit else { return Ok(()) };
    let (needed_bytes, limit_bytes) =
        (sequence.chunks(chunk_bytes) * chunk_bytes, limit.bytes() / chunk_bytes * chunk_bytes);
    let unfit = DemandError::Context { tokens: sequence.tokens, needed_bytes, limit_bytes };
    if needed_bytes > limit_bytes { Err(unfit) } else { Ok(()) }
}

/// Master copy, host tier, the sidecar itself and its streams, and 5 % more; a CUDA context. The sidecar of a proxied
/// engine has none of the first two and no context, but buffers request bodies and early tokens.
fn sidecar_bytes(spec: &ModelTenantSpec, model: &EngineGeometry, terms: &DemandParams) -> u64 {
    let context = if terms.host_gpu_bytes.is_none() { CUDA_SIDECAR_BYTES } else { 0 };
    match spec.engine.kind {
        EngineKind::Native => {
            with_reserve(model.weights_bytes() + spec.memory.host_kv.bytes() + base_bytes(spec)) + context
        }
        EngineKind::Vllm => with_reserve(base_bytes(spec) + BUFFERED_BYTES),
    }
}

/// Returns the host memory of a proxied engine, bytes: its interpreter and libraries, and its weights while it
/// sleeps.
fn proxied_engine_bytes(model: &EngineGeometry) -> u64 {
    PROXIED_ENGINE_BYTES + with_reserve(model.weights_bytes())
}

fn base_bytes(spec: &ModelTenantSpec) -> u64 {
    SIDECAR_BYTES + STREAM_BYTES * u64::try_from(spec.limits.max_streams).unwrap_or(0)
}

fn with_reserve(bytes: u64) -> u64 {
    bytes + bytes.div_ceil(20)
}
