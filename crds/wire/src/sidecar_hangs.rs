//! Sidecars of a tenant that hung and were killed. The killer counts them in a file, since a stopped process
//! reports
//! nothing, and the next sidecar reports the file in its state.

use std::io::{Error, ErrorKind, Read, Write};
use std::path::Path;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::time::{unix_ms, whole_ms};

/// Sidecars of one tenant that were killed because they hung.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SidecarHangs {
    /// How many, since the tenant's runtime folder was made.
    pub total: u64,
    /// When the last of them was killed, milliseconds since the Unix epoch.
    pub at_unix_ms: u64,
    /// How long it had not run, milliseconds.
    pub waited_ms: u64,
}

impl SidecarHangs {
    /// Name of the file in the tenant's runtime folder.
    pub const FILE: &str = "sidecar-hangs.json";
    /// A larger file is refused, and what cannot be true: an engine can write here.
    const MAX_BYTES: u64 = 4096;
    const MAX_TOTAL: u64 = 1_000_000;
    /// The clock may have been set back since the kill.
    const MAX_AHEAD_MS: u64 = 60_000;

    /// Reads the file in `folder`; `None` = there is no file.
    ///
    /// # Errors
    /// The file cannot be read, is larger than 4096 bytes, is not JSON of this kind, or has impossible values.
    pub fn read(folder: &Path) -> std::io::Result<Option<SidecarHangs>> {
        let path = folder.join(Self::FILE);
        let found = match std::fs::symlink_metadata(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            found => found?,
        };
        // To open a pipe would wait for its writer.
        if !found.is_file() {
            return Err(Error::new(ErrorKind::InvalidData, "not a regular file"));
        }
        let mut json = Vec::new();
        std::fs::File::open(&path)?.take(Self::MAX_BYTES + 1).read_to_end(&mut json)?;
        if json.len() as u64 > Self::MAX_BYTES {
            return Err(Error::new(ErrorKind::InvalidData, "larger than 4096 bytes"));
        }
        let hangs: SidecarHangs = serde_json::from_slice(&json)?;
        if hangs.total > Self::MAX_TOTAL
            || hangs.at_unix_ms > unix_ms(SystemTime::now()).saturating_add(Self::MAX_AHEAD_MS)
        {
            return Err(Error::new(ErrorKind::InvalidData, "a count or time is not valid"));
        }
        Ok(Some(hangs))
    }

    /// Counts a sidecar that did not run for `waited` and is killed now. A file that cannot be read is replaced.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn record(folder: &Path, waited: Duration) -> std::io::Result<()> {
        let before = Self::read(folder).ok().flatten().unwrap_or_default();
        let (total, at_unix_ms) = (before.total.saturating_add(1), unix_ms(SystemTime::now()));
        let counted = SidecarHangs { total, at_unix_ms, waited_ms: whole_ms(waited) };
        let (path, next) = (folder.join(Self::FILE), folder.join(format!("{}.next", Self::FILE)));
        // What stands there is not opened: it may be a pipe or a link.
        let _ = std::fs::remove_file(&next);
        std::fs::File::create_new(&next)?.write_all(&serde_json::to_vec(&counted)?)?;
        std::fs::rename(next, path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sidecar_that_is_killed_is_counted_and_the_last_is_described() {
        let folder = tempfile::tempdir().unwrap();
        let read = || SidecarHangs::read(folder.path());
        assert_eq!(read().unwrap(), None);
        SidecarHangs::record(folder.path(), Duration::from_millis(12_500)).unwrap();
        SidecarHangs::record(folder.path(), Duration::from_secs(13)).unwrap();
        let hangs = read().unwrap().unwrap();
        assert_eq!((hangs.total, hangs.waited_ms), (2, 13_000));
        assert!(hangs.at_unix_ms > 1_700_000_000_000, "{hangs:?}");
    }

    #[test]
    fn invalid_file_is_refused_and_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let (path, read) = (folder.path().join(SidecarHangs::FILE), || SidecarHangs::read(folder.path()));
        let future = format!("{{\"total\": 1, \"at_unix_ms\": {}}}", i64::MAX);
        for text in [
            "7",
            &future,
            "{\"total\": 18446744073709551615}",
            "{\"total\": -1}",
            &format!("{{\"total\": 1{}}}", " ".repeat(5000)),
        ] {
            std::fs::write(&path, text).unwrap();
            read().unwrap_err();
            SidecarHangs::record(folder.path(), Duration::from_secs(13)).unwrap();
            assert_eq!(read().unwrap().unwrap().total, 1);
        }
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert_eq!(read().unwrap_err().to_string(), "not a regular file");
        std::fs::remove_dir(&path).unwrap();
        let elsewhere = folder.path().join("elsewhere");
        std::os::unix::fs::symlink(&elsewhere, folder.path().join("sidecar-hangs.json.next")).unwrap();
        SidecarHangs::record(folder.path(), Duration::from_secs(13)).unwrap();
        assert!(!elsewhere.exists(), "a link is not followed");
        assert_eq!(read().unwrap().unwrap().total, 1);
    }
}
