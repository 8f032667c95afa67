//! `sluice`, also `kubectl-sluice`: runs tenants, shows them, explains their state and measures them.
//!
//! It does not link the sidecar or the engine: it starts them as processes and reads their output.
//!
//! # Example
//!
//! ```
//! use sluice_cli::models::hub_model::HubModel;
//!
//! let model = HubModel::parse("HuggingFaceTB/SmolLM2-135M-Instruct@v1", "https://huggingface.co")?;
//! assert_eq!((model.repo.as_str(), model.revision.as_str()), ("HuggingFaceTB/SmolLM2-135M-Instruct", "v1"));
//! assert!(HubModel::parse("SmolLM2", "https://huggingface.co").is_err());
//! # Ok::<(), sluice_cli::models::hub_model::ModelNameError>(())
//! ```

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

/// An unusable configuration: a retry cannot succeed. Ends the process with [`EX_CONFIG`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Misconfigured(pub String);

/// Exit status of [`Misconfigured`] (sysexits.h), also between a sidecar and `sluice up`.
pub const EX_CONFIG: u8 = 78;

/// Prints a line on stdout.
///
/// # Errors
/// It cannot be written. A closed pipe, such as that of `head`, is no error.
fn print(line: impl Display) -> anyhow::Result<()> {
    match writeln!(std::io::stdout(), "{line}") {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.context("standard output"),
    }
}

/// Returns the current time, milliseconds since the Unix epoch.
fn now_unix_ms() -> u64 {
    unix_ms(SystemTime::now())
}
