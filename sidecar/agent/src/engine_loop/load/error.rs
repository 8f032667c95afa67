//! Why a tenant cannot be served, in terms of its configuration.

use std::path::PathBuf;

use sluice_link::error::LinkError;
use sluice_memory::gpu_ledger::LedgerError;
use sluice_memory::{HostError, HostWeightsError};
use sluice_policy::config_error::ConfigError;
use sluice_wire::config_rejection::ConfigRejection;

use crate::model::ModelError;
use crate::peers::membership::MembershipError;

/// Why a tenant cannot be served. Trying again does not help.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The model folder.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The configuration.
    #[error("{field}: {problem}")]
    Config {
        /// Field.
        field: &'static str,
        /// What is wrong.
        problem: String,
    },
    /// The device is too small, or the layout impossible.
    #[error("{fields}: {0}", fields = fields(.0))]
    Unsatisfiable(ConfigError),
    /// Host memory for the weights.
    #[error(transparent)]
    HostWeights(#[from] HostWeightsError),
    /// Memory that stands for the device's.
    #[error(transparent)]
    Memory(#[from] HostError),
    /// The link.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The GPU that it shares.
    #[error("the neighbourhood: {0}")]
    Membership(#[from] MembershipError),
    /// The ledger of that GPU, which grants nothing any more.
    #[error("the neighbourhood: {0}")]
    Ledger(LedgerError),
    /// A file.
    #[error("{}: {source}", path.display())]
    Io {
        /// File.
        path: PathBuf,
        /// The system's words.
        source: std::io::Error,
    },
    /// Told to stop before the first engine came.
    #[error("stopped while loading")]
    Stopped,
}

/// The fields of the configuration to look at: the policy knows sizes and not where they come from.
const fn fields(refused: &ConfigError) -> &'static str {
    match refused {
        ConfigError::FloorExceedsCapacity { .. } => ConfigRejection::OF_FLOOR,
        ConfigError::ContextDoesNotFit { .. } => {
            "memory.guaranteed_kv_bytes, memory.kv_limit_bytes, max_model_len"
        }
        ConfigError::BlockLargerThanChunk { .. } => "gpu.chunk_bytes",
        ConfigError::ZeroSize { .. } => "limits",
        ConfigError::TooManyLayers { .. } => "model_path",
        ConfigError::BadForced { .. } => "debug.force_remap",
        ConfigError::BadCap { .. } => "memory.max_remapped_percent",
    }
}

impl LoadError {
    /// Fields of the configuration to look at, separated by commas, and what is wrong with them; `None` where the
    /// configuration is not the reason.
    pub fn field_and_problem(&self) -> Option<(&'static str, String)> {
        match self {
            LoadError::Model(error) => Some(("model_path", error.to_string())),
            LoadError::Config { field, problem } => Some((field, problem.clone())),
            LoadError::Unsatisfiable(refused) => Some((fields(refused), refused.to_string())),
            _ => None,
        }
    }
}

pub(super) fn config_error(field: &'static str, problem: impl Into<String>) -> LoadError {
    LoadError::Config { field, problem: problem.into() }
}
