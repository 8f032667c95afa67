//! One download into a folder at a time: pods of several tenants may have the same one on a shared volume.

use std::fs::{File, OpenOptions};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::DownloadError;

/// Name of the file that is locked; the sidecar reads no file that begins with a dot.
const LOCK_FILE: &str = ".sluice-lock";
/// How often a lock that somebody else has is asked for.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// After how many of these it is said again.
const LOG_EVERY_ATTEMPTS: u64 = 60;

/// A folder that nobody else downloads into. Ends with the process, however that ends.
#[derive(Debug)]
pub struct FolderLock {
    _file: File,
}

impl FolderLock {
    /// Waits until nobody else downloads into `folder`.
    ///
    /// # Errors
    /// The file, and why it cannot be made or locked.
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
                tracing::info!(folder = %folder.display(), "waiting for somebody else, who downloads into it");
            }
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
        unreachable!("one waits for as long as it takes")
    }
}
