//! Lock of a folder: pods of several tenants may download into the same folder on a shared volume.

use std::fs::{File, OpenOptions};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::DownloadError;

/// Name of the lock file; the sidecar reads no file that begins with a dot.
const LOCK_FILE: &str = ".sluice-lock";
/// Interval between attempts to take the lock.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Attempts between two log lines.
const LOG_EVERY_ATTEMPTS: u64 = 60;

/// Exclusive lock of a folder. The kernel releases it when the process ends.
#[derive(Debug)]
pub struct FolderLock {
    _file: File,
}

impl FolderLock {
    /// Waits until no other process downloads into `folder`.
    ///
    /// # Errors
    /// The lock file cannot be created or locked.
    pub async fn acquire(folder: &Path) -> Result<FolderLock, DownloadError> {
        let path = folder.join(LOCK_FILE);
        let opened = OpenOptions::new().write(true).create(true).truncate(false).open(&path);
        let file = opened.map_err(DownloadError::file(&path))?;
        for waited in 0_u64.. {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(FolderLock { _file: file }),
                Err(Errno::WOULDBLOCK | Errno::INTR) => {}
                Err(error) => return Err(DownloadError::LockFailed { path, error: error.into() }),
            }
            if waited.is_multiple_of(LOG_EVERY_ATTEMPTS) {
                tracing::info!(
                    folder = %folder.display(),
                    "waiting for another process that downloads into this folder"
                );
            }
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
        unreachable!("the wait has no limit")
    }
}
