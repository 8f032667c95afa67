//! Communication with the other sidecars of the GPU.

pub mod admin_call;
pub mod client;
pub mod full_name;
pub mod grant_client;
pub mod ledger_watch;
pub mod loan_denied;
pub mod membership;
pub mod peer_port;
pub mod pending_replies;
pub mod quota;
pub mod state_cache;
pub mod takeovers;
pub mod time_slice_thread;

/// Converts milliseconds of a message to nanoseconds of the scheduler.
pub(crate) fn ns(ms: impl Into<u64>) -> u64 {
    ms.into().saturating_mul(1_000_000)
}

/// Converts nanoseconds of the scheduler to whole milliseconds of a message.
pub(crate) fn ms(ns: u64) -> u64 {
    ns / 1_000_000
}
