//! `cargo xtask bench policies`: the policies under the same load.

use anyhow::{Result, bail};

use crate::workspace::Workspace;

/// Options of `cargo xtask bench policies`.
#[derive(Clone, Debug, clap::Args)]
pub struct PolicyArgs {}

/// Refuses: the comparison is not built yet.
pub fn run(_workspace: &Workspace, _args: &PolicyArgs) -> Result<bool> {
    bail!("`cargo xtask bench policies` is not built yet")
}
