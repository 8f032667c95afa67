//! Replacing a file so that after a crash at any point it is the old one or the new one, whole.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::WriteHook;

/// A step of a write that is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteStep {
    /// The new text lies beside the old file, perhaps only in the page cache.
    Written,
    /// And on the disk.
    Synced,
    /// It has the name; after a crash of the machine it may still have the other one.
    Renamed,
    /// Whatever happens, it has the name.
    DirSynced,
}

/// Replaces `path` by `text`.
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
