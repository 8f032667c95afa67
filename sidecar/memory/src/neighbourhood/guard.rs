//! The mapped ledger and the lock under which it is checked and changed.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::count::Living;
use super::error::{LedgerError, kernel};
use super::layout::header;
use super::locks;
use super::record::{self, Record};
use super::words::Words;

/// What a process has of the neighbourhood.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) words: Words,
    /// The description that takes the guard; it never holds anything else.
    guard: OwnedFd,
    path: PathBuf,
    locks_path: PathBuf,
    /// A description is one holder, so the threads that share it exclude each other here.
    threads: Mutex<()>,
}

/// The guard, held.
pub(super) struct Guard<'a> {
    file: BorrowedFd<'a>,
    _thread: MutexGuard<'a, ()>,
}

impl Shared {
    pub(super) fn new(words: Words, guard: OwnedFd, path: PathBuf, locks_path: PathBuf) -> Shared {
        Shared { words, guard, path, locks_path, threads: Mutex::new(()) }
    }

    /// Waits for the guard. Its holder does no more than read and write some words, and its death frees it.
    pub(super) fn lock(&self) -> Result<Guard<'_>, LedgerError> {
        // Nothing is kept behind this mutex, so a panic under it breaks nothing.
        let thread = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        locks::lock(self.guard.as_fd(), locks::GUARD).map_err(kernel("fcntl(F_OFD_SETLKW)"))?;
        Ok(Guard { file: self.guard.as_fd(), _thread: thread })
    }

    pub(super) fn record(&self, index: u32) -> Record<'_> {
        Record::new(&self.words, index)
    }

    /// Whether a process holds the description of record `index`.
    pub(super) fn lives(&self, index: u32) -> Result<bool, LedgerError> {
        locks::is_held(self.guard.as_fd(), locks::life(index)).map_err(kernel("fcntl(F_OFD_GETLK)"))
    }

    pub(super) fn turn_is_taken(&self) -> Result<bool, LedgerError> {
        locks::is_held(self.guard.as_fd(), locks::TURN).map_err(kernel("fcntl(F_OFD_GETLK)"))
    }

    /// The participants that live.
    pub(super) fn living(&self) -> Result<Living, LedgerError> {
        let mut living = Living::default();
        for record in record::all(&self.words).filter(|record| record.instance() != 0) {
            if self.lives(record.index)? {
                living.insert(record.index);
            }
        }
        Ok(living)
    }

    pub(super) fn capacity_bytes(&self) -> u64 {
        self.words.load(header::CAPACITY)
    }

    pub(super) fn locks_path(&self) -> &Path {
        &self.locks_path
    }

    /// Whether the mapped file is still the one in the folder.
    pub(super) fn is_current(&self) -> Result<bool, LedgerError> {
        let mapped = self.words.stat().map_err(kernel("fstat"))?;
        match rustix::fs::stat(&self.path) {
            Ok(found) => Ok((found.st_dev, found.st_ino) == (mapped.st_dev, mapped.st_ino)),
            Err(rustix::io::Errno::NOENT) => Ok(false),
            Err(error) => Err(kernel("stat")(error)),
        }
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        let result = locks::unlock(self.file, locks::GUARD);
        assert!(result.is_ok(), "a lock that is held can be given back: {result:?}");
    }
}
