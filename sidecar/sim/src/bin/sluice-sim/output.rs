//! What a command has found, on standard output and in files, and what it says beside it.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Writes `text` and the end of its last line.
///
/// # Errors
/// It cannot be written. A reader that has gone, such as `head`, wants no more lines: that is none.
pub fn print(text: &str) -> Result<()> {
    match writeln!(std::io::stdout(), "{text}") {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.context("standard output"),
    }
}

/// Says something on standard error. Nobody may be left to read it.
pub fn print_status(text: &str) {
    drop(writeln!(std::io::stderr(), "{text}"));
}

/// Whether these files can be written, before anything long is run for them.
///
/// # Errors
/// Which one cannot.
pub fn check_writable(files: [&Option<PathBuf>; 2]) -> Result<()> {
    files.into_iter().flatten().try_for_each(|file| {
        OpenOptions::new()
            .create(true)
            .append(true)
            .open(file)
            .with_context(|| file.display().to_string())?;
        Ok(())
    })
}

/// Writes a file and says so.
///
/// # Errors
/// It cannot be written.
pub fn save(file: &Path, write: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    write(file).with_context(|| file.display().to_string())?;
    print_status(&format!("wrote {}", file.display()));
    Ok(())
}
