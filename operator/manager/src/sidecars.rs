//! The way to sidecars: directives go out, states come in.
//!
//! | piece | what it does |
//! |---|---|
//! | [`tls`] | mutual TLS by the operator's own certificate; a sidecar must have the name of its tenant |
//! | [`http_client`] | one request over one connection, which is closed after it; so many at a time |
//! | [`pusher`] | gives each sidecar its directive until it has it |
//! | [`leader_conflict`] | goes beyond a leader that a sidecar follows and the Lease does not know of |
//! | [`poller`] | asks one sidecar of each GPU for the states of all, with an ETag |
//! | [`SidecarRegistry`] | which sidecars there are, and what they said last |

pub mod http_client;
pub mod leader_conflict;
pub mod poller;
pub mod pusher;
mod registry;
pub mod tls;

pub use self::registry::{
    DirectiveTarget, GpuKey, GpuRead, GpuReading, GpuSidecars, INITIAL_READ_TIMEOUT, SidecarEvent,
    SidecarRegistry,
};
