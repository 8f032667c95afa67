//! The sizes that an engine needs to serve a tenant, and the limits that they must keep.

use serde::{Deserialize, Serialize};
use sluice_ports::memory::RangeSizes;
use thiserror::Error;

use crate::model::{ModelSpec, RopeScaling};
use crate::slab::{SlabLayout, slab_layout};

/// Faults that tests inject into an engine. All are off by default; a production sidecar sets none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Faults {
    /// Negative control "one dropped wait": the engine skips the n-th wait for a layer since it attached.
    pub dropped_wait: Option<u64>,
    /// Sleep before each layer, so that a test can interrupt a step, nanoseconds.
    pub layer_delay_ns: u64,
    /// Sleep before a change of mappings, so that a test can interrupt it, nanoseconds.
    pub remap_delay_ns: u64,
    /// Fill the activation range with NaN before each step, because no result may depend on its old contents.
    pub poison_activations: bool,
}

/// The device whose memory the chunks are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Device {
    /// Host memory: all chunks are ranges of one memfd, which `Model` carries.
    #[default]
    Host,
    /// A GPU: each chunk is a physical allocation, and `Chunks` carries its POSIX file descriptor.
    Cuda {
        /// UUID of the GPU or of the MIG device (`cuDeviceGetUuid_v2`), because ordinals differ between processes.
        uuid: [u8; 16],
    },
}

/// The engine's view of a tenant: the model and the sizes of all shared memory. Constant while the tenant is loaded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EngineSetup {
    /// The model's shape.
    pub spec: ModelSpec,
    /// The device that computes.
    pub device: Device,
    /// Bytes of a chunk: a power of two, at least a page; on CUDA a multiple of the driver's
    /// granularity, which the sidecar checks.
    pub chunk_bytes: u64,
    /// Chunks in the pool; on the host, chunk `c` is at `c * chunk_bytes` in the pool's memfd.
    pub capacity_chunks: u32,
    /// Chunks of the KV arena's virtual range.
    pub kv_chunks: u32,
    /// Chunks of the activation range.
    pub activation_chunks: u32,
    /// Chunks of the staging range.
    pub staging_chunks: u32,
    /// Rows of the block table and token history.
    pub max_rows: u32,
    /// Block KV blocks of a row.
    pub max_kv_blocks: u32,
    /// Tokens of a row's history.
    pub max_history: u32,
    /// Most tokens that pass through a layer together; a longer step passes through it in chunks of this size.
    pub chunk_tokens: u32,
    /// Compute threads; 0 = one per core.
    pub threads: u16,
    /// Faults to inject, in tests only.
    pub faults: Faults,
}

/// A setup that no engine can serve, or another message with a size above its limit.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SetupError {
    /// A size is zero, violates a divisibility rule, or exceeds the limits.
    #[error("{field} is {value}, which must be {rule}")]
    Field {
        /// Name of the size.
        field: &'static str,
        /// Its value.
        value: u64,
        /// The rule.
        rule: &'static str,
    },
    /// A float is not positive and finite.
    #[error("{0} is not a positive finite number")]
    Float(&'static str),
}

/// Largest virtual space that a setup may reserve, in bytes (16 TiB).
const MAX_RESERVED_BYTES: u64 = 1 << 44;
/// Largest width in a model; the product of two such widths is far below 2^64.
const MAX_WIDTH: u32 = 1 << 22;

impl EngineSetup {
    /// Refuses sizes that overflow, divide by zero or reserve without bound. Both ends call it.
    pub fn check(&self) -> Result<(), SetupError> {
        self.check_widths()?;
        self.check_floats()?;
        self.check_shared()
    }

    /// Returns the offset of every tensor. Valid only after [`EngineSetup::check`].
    pub fn layout(&self) -> SlabLayout {
        slab_layout(&self.spec)
    }

    /// Returns the chunks of the global range.
    pub fn global_chunks(&self) -> u32 {
        self.layout().global.bytes.div_ceil(self.chunk_bytes) as u32
    }

    /// Returns the chunks of one layer's range.
    pub fn layer_chunks(&self) -> u32 {
        self.layout().layer.bytes.div_ceil(self.chunk_bytes) as u32
    }

    /// Returns the size of each range.
    pub fn range_sizes(&self) -> RangeSizes {
        RangeSizes {
            global_chunks: self.global_chunks(),
            layer_chunks: vec![self.layer_chunks(); usize::from(self.spec.layers)],
            kv_chunks: self.kv_chunks,
            activation_chunks: self.activation_chunks,
            staging_chunks: self.staging_chunks,
        }
    }

    /// Returns the layer blocks of a chunk.
    pub fn layer_blocks_per_chunk(&self) -> u32 {
        (self.chunk_bytes / self.spec.layer_block_bytes()) as u32
    }

    fn check_widths(&self) -> Result<(), SetupError> {
        let spec = &self.spec;
        for (field, value) in [
            ("vocab", spec.vocab),
            ("hidden", spec.hidden),
            ("intermediate", spec.intermediate),
            ("layers", u32::from(spec.layers)),
            ("heads", spec.heads),
            ("kv_heads", spec.kv_heads),
            ("head_dim", spec.head_dim),
            ("max_positions", spec.max_positions),
        ] {
            within(field, value.into(), value > 0 && value <= MAX_WIDTH, "in 1..=2^22")?;
        }
        let queries = u64::from(spec.heads) * u64::from(spec.head_dim);
        within("heads * head_dim", queries, queries <= MAX_WIDTH.into(), "at most 2^22")?;
        let groups = spec.heads.is_multiple_of(spec.kv_heads);
        within("kv_heads", spec.kv_heads.into(), groups, "a divisor of heads")?;
        within("head_dim", spec.head_dim.into(), spec.head_dim.is_multiple_of(2), "even")
    }

    fn check_floats(&self) -> Result<(), SetupError> {
        positive("norm_eps", self.spec.norm_eps)?;
        positive("rope_theta", self.spec.rope_theta)?;
        match self.spec.rope_scaling {
            RopeScaling::None => Ok(()),
            RopeScaling::Linear { factor } => positive("rope_scaling.factor", factor),
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, .. } => {
                positive("rope_scaling.factor", factor)?;
                positive("rope_scaling.low_freq_factor", low_freq_factor)?;
                positive("rope_scaling.high_freq_factor", high_freq_factor)
            }
        }
    }

    fn check_shared(&self) -> Result<(), SetupError> {
        let chunk = self.chunk_bytes;
        check_chunk_bytes(chunk)?;
        let layer_block = self.spec.layer_block_bytes();
        within("block_bytes", layer_block, layer_block <= chunk, "at most chunk_bytes")?;
        let layout = self.layout();
        let weights = u128::from(layout.global.bytes)
            + u128::from(layout.layer.bytes.next_multiple_of(chunk)) * u128::from(self.spec.layers);
        let chunks = [self.capacity_chunks, self.kv_chunks, self.activation_chunks, self.staging_chunks];
        let ranges: u128 = chunks.iter().map(|count| u128::from(*count) * u128::from(chunk)).sum();
        check_reserved(weights + ranges)?;
        let layer_blocks = u64::from(self.kv_chunks) * u64::from(self.layer_blocks_per_chunk());
        within("blocks", layer_blocks, layer_blocks < u64::from(u32::MAX), "below 2^32 - 1")?;
        for (field, value, most) in [
            ("max_rows", self.max_rows, 1 << 16),
            ("max_kv_blocks", self.max_kv_blocks, 1 << 20),
            ("max_history", self.max_history, 1 << 24),
            ("chunk_tokens", self.chunk_tokens, 1 << 24),
        ] {
            within(field, value.into(), value > 0 && value <= most, "above zero and within its limit")?;
        }
        let history = self.max_history.div_ceil(16);
        within(
            "max_kv_blocks",
            self.max_kv_blocks.into(),
            self.max_kv_blocks >= history,
            "max_history / 16 or more",
        )
    }
}

/// Refuses a chunk of another size than a range of pages.
pub(super) fn check_chunk_bytes(chunk: u64) -> Result<(), SetupError> {
    let page = chunk.is_power_of_two() && (4096..=1 << 30).contains(&chunk);
    within("chunk_bytes", chunk, page, "a power of two in 4 KiB..=1 GiB")
}

/// Refuses ranges of more than [`MAX_RESERVED_BYTES`].
pub(super) fn check_reserved(bytes: u128) -> Result<(), SetupError> {
    let reserved = u64::try_from(bytes).unwrap_or(u64::MAX);
    within("reserved bytes", reserved, reserved <= MAX_RESERVED_BYTES, "at most 16 TiB")
}

/// Refuses `value` unless `holds`.
pub(super) fn within(
    field: &'static str,
    value: u64,
    holds: bool,
    rule: &'static str,
) -> Result<(), SetupError> {
    if holds { Ok(()) } else { Err(SetupError::Field { field, value, rule }) }
}

fn positive(field: &'static str, value: f32) -> Result<(), SetupError> {
    if value.is_finite() && value > 0.0 { Ok(()) } else { Err(SetupError::Float(field)) }
}
