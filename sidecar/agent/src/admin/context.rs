//! [`Admin`]: what all handlers of the admin port share.

use std::sync::Arc;

use super::auth::Access;
use crate::directive::DirectiveStore;
use crate::peers::client::PeerClient;
use crate::scheduler_handle::SchedulerHandle;

/// Everything that the admin port serves.
#[derive(Clone, Debug)]
pub struct Admin {
    /// Handle of the scheduler.
    pub service: SchedulerHandle,
    /// Callers that are admitted, and their roles.
    pub access: Access,
    /// Store of the directive in force.
    pub directives: Arc<DirectiveStore>,
    /// Client for calls to peers.
    pub peers: Arc<PeerClient>,
    /// Namespace of the tenant.
    pub namespace: String,
    /// Name of the tenant.
    pub name: String,
    /// Chunk size of the GPU in bytes: the unit of grants.
    pub chunk_bytes: u64,
}
