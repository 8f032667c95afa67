//! The other sidecars of the GPU: asking them, and what they ask.

pub mod call;
pub mod client;
pub mod desk;
pub mod heard;
pub mod office;
pub mod place;
pub mod quota;
pub mod refusal;
pub mod shell;
pub mod takeovers;
pub mod turns;
pub mod watch;

/// Milliseconds of a message as nanoseconds of the scheduler.
pub(crate) fn ns(ms: impl Into<u64>) -> u64 {
    ms.into().saturating_mul(1_000_000)
}

/// Nanoseconds of the scheduler as whole milliseconds of a message.
pub(crate) fn ms(ns: u64) -> u64 {
    ns / 1_000_000
}
