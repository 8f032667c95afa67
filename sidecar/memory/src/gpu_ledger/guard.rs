//! The mapped ledger and the guard, the lock under which it is checked and changed.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::Duration;

use super::error::{LedgerError, kernel_error};
use super::layout::header;
use super::live_set::LiveSet;
use super::locks::{self, GUARD_TIMEOUT};
use super::mapped_words::MappedWords;
use super::record::{self, Record};
use crate::fence::FencePage;

/// The files and locks of the ledger that a process has open.
#[derive(Debug)]
pub(super) struct LedgerFiles {
    pub(super) words: MappedWords,
    /// Current epoch of the time slice, in the lock file.
    pub(super) fence: FencePage,
    /// Description that locks the guard and no other byte.
    guard: OwnedFd,
    path: PathBuf,
    locks_path: PathBuf,
    /// Serializes the threads of this process: they share one description, and the locks of one description
    /// do not conflict with each other.
    thread_lock: Mutex<()>,
}

/// The guard, held until drop.
pub(super) struct Guard<'a> {
    file: BorrowedFd<'a>,
    _thread: MutexGuard<'a, ()>,
}

impl LedgerFiles {
    pub(super) fn new(
        (words, fence): (MappedWords, FencePage),
        guard: OwnedFd,
        (path, locks_path): (PathBuf, PathBuf),
    ) -> LedgerFiles {
        LedgerFiles { words, fence, guard, path, locks_path, thread_lock: Mutex::new(()) }
    }

    /// Takes the guard for the instance `by` (0 = no instance yet). Fails after [`GUARD_TIMEOUT`], because
    /// the holder may be frozen.
    pub(super) fn lock(&self, by: u64) -> Result<Guard<'_>, LedgerError> {
        self.lock_within(GUARD_TIMEOUT, by)
    }

    /// As [`LedgerFiles::lock`], with the timeout `patience`. With a zero timeout it tries once.
    pub(super) fn lock_within(&self, patience: Duration, by: u64) -> Result<Guard<'_>, LedgerError> {
        let guard = self.lock_unchecked(patience)?;
        self.words.check_file()?;
        self.words.store_unhooked(header::GUARD_HOLDER, by);
        Ok(guard)
    }

    /// Takes the guard even if the ledger is damaged.
    pub(super) fn lock_unchecked(&self, patience: Duration) -> Result<Guard<'_>, LedgerError> {
        let mut thread = None;
        let taken = locks::retry_within(patience, || {
            thread = thread.take().or_else(|| self.try_thread_lock());
            Ok(thread.is_some() && locks::try_lock(self.guard.as_fd(), locks::GUARD)?)
        });
        match (taken.map_err(kernel_error("fcntl(F_OFD_SETLK)"))?, thread) {
            (true, Some(thread)) => Ok(Guard { file: self.guard.as_fd(), _thread: thread }),
            _ => Err(LedgerError::Busy { holder: self.holder(), waited_ms: patience.as_millis() as u64 }),
        }
    }

    /// This mutex protects no data, so a poisoned one is usable.
    fn try_thread_lock(&self) -> Option<MutexGuard<'_, ()>> {
        match self.thread_lock.try_lock() {
            Ok(thread) => Some(thread),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Describes the last holder of the guard, for messages. A process id would be useless, because pods have
    /// their own PID namespaces.
    fn holder(&self) -> String {
        let instance = self.words.load(header::GUARD_HOLDER);
        let record =
            Some(instance).filter(|one| *one != 0).and_then(|one| record::of_instance(&self.words, one));
        record.map_or_else(
            || "a process without a record".to_owned(),
            |record| format!("{} (record {})", record.name(), record.index),
        )
    }

    pub(super) fn record(&self, index: u32) -> Record<'_> {
        Record::new(&self.words, index)
    }

    /// Whether a process has the open file description of record `index`.
    pub(super) fn is_live(&self, index: u32) -> Result<bool, LedgerError> {
        locks::is_held(self.guard.as_fd(), locks::liveness_byte(index))
            .map_err(kernel_error("fcntl(F_OFD_GETLK)"))
    }

    /// Whether a process has the open file description that took the current time slice, and has not released
    /// the slice.
    pub(super) fn is_slice_locked(&self) -> Result<bool, LedgerError> {
        let bytes = locks::slice_byte(self.fence.epoch());
        locks::is_held(self.guard.as_fd(), bytes).map_err(kernel_error("fcntl(F_OFD_GETLK)"))
    }

    /// Returns the live participants.
    pub(super) fn live_set(&self) -> Result<LiveSet, LedgerError> {
        let mut living = LiveSet::default();
        for record in record::all(&self.words).filter(|record| record.instance() != 0) {
            if self.is_live(record.index)? {
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
        let mapped = self.words.stat().map_err(kernel_error("fstat"))?;
        match rustix::fs::stat(&self.path) {
            Ok(found) => Ok((found.st_dev, found.st_ino) == (mapped.st_dev, mapped.st_ino)),
            Err(rustix::io::Errno::NOENT) => Ok(false),
            Err(error) => Err(kernel_error("stat")(error)),
        }
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        let result = locks::unlock(self.file, locks::GUARD);
        assert!(result.is_ok(), "a lock that is held can be given back: {result:?}");
    }
}
