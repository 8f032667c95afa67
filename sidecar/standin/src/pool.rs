//! Device memory: a bounded folder of files that processes share.
//!
//! Each piece of memory is a file with a lock on its open file description. Descriptors in other processes refer to the
//! same description, and a mapping holds it too, so the kernel drops the lock exactly when the last of them is
//! released, even if processes are killed. The function that counts memory removes unlocked files.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{FlockOperation, flock};

use crate::abi::code;

/// Device memory in a folder.
pub struct Pool {
    folder: PathBuf,
    capacity: u64,
}

/// Number of the next file of this process.
static NEXT: AtomicU64 = AtomicU64::new(0);

impl Pool {
    /// Opens the pool in `folder`, with `capacity` bytes.
    pub fn open(folder: &Path, capacity: u64) -> Self {
        Self { folder: folder.to_owned(), capacity }
    }

    /// Returns the bytes of the device.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Allocates `bytes`: a file of that length, filled with zeros, that is locked until its last reference is dropped.
    pub fn allocate(&self, bytes: u64) -> Result<File, u32> {
        let _lock = self.lock().map_err(failed)?;
        if self.used().map_err(failed)? + bytes > self.capacity {
            return Err(code::OUT_OF_MEMORY);
        }
        self.create(bytes).map_err(failed)
    }

    /// Returns the free bytes.
    pub fn free(&self) -> Result<u64, u32> {
        let _lock = self.lock().map_err(failed)?;
        Ok(self.capacity.saturating_sub(self.used().map_err(failed)?))
    }

    fn create(&self, bytes: u64) -> io::Result<File> {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = self.folder.join(format!("memory-{}-{number}", std::process::id()));
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(path)?;
        flock(file.as_fd(), FlockOperation::NonBlockingLockExclusive)?;
        file.set_len(bytes)?;
        Ok(file)
    }

    /// Adds up the locked files and removes the others. The caller has locked the pool.
    fn used(&self) -> io::Result<u64> {
        let mut used = 0;
        for entry in self.folder.read_dir()? {
            let path = entry?.path();
            if !path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"memory-")) {
                continue;
            }
            let file = File::open(&path)?;
            match flock(file.as_fd(), FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => std::fs::remove_file(path)?,
                Err(_) => used += file.metadata()?.len(),
            }
        }
        Ok(used)
    }

    fn lock(&self) -> io::Result<File> {
        let path = self.folder.join("lock");
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        flock(file.as_fd(), FlockOperation::LockExclusive)?;
        Ok(file)
    }
}

fn failed(_: io::Error) -> u32 {
    code::OPERATING_SYSTEM
}

#[cfg(test)]
mod tests {
    use super::Pool;
    use crate::abi::code;

    #[test]
    fn memory_is_bounded_and_free_again_when_the_last_holder_is_gone() {
        let folder = tempfile::tempdir().expect("a folder");
        let pool = Pool::open(folder.path(), 100);
        // Another process has its own pool object for the same folder.
        let other = Pool::open(folder.path(), 100);
        let first = pool.allocate(60).expect("there is room");
        assert_eq!(other.free(), Ok(40));
        assert_eq!(other.allocate(60).map(drop), Err(code::OUT_OF_MEMORY));

        let passed_on = first.try_clone().expect("a second descriptor");
        drop(first);
        assert_eq!(pool.free(), Ok(40), "the second descriptor holds it");
        drop(passed_on);
        assert_eq!(pool.free(), Ok(100));
        assert_eq!(std::fs::read_dir(folder.path()).expect("the folder").count(), 1, "only the lock is left");
    }
}
