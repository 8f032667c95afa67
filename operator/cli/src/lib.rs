//! `sluice`, also `kubectl-sluice`: run tenants, watch them, say why they are as they are, measure them.
//!
//! What it does not do: link the sidecar or the engine. It starts them as processes and reads what they write.

mod admin;
pub mod bench;
mod child;
mod chunk_size;
pub mod cluster;
pub mod command;
pub mod demo;
pub mod explain;
pub mod inspect;
mod manifests;
pub mod models;
pub mod plan;
pub mod run;
pub mod runtime_dir;
pub mod sibling_binaries;
pub mod sleep;
mod terminal;
pub mod top;
pub mod up;

use std::fmt::Display;
use std::io::{ErrorKind, Write};
use std::time::SystemTime;

use anyhow::Context;
use sluice_wire::time::unix_ms;

/// A configuration that cannot be used: trying again will not help. Ends the process with [`EX_CONFIG`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Misconfigured(pub String);

/// Exit status of [`Misconfigured`] (sysexits.h), also between a sidecar and `sluice up`.
pub const EX_CONFIG: u8 = 78;

/// A line on stdout.
///
/// # Errors
/// It cannot be written. A reader that has gone, such as `head`, wants no more lines: that is none.
fn print(line: impl Display) -> anyhow::Result<()> {
    match writeln!(std::io::stdout(), "{line}") {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.context("standard output"),
    }
}

/// Now, milliseconds since the Unix epoch.
fn now_unix_ms() -> u64 {
    unix_ms(SystemTime::now())
}
