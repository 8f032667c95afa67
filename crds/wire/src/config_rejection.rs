//! Why a sidecar refuses its configuration, for the process that started it: the fields of the configuration are
//! not those that a user wrote.

use serde::{Deserialize, Serialize};

/// Written into the sidecar's runtime folder before it ends with the exit status of a wrong configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigRejection {
    /// Fields of [`SidecarConfig`](crate::config::SidecarConfig) to look at, such as `gpu.memory_bytes`; may be empty.
    pub fields: Vec<String>,
    /// What is wrong with them.
    pub problem: String,
}

impl ConfigRejection {
    /// Name of the file.
    pub const FILE: &str = "refusal.json";

    /// The fields that decide how much device memory a tenant needs at least, and how much there is, separated by
    /// commas.
    pub const OF_FLOOR: &str =
        "gpu.memory_bytes, max_model_len, memory.guaranteed_kv_bytes, memory.max_remapped_percent";

    /// About `fields`, which are separated by commas.
    pub fn new(fields: &str, problem: impl Into<String>) -> Self {
        let fields = fields.split(", ").filter(|field| !field.is_empty()).map(str::to_owned).collect();
        ConfigRejection { fields, problem: problem.into() }
    }
}
