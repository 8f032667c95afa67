//! The answer of `GET /v1/overview` on the operator's read API: the leader's view of every GPU, or with
//! `?namespace=NAME` of those of one namespace, and with `&tenant=NAME` of those that have a slot of one tenant.
//!
//! The API listens only on the loopback address of the leader's pod: the right to forward a port there is the right
//! to read. Versions are those of [`state`](crate::state): within a major, fields are only added.

use serde::{Deserialize, Serialize};

use crate::message::{self, ReadError};
use crate::state::TenantReport;

/// Major of the message.
pub const VERSION: u32 = 2;
/// Path of the message.
pub const PATH: &str = "/v1/overview";
/// Port of the read API, on the loopback address of the leader's pod.
pub const PORT: u16 = 8003;

/// All GPUs of all pools.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Overview {
    /// Major of this message, [`VERSION`].
    pub version: u32,
    /// When this was written, milliseconds since the Unix epoch.
    pub at_unix_ms: u64,
    /// Version of the operator.
    pub operator: String,
    /// The GPUs with slots, by namespace, pool and name.
    pub gpus: Vec<GpuOverview>,
}

impl Default for Overview {
    fn default() -> Self {
        Overview { version: VERSION, at_unix_ms: 0, operator: String::new(), gpus: Vec::new() }
    }
}

impl Overview {
    /// Reads a message. The version is looked at first, so that a newer message is refused for being newer.
    ///
    /// # Errors
    /// No JSON, a field of another type, a newer major.
    pub fn from_json(text: &[u8]) -> Result<Overview, ReadError> {
        message::read(text, VERSION)
    }
}

/// One GPU, as last reported by one of its sidecars.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuOverview {
    /// Namespace of its pool.
    pub namespace: String,
    /// Its pool.
    pub pool: String,
    /// Its name in the pool.
    pub name: String,
    /// Node that it is on; `None` = not known yet.
    pub node: Option<String>,
    /// When its sidecars were read last, milliseconds since the Unix epoch; `None` = never.
    pub read_unix_ms: Option<u64>,
    /// Why the last reading failed; `None` = it did not.
    pub problem: Option<String>,
    /// Its tenants as they were read last.
    pub tenants: Vec<TenantReport>,
}
