//! What a slot takes of a GPU and of its host, before anybody has started it.

use sluice_types::ModelTenantSpec;
use sluice_types::pool::Policy;
use sluice_types::shared::Resources;
use sluice_types::tenant::EngineKind;

pub use crate::geometry::Geometry;
use crate::geometry::declared_bytes;
use crate::objects::fetches;
use crate::sizes::{SMALL_PROCESS_BYTES, block_bytes, block_chunks, sequence_blocks};

/// Host memory of a sidecar beside weights and KV, bytes (DESIGN 12).
const SIDECAR_BYTES: u64 = 64 << 20;
/// Host memory of one open stream, bytes (DESIGN 12).
const STREAM_BYTES: u64 = 32 << 10;

/// Host memory of a sidecar for bodies and early tokens that wait before a proxied engine, bytes.
const BUFFERED_BYTES: u64 = 512 << 20;
/// Host memory of a proxied engine beside its weights, bytes.
const PROXIED_ENGINE_BYTES: u64 = 8 << 30;
/// Host memory of an engine with a CUDA context and its libraries, bytes.
const CUDA_ENGINE_BYTES: u64 = 4 << 30;

/// What every slot of a GPU pays beside its tenant's own sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DemandParams {
    /// Unit in which device memory is handed out, bytes; at least 1.
    pub chunk_bytes: u64,
    /// Device memory of the contexts of its two processes, bytes, as the GPU probe measures it; 0 on host-backed GPUs.
    pub context_bytes: u64,
    /// Memory of a host-backed GPU, bytes; `None` = it is a CUDA device.
    pub host_gpu_bytes: Option<u64>,
    /// Policy of its pool: what can be lent depends on it.
    pub policy: Policy,
}

/// What a slot takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// Device memory that it can never lend while it is awake, bytes.
    pub floor_bytes: u64,
    /// The part of it that is its contexts', bytes: no chunk of the GPU is made of that.
    pub context_bytes: u64,
    /// Host memory that counts against the pool's `hostMemoryPerGPU`, bytes.
    pub host_bytes: u64,
    /// Host memory that its pod asks its node for.
    pub pod: PodMemory,
}

/// Host memory of a pod's containers, bytes: request and limit of each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PodMemory {
    /// The sidecar's.
    pub sidecar_bytes: u64,
    /// The engine's.
    pub engine_bytes: u64,
    /// The download's, which ends before the others begin; 0 = there is none.
    pub fetch_bytes: u64,
}

impl Demand {
    /// The part of the floor that is held in chunks, as its sidecar counts it, bytes.
    pub const fn chunks_bytes(&self) -> u64 {
        self.floor_bytes.saturating_sub(self.context_bytes)
    }
}

impl PodMemory {
    /// What the pod asks its node for, as the scheduler counts it, bytes.
    pub fn bytes(&self) -> u64 {
        self.sidecar_bytes.saturating_add(self.engine_bytes).max(self.fetch_bytes)
    }
}

/// What one slot of the tenant takes.
pub fn demand(spec: &ModelTenantSpec, model: &Geometry, terms: &DemandParams) -> Demand {
    let sidecar_bytes = sidecar_bytes(spec, model);
    let pod = pod_memory(spec, model, terms, sidecar_bytes);
    let host_bytes = match spec.engine.kind {
        EngineKind::Native => sidecar_bytes,
        // Its weights sleep in its own memory.
        EngineKind::Vllm => sidecar_bytes.saturating_add(pod.engine_bytes),
    };
    let floor_bytes = floor_bytes(spec, model, terms);
    Demand { floor_bytes, context_bytes: terms.context_bytes, host_bytes, pod }
}

/// What the containers of a slot are given, whose sidecar takes `sidecar_bytes` beside the GPU: what the tenant writes, else what
/// is computed. Chunks of a host-backed GPU are the sidecar's charge, up to the whole GPU.
pub fn pod_memory(
    spec: &ModelTenantSpec,
    model: &Geometry,
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

/// Memory that a container is given, bytes: the limit that is written, else the request, else what is computed.
pub(crate) fn container_bytes(written: Option<&Resources>, computed: u64) -> u64 {
    declared_bytes(written).unwrap_or(computed)
}

/// DESIGN 1, "floor": WeightsGlobal, the layers that the cap keeps at home and one slot for all others, KV, activations,
/// staging and contexts, each in whole chunks: what the sidecar itself will declare. The second slot that a layout may have
/// counts as memory above the floor, there too.
fn floor_bytes(spec: &ModelTenantSpec, model: &Geometry, terms: &DemandParams) -> u64 {
    let whole = |bytes: u64| bytes.div_ceil(terms.chunk_bytes) * terms.chunk_bytes;
    let layers = u64::from(min_layers(spec, model.layers, terms.policy));
    whole(model.global_bytes)
        + layers * whole(model.layer_bytes)
        + kv_chunks(spec, model, terms.chunk_bytes) * terms.chunk_bytes
        + whole(activation_bytes(model, terms.policy))
        + whole(model.staging_bytes)
        + terms.context_bytes
}

/// Only eLLM's step lends what a small step leaves of the largest one's activations.
const fn activation_bytes(model: &Geometry, policy: Policy) -> u64 {
    match policy {
        Policy::Unified | Policy::Ellm => model.activation_bytes,
        Policy::Recompute | Policy::FlexGen | Policy::Pie | Policy::Oneiros | Policy::OrbitFlow => {
            model.step_activation_bytes
        }
    }
}

/// Layers' worth of memory that the tenant keeps under its cap: those that stay, and a slot for those that move. At least
/// one always stays, with fewer than two that move nothing is gained, and most policies move none; nor does a proxied engine.
fn min_layers(spec: &ModelTenantSpec, layers: u32, policy: Policy) -> u32 {
    let percent = u64::try_from(spec.memory.max_remapped_percent).unwrap_or(0).min(100);
    let capped = u64::from(layers) * percent / 100;
    let moving = u32::try_from(capped).unwrap_or(u32::MAX).min(layers.saturating_sub(1));
    let native = spec.engine.kind == EngineKind::Native;
    let moves = native && matches!(policy, Policy::Unified | Policy::Oneiros);
    if moving < 2 || !moves { layers } else { layers - moving + 1 }
}

/// Chunks of KV that the tenant can always hold: what it asks for, within its limit, and never less than one sequence of
/// the longest kind.
fn kv_chunks(spec: &ModelTenantSpec, model: &Geometry, chunk_bytes: u64) -> u64 {
    let memory = &spec.memory;
    let limit = memory.kv_limit.as_ref().map_or(u64::MAX, |limit| limit.bytes() / chunk_bytes);
    let asked = memory.guaranteed_kv.as_ref().map_or(0, |asked| asked.bytes().div_ceil(chunk_bytes));
    asked.min(limit).max(LongestSequence::of(spec, model).chunks(chunk_bytes))
}

/// KV of the longest sequence that a tenant serves: blocks of 16 tokens of a layer, which never straddle two chunks.
struct LongestSequence {
    tokens: u32,
    block_bytes: u64,
    blocks: u64,
}

impl LongestSequence {
    fn of(spec: &ModelTenantSpec, model: &Geometry) -> LongestSequence {
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

/// Why a tenant's KV could be held nowhere, whatever room there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DemandError {
    /// A block of KV is larger than what memory is handed out in.
    #[error(
        "16 tokens' KV of a layer take {block_bytes} bytes and never straddle two chunks, and a chunk of the pool has \
         {chunk_bytes}; raise device.host.chunkBytes of the pool"
    )]
    Block {
        /// The block, bytes.
        block_bytes: u64,
        /// A chunk, bytes.
        chunk_bytes: u64,
    },
    /// One sequence of the longest kind exceeds the tenant's limit.
    #[error(
        "spec.memory.kvLimit: KV of one sequence of {tokens} tokens (spec.model.maxModelLen) takes {needed_bytes} bytes, the \
         limit holds {limit_bytes}; lower the one or raise the other"
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

/// Whether the KV of a tenant's longest sequence can be held at all. A proxied engine's is not ours.
///
/// # Errors
/// [`DemandError`].
pub fn check_kv_fits(
    spec: &ModelTenantSpec,
    model: &Geometry,
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

/// Master copy, host tier, the sidecar itself and its streams, and 5 % more. Before a proxied engine the sidecar keeps neither
/// of the first two, but bodies and early tokens that wait.
fn sidecar_bytes(spec: &ModelTenantSpec, model: &Geometry) -> u64 {
    match spec.engine.kind {
        EngineKind::Native => {
            with_reserve(model.weights_bytes() + spec.memory.host_kv.bytes() + base_bytes(spec))
        }
        EngineKind::Vllm => with_reserve(base_bytes(spec) + BUFFERED_BYTES),
    }
}

/// Host memory of a proxied engine, bytes: its interpreter and libraries, and its weights while it sleeps.
fn proxied_engine_bytes(model: &Geometry) -> u64 {
    PROXIED_ENGINE_BYTES + with_reserve(model.weights_bytes())
}

fn base_bytes(spec: &ModelTenantSpec) -> u64 {
    SIDECAR_BYTES + STREAM_BYTES * u64::try_from(spec.limits.max_streams).unwrap_or(0)
}

fn with_reserve(bytes: u64) -> u64 {
    bytes + bytes.div_ceil(20)
}
