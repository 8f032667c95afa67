//! Reasons why a tenant cannot be served, in terms of its configuration.

use std::path::PathBuf;

use sluice_link::error::LinkError;
use sluice_memory::backing::BackingError;
use sluice_memory::cuda;
use sluice_memory::gpu_ledger::LedgerError;
use sluice_memory::{HostWeightsError, MemoryError};
use sluice_policy::config_error::ConfigError;
use sluice_wire::config_rejection::ConfigRejection;

use crate::model::ModelError;
use crate::peers::membership::MembershipError;

/// Reason why a tenant cannot be served. A retry does not help.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The model folder is invalid.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The configuration is invalid.
    #[error("{field}: {problem}")]
    Config {
        /// Name of the field.
        field: &'static str,
        /// Problem with the field.
        problem: String,
    },
    /// The device is too small, or the layout is impossible.
    #[error("{fields}: {0}", fields = fields(.0))]
    Unsatisfiable(ConfigError),
    /// Host memory for the weights is not available.
    #[error(transparent)]
    HostWeights(#[from] HostWeightsError),
    /// The GPU cannot be used.
    #[error("gpu.cuda: {0}")]
    Gpu(#[from] cuda::Error),
    /// The memory of the GPU cannot be used.
    #[error("gpu.cuda: {0}")]
    Backing(#[from] BackingError),
    /// The memory backend failed to start.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The link failed.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The tenant cannot join its shared GPU.
    #[error("the ledger of the shared GPU: {0}")]
    Membership(#[from] MembershipError),
    /// The ledger of the shared GPU is damaged and grants nothing any more.
    #[error("the ledger of the shared GPU: {0}")]
    Ledger(LedgerError),
    /// A file or a thread is not available.
    #[error("{}: {source}", path.display())]
    Io {
        /// File, or a name of the resource.
        path: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
    /// Stopped before loading completed.
    #[error("stopped while loading")]
    Stopped,
}

/// Returns the configuration fields to check. The policy knows sizes but not which fields set them.
const fn fields(refused: &ConfigError) -> &'static str {
    match refused {
        ConfigError::FloorExceedsCapacity { .. } => ConfigRejection::OF_FLOOR,
        ConfigError::ContextDoesNotFit { .. } => {
            "memory.guaranteed_kv_bytes, memory.kv_limit_bytes, max_model_len"
        }
        ConfigError::LayerBlockLargerThanChunk { .. } => "gpu.chunk_bytes",
        ConfigError::ZeroSize { .. } => "limits",
        ConfigError::TooManyLayers { .. } => "model_path",
        ConfigError::BadForced { .. } => "debug.force_remap",
        ConfigError::BadCap { .. } => "memory.max_remapped_percent",
    }
}

impl LoadError {
    /// Returns the configuration fields to check, separated by commas, and the problem. `None` if the configuration is
    /// not the reason.
    pub fn field_and_problem(&self) -> Option<(&'static str, String)> {
        match self {
            LoadError::Model(error) => Some(("model_path", error.to_string())),
            LoadError::Config { field, problem } => Some((field, problem.clone())),
            LoadError::Unsatisfiable(refused) => Some((fields(refused), refused.to_string())),
            LoadError::Gpu(error) => Some(("gpu.cuda", error.to_string())),
            _ => None,
        }
    }
}

pub(super) fn config_error(field: &'static str, problem: impl Into<String>) -> LoadError {
    LoadError::Config { field, problem: problem.into() }
}
