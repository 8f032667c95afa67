//! Why a sidecar cannot be what it was told to be, for whoever told it: the fields of its configuration are not those
//! that a user wrote.

use serde::{Deserialize, Serialize};

/// Written into the sidecar's runtime folder before it ends with the exit status of a wrong configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// Fields of [`SidecarConfig`](crate::config::SidecarConfig) to look at, such as `gpu.memory_bytes`; may be empty.
    pub fields: Vec<String>,
    /// What is wrong with them.
    pub problem: String,
}

impl Refusal {
    /// Name of the file.
    pub const FILE: &str = "refusal.json";
}
