//! Putting a binary into the folder: all of it or none, and by one run at a time.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;

use anyhow::{Context, Result, bail};
use cargo_metadata::camino::{Utf8Path, Utf8PathBuf};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// Locks the folder until the value is dropped; waits for another run that holds it.
pub fn lock(folder: &Utf8Path) -> Result<File> {
    let path = Utf8PathBuf::from(format!("{folder}.lock"));
    let file = File::create(&path).with_context(|| format!("creating {path}"))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => {
            eprintln!("waiting for another run that gets the same binaries ({path})");
            flock(&file, FlockOperation::LockExclusive).with_context(|| format!("locking {path}"))?;
        }
        other => other.with_context(|| format!("locking {path}"))?,
    }
    Ok(file)
}

/// Returns a path next to the binary's for a draft of it. Removes the draft of an earlier run.
pub fn draft(folder: &Utf8Path, name: &str) -> Result<Utf8PathBuf> {
    let path = folder.join(format!(".{name}.draft"));
    match fs::remove_file(&path).or_else(|_| fs::remove_dir_all(&path)) {
        Err(error) if path.exists() => bail!("removing {path}: {error}"),
        _ => Ok(path),
    }
}

/// Makes the draft the binary, in one rename.
pub fn install(draft: &Utf8Path, folder: &Utf8Path, name: &str) -> Result<()> {
    fs::set_permissions(draft, Permissions::from_mode(0o755)).with_context(|| format!("chmod {draft}"))?;
    let path = folder.join(name);
    fs::rename(draft, &path).with_context(|| format!("renaming {draft} to {path}"))
}
