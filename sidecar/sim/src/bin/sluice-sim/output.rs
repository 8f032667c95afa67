//! Writes results to standard output and files, and status messages to standard error.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Writes `text` and a newline.
///
/// # Errors
/// If the text cannot be written. A closed reader, such as `head`, is not an error.
pub fn print(text: &str) -> Result<()> {
    match writeln!(std::io::stdout(), "{text}") {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.context("standard output"),
    }
}

/// Writes a status message to standard error, and ignores a closed reader.
pub fn print_status(text: &str) {
    drop(writeln!(std::io::stderr(), "{text}"));
}

/// Checks that these files can be written, before a long run starts.
///
/// # Errors
/// The file that cannot be written.
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

/// Writes a file and reports its name on standard error.
///
/// # Errors
/// If the file cannot be written.
pub fn save(file: &Path, write: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    write(file).with_context(|| file.display().to_string())?;
    print_status(&format!("wrote {}", file.display()));
    Ok(())
}
