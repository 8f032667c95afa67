//! [`Role`].

use crate::Error;
use crate::bench::ProbeOptions;
use crate::child_process::ParentPipe;

/// The work of a child process of a check.
pub type Role = fn(ProbeOptions, &ParentPipe) -> Result<(), Error>;
