//! `sluice`, also `kubectl-sluice`: run tenants, watch them, measure them.
//!
//! What it does not do: link the sidecar or the engine. It starts them as processes and reads what they write.

mod admin;
pub mod bench;
pub mod command;
pub mod runtime;
pub mod siblings;
pub mod top;
pub mod up;

/// A configuration that cannot be used: trying again will not help. Ends the process with [`EX_CONFIG`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Misconfigured(pub String);

/// Exit status of [`Misconfigured`] (sysexits.h), also between a sidecar and `sluice up`.
pub const EX_CONFIG: u8 = 78;
