//! The answer of `GET /v1/state?scope=gpu`: the states of all tenants of one GPU, gathered by one sidecar.

use serde::{Deserialize, Serialize};

use super::{State, VERSION};
use crate::message::{self, ReadError};

/// The tenants of one GPU. Same major as the states in it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuState {
    /// Major of this message, [`VERSION`].
    pub version: u32,
    /// The queried sidecar, then its peers in the order of its directive.
    pub tenants: Vec<TenantReport>,
}

impl Default for GpuState {
    fn default() -> Self {
        GpuState { version: VERSION, tenants: Vec::new() }
    }
}

impl GpuState {
    /// Reads a message. The version is looked at first, so that a newer message is refused for being newer.
    ///
    /// # Errors
    /// No JSON, a field of another type, a newer major.
    pub fn from_json(text: &[u8]) -> Result<GpuState, ReadError> {
        message::read(text, VERSION)
    }
}

/// What is known of one tenant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum TenantReport {
    /// Its state, as it reports it.
    State(Box<State>),
    /// It gave none in time.
    Unreachable {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// Why, for people.
        reason: String,
    },
}
