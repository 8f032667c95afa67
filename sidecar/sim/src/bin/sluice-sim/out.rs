//! Standard output: what a command has found.

use std::io::{ErrorKind, Write};

use anyhow::{Context, Result};

/// Writes `text` and the end of its last line.
///
/// # Errors
/// It cannot be written. A reader that has gone, such as `head`, wants no more lines: that is none.
pub fn say(text: &str) -> Result<()> {
    match writeln!(std::io::stdout(), "{text}") {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.context("standard output"),
    }
}
