//! Connections to sidecars: sends directives and reads states.
//!
//! | piece | what it does |
//! |---|---|
//! | [`tls`] | mutual TLS with the operator's own certificate; a sidecar must have the name of its tenant |
//! | [`http_client`] | one request per connection, with a limit on concurrent requests |
//! | [`pusher`] | sends each sidecar its directive until it is accepted |
//! | [`leader_conflict`] | raises the epoch above one that a sidecar follows and the Lease does not have |
//! | [`poller`] | reads the states of all tenants of a GPU from one sidecar, with an ETag |
//! | [`SidecarRegistry`] | the sidecars and their last reports |

mod gpu_reading;
pub mod http_client;
pub mod leader_conflict;
pub mod poller;
pub mod pusher;
mod registry;
mod sidecar_event;
pub mod tls;

pub use self::gpu_reading::{GpuKey, GpuReading, PollResult};
pub use self::registry::{DirectiveTarget, GpuRead, GpuSidecars, INITIAL_READ_TIMEOUT, SidecarRegistry};
pub use self::sidecar_event::SidecarEvent;
