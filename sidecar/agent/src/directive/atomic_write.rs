//! Replaces a file atomically: after a crash at any point it has the complete old or the complete new content.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Completed step of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteStep {
    /// The new text is in a temporary file, perhaps only in the page cache.
    Written,
    /// The temporary file is on the disk.
    Synced,
    /// The temporary file is renamed. After a crash of the machine, the old file may be back.
    Renamed,
    /// The rename is on the disk.
    DirSynced,
}

/// Replaces the content of `path` by `text`.
pub fn replace(path: &Path, text: &[u8], witness: &WriteHook) -> io::Result<()> {
    let part = path.with_extension("json.part");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&part)?;
    file.write_all(text)?;
    witness(WriteStep::Written)?;
    file.sync_all()?;
    witness(WriteStep::Synced)?;
    std::fs::rename(&part, path)?;
    witness(WriteStep::Renamed)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()?;
    witness(WriteStep::DirSynced)
}

/// Runs after each step of a write, and may fail it. Tests use it to interrupt a write at any point.
pub type WriteHook = Box<dyn Fn(WriteStep) -> std::io::Result<()> + Send + Sync>;
