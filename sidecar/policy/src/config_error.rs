//! Errors of a configuration under which a tenant cannot run.

use core::fmt;

use crate::geometry::MIB;
use crate::layer_set::MAX_LAYERS;

/// Why [`crate::memory_manager::MemoryManager::new`] failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConfigError {
    /// A layer block does not fit into a chunk.
    LayerBlockLargerThanChunk {
        /// Bytes of a layer block.
        layer_block_bytes: u64,
        /// Bytes of a chunk.
        chunk_bytes: u64,
    },
    /// A size that must not be zero is zero.
    ZeroSize {
        /// Its name in the geometry or the parameters.
        what: &'static str,
    },
    /// The model has more layers than a layer set can hold ([`crate::layer_set::MAX_LAYERS`]).
    TooManyLayers {
        /// Layers of the model.
        layers: usize,
    },
    /// The tenant's floor does not fit its capacity.
    FloorExceedsCapacity {
        /// Bytes of the floor: weights (except what may be remapped), slots, activations, staging, guaranteed KV.
        floor_bytes: u64,
        /// Bytes of the capacity.
        capacity_bytes: u64,
    },
    /// A request of maximum length does not fit the guaranteed KV.
    ContextDoesNotFit {
        /// Bytes of KV of `max_model_tokens` tokens.
        needed_bytes: u64,
        /// Bytes of guaranteed KV, within the KV limit.
        guaranteed_bytes: u64,
    },
    /// The forced layout is impossible for this model.
    BadForced {
        /// Layers to free.
        alpha: u16,
        /// Slots.
        beta: u8,
        /// Layers of the model.
        layers: u16,
    },
    /// The remapping cap is above 1000 permille.
    BadCap {
        /// The cap, permille.
        permille: u32,
    },
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigError::LayerBlockLargerThanChunk { layer_block_bytes, chunk_bytes } => {
                write!(
                    f,
                    "a KV block has {layer_block_bytes} bytes, more than a chunk of {chunk_bytes} bytes"
                )
            }
            ConfigError::ZeroSize { what } => write!(f, "{what} must not be zero"),
            ConfigError::TooManyLayers { layers } => {
                write!(f, "the model has {layers} layers; at most {MAX_LAYERS} are supported")
            }
            ConfigError::FloorExceedsCapacity { floor_bytes, capacity_bytes } => {
                let needed_mib = floor_bytes.div_ceil(MIB);
                write!(
                    f,
                    "the tenant needs at least {needed_mib} MiB ({floor_bytes} bytes) and may hold {} MiB ({capacity_bytes} \
                     bytes)",
                    capacity_bytes / MIB
                )
            }
            ConfigError::ContextDoesNotFit { needed_bytes, guaranteed_bytes } => {
                write!(
                    f,
                    "one request of maximum length needs {needed_bytes} bytes of KV, but only \
                     {guaranteed_bytes} bytes are guaranteed"
                )
            }
            ConfigError::BadForced { alpha, beta, layers } => {
                write!(
                    f,
                    "a layout that frees {alpha} layers with {beta} slots is impossible for {layers} layers"
                )
            }
            ConfigError::BadCap { permille } => {
                write!(f, "the remapping cap is {permille} permille, more than 1000")
            }
        }
    }
}

impl core::error::Error for ConfigError {}
