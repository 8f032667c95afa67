//! Payload of `PUT /v1/directive`: the sharing rules of a tenant and its peers, sent by the component that placed
//! them.
//!
//! **Order.** A directive carries a [`Fence`]: the epoch of the leader that wrote it and a sequence within it. A
//! sidecar accepts only a higher pair than the one it has, so that a replayed or a late one, or one of a deposed
//! leader, changes nothing.
//!
//! **Versions.** As in [`crate::message`], with [`VERSION`] as major. All fields of the first version are
//! required; later fields have a default with the earlier meaning. A sidecar stores a directive as it was received,
//! so that a later version of it reads fields that this one ignored.
//! Version 2 has the words of the glossary: `peers` was `neighbours`. Version 1 is read too.

mod check;

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

pub(crate) use self::check::check_name;
pub use self::check::{MAX_NAME_LENGTH, MAX_PEERS, MAX_UUID_LENGTH};
use crate::message::{self, ReadError};

/// Major of the message.
pub const VERSION: u32 = 2;

/// Sharing rules of one tenant and its peers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Directive {
    /// Major of this message, [`VERSION`].
    pub version: u32,
    /// Epoch of the leader that wrote it.
    pub epoch: u64,
    /// Rises with every directive of an epoch.
    pub sequence: u64,
    /// Named policy, as in `GpuPool.spec.policy`.
    pub policy: String,
    /// About the tenant that this is for.
    pub tenant: TenantRule,
    /// UUID of the GPU, as its driver publishes it, for metrics; `None` = not known.
    #[serde(default)]
    pub gpu_uuid: Option<String>,
    /// How the GPU is shared.
    pub sharing: Sharing,
    /// Victim rule among peers of equal activity and priority.
    pub victim: VictimRule,
    /// Time after the return of its layers in which a tenant is not asked for memory, milliseconds.
    pub min_residence_ms: u32,
    /// Time in which a borrower gives back what is revoked, milliseconds.
    pub revoke_bound_ms: u32,
    /// The other tenants of the GPU; never the one that this is for.
    #[serde(alias = "neighbours")]
    pub peers: Vec<PeerInfo>,
    /// Names of peers in the order of requests while their live state is unavailable, from the last reported
    /// idleness. Missing ones are last. [`VictimRule::FixedOrder`] ignores it.
    pub fallback_order: Vec<String>,
}

/// Place of a directive among others: by epoch, then by sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Fence {
    /// Epoch of the leader.
    pub epoch: u64,
    /// Sequence within the epoch.
    pub sequence: u64,
}

impl std::fmt::Display for Fence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "({}, {})", self.epoch, self.sequence)
    }
}

/// What a sidecar answers about the directive it has: with 200 after taking one, within the error of 409 after refusing
/// one that is not newer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CurrentFence {
    /// The directive in force.
    pub current: Fence,
}

/// The part of a directive that is about its own tenant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantRule {
    /// Higher is asked later and served earlier.
    pub priority: i32,
    /// Share of the layers that may be remapped, percent.
    pub max_remapped_percent: u32,
    /// Memory that it can hold without a loan, bytes; `None` = the last granted share, when the writer does not
    /// know one yet. A larger share takes effect once others have freed memory for it. It is never less than the
    /// tenant's minimum.
    #[serde(default)]
    pub share_bytes: Option<u64>,
    /// Idle time after which it gives up all device memory by itself, seconds; `None` = never.
    pub hibernate_after_seconds: Option<u32>,
    /// Time without a request after which it counts as idle, seconds.
    pub idle_after_seconds: u32,
}

/// How a GPU is shared. The CRDs have a type with a schema (`sluice_plan::spec_convert`). The scheduler has
/// `TimeSharing`, with times in nanoseconds and without the order, which the GPU ledger has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Sharing {
    /// One tenant at a time runs steps.
    Temporal {
        /// Order of the wait queue.
        order: SliceOrder,
        /// Minimum time slice while there is work, milliseconds.
        min_quantum_ms: u32,
        /// Maximum time slice while another tenant waits, milliseconds; it ends at the last step boundary before.
        max_quantum_ms: u32,
    },
    /// All run at once.
    Spatial,
    /// Each has a partition; nothing is traded.
    Isolated,
}

/// Order of the wait queue for time slices. The policy's `SliceOrder` adds after how many slices a priority ages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SliceOrder {
    /// The tenant that has waited longest.
    RoundRobin,
    /// The highest priority, with ageing.
    Priority,
}

/// Order in which peers are asked for memory. The policy has the same rule without serde: it depends on no crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum VictimRule {
    /// The tenant that ran last: with time slices it runs again last.
    MostRecentlyUsed,
    /// The tenant that has not run for longest.
    LeastRecentlyUsed,
    /// The order of [`Directive::peers`], with or without their live state. The writer of directives sorts
    /// them by name, as `GpuPool` promises.
    FixedOrder,
}

/// Another tenant of the GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerInfo {
    /// Its namespace.
    pub namespace: String,
    /// Its name; unique among peers.
    pub name: String,
    /// Uid of its pod; `None` = no cluster.
    pub pod_uid: Option<String>,
    /// Uid of the claim by which it has the GPU; `None` = no cluster.
    pub claim_uid: Option<String>,
    /// Its admin port.
    pub admin: SocketAddr,
    /// Its priority.
    pub priority: i32,
    /// Memory that it can hold without a loan, bytes.
    pub share_bytes: u64,
    /// What it can never lend while it is not hibernated, bytes.
    pub floor_bytes: u64,
}

impl Directive {
    /// Reads a message and checks it whole. The version is looked at first.
    ///
    /// # Errors
    /// No JSON, a newer major, or the first field that is not as it must be.
    pub fn from_json(text: &[u8]) -> Result<Directive, ReadError> {
        let directive: Directive = message::read(text, VERSION)?;
        directive.check()?;
        Ok(directive)
    }

    /// The message in the words of version 1, for a sidecar that knows no later one. It has all of it.
    ///
    /// # Errors
    /// None is known: the fields are plain data.
    pub fn to_json_v1(&self) -> serde_json::Result<Vec<u8>> {
        let mut message = serde_json::to_value(Directive { version: 1, ..self.clone() })?;
        if let Some(fields) = message.as_object_mut()
            && let Some(peers) = fields.remove("peers")
        {
            fields.insert("neighbours".into(), peers);
        }
        serde_json::to_vec(&message)
    }

    /// Its place among others.
    pub fn fence(&self) -> Fence {
        Fence { epoch: self.epoch, sequence: self.sequence }
    }
}
