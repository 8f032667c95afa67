//! The mapped ledger file as atomic words.
//!
//! Every store is a release and every load an acquire: a reader of a word sees all earlier writes of its
//! writer. Words that commit others (an instance, a nonce) are therefore written last and cleared first.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::fs::{Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use super::error::{LedgerError, kernel_error};
use super::faults::LedgerFaults;
use super::layout::{FILE_BYTES, FILE_WORDS, MAGIC, header};
use crate::truncation_guard::TruncationGuard;

/// The whole ledger file, in a shared mapping.
#[derive(Debug)]
pub(super) struct MappedWords {
    base: *mut AtomicU64,
    file: OwnedFd,
    /// Records that an access touched a truncated part of the file.
    truncation_guard: TruncationGuard,
    /// Why the file is no longer a ledger.
    file_damage: OnceLock<&'static str>,
    /// Mismatch found in this process's record.
    record_damage: OnceLock<&'static str>,
    pub(super) faults: LedgerFaults,
}

// SAFETY: the mapping exists as long as the value, and its words are accessed only as atomics.
unsafe impl Send for MappedWords {}
// SAFETY: as above; atomics may be shared between threads.
unsafe impl Sync for MappedWords {}

impl MappedWords {
    /// Maps the file at `path`. Returns `None` if its length is not that of a ledger file.
    pub(super) fn map(path: &Path, faults: LedgerFaults) -> Result<Option<MappedWords>, Errno> {
        let file = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        if rustix::fs::fstat(&file)?.st_size != FILE_BYTES as i64 {
            return Ok(None);
        }
        // SAFETY: a new mapping at an address that the kernel chooses overlaps no existing mapping.
        let base = unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            rustix::mm::mmap(ptr::null_mut(), FILE_BYTES, access, MapFlags::SHARED, file.as_fd(), 0)
        }?;
        // SAFETY: the mapping is `FILE_BYTES` long and only `drop` unmaps it.
        let watched = unsafe { TruncationGuard::new(base.cast(), FILE_BYTES) };
        let Some(watched) = watched else {
            // SAFETY: nothing refers to the mapping yet.
            unsafe { rustix::mm::munmap(base, FILE_BYTES) }?;
            return Err(Errno::NOMEM);
        };
        Ok(Some(MappedWords {
            base: base.cast(),
            file,
            truncation_guard: watched,
            file_damage: OnceLock::new(),
            record_damage: OnceLock::new(),
            faults,
        }))
    }

    /// Checks that the file is neither truncated nor emptied. All tenants of the GPU may write to it, so a
    /// faulty one can damage it.
    pub(super) fn check_file(&self) -> Result<(), LedgerError> {
        if let Some(what) = self.file_damage.get() {
            return Err(LedgerError::Damaged { what });
        }
        let bytes = self.stat().map_err(kernel_error("fstat"))?.st_size;
        let what = if self.truncation_guard.is_truncated() || bytes < FILE_BYTES as i64 {
            "the file was truncated"
        } else if self.load(header::MAGIC) != MAGIC {
            "the file was truncated to zero"
        } else {
            return Ok(());
        };
        Err(LedgerError::Damaged { what: self.file_damage.get_or_init(|| what) })
    }

    /// Checks that the ledger can count bytes: the file is intact, and this process's record contains what
    /// its owner wrote.
    pub(super) fn check_valid(&self) -> Result<(), LedgerError> {
        self.check_file()?;
        self.check_record()
    }

    /// The part of [`MappedWords::check_valid`] that does not look at the file, for a caller that has just
    /// checked it.
    pub(super) fn check_record(&self) -> Result<(), LedgerError> {
        self.record_damage.get().map_or(Ok(()), |what| Err(LedgerError::Damaged { what }))
    }

    /// Stops this process from counting further bytes by the ledger.
    pub(super) fn mark_damaged(&self, what: &'static str) -> LedgerError {
        LedgerError::Damaged { what: self.record_damage.get_or_init(|| what) }
    }

    /// Writes a word that does not affect the count. It runs no hook, because no test has to end a process
    /// before it.
    pub(super) fn store_unhooked(&self, at: usize, value: u64) {
        self.word(at).store(value, Ordering::Release);
    }

    /// Returns the file's metadata, which identifies the mapped file.
    pub(super) fn stat(&self) -> Result<Stat, Errno> {
        rustix::fs::fstat(&self.file)
    }

    pub(super) fn load(&self, at: usize) -> u64 {
        self.word(at).load(Ordering::Acquire)
    }

    pub(super) fn store(&self, at: usize, value: u64) {
        self.faults.before_write();
        self.word(at).store(value, Ordering::Release);
    }

    /// As [`MappedWords::store`], but skips the write if the value is unchanged.
    pub(super) fn store_if_changed(&self, at: usize, value: u64) {
        if self.load(at) != value {
            self.store(at, value);
        }
    }

    /// Takes the next number of a counter in the file. Increments the counter before the number is used, so
    /// that an exit between skips a number and reuses none.
    pub(super) fn take_next(&self, at: usize) -> u64 {
        let number = self.load(at);
        self.store(at, next_nonzero(number));
        number
    }

    pub(super) fn add(&self, at: usize, value: u64) {
        self.faults.before_write();
        self.word(at).fetch_add(value, Ordering::AcqRel);
    }

    /// Subtracts `value`. If the word is smaller, leaves it unchanged and returns it as the error.
    pub(super) fn subtract(&self, at: usize, value: u64) -> Result<(), u64> {
        self.faults.before_write();
        let less = |found: u64| found.checked_sub(value);
        self.word(at).fetch_update(Ordering::AcqRel, Ordering::Acquire, less).map(drop)
    }

    /// Returns the futex of the wait queue.
    pub(super) fn futex_word(&self) -> &AtomicU32 {
        // SAFETY: the word is within the mapping, which exists as long as `self`; its first half is aligned
        // for 32 bits and is accessed in no other way.
        unsafe { &*self.base.add(header::FUTEX).cast::<AtomicU32>() }
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at < FILE_WORDS, "word {at} is one of {FILE_WORDS}");
        // SAFETY: the word is within the mapping, which exists as long as `self`; it is aligned, and other
        // processes change it only atomically.
        unsafe { &*self.base.add(at) }
    }
}

/// Returns the next number; skips 0, which means "none".
pub(super) fn next_nonzero(number: u64) -> u64 {
    number.wrapping_add(1).max(1)
}

impl Drop for MappedWords {
    fn drop(&mut self) {
        self.truncation_guard.unregister();
        // SAFETY: this value owns the mapping, and no reference into it outlives `self`.
        let result = unsafe { rustix::mm::munmap(self.base.cast(), FILE_BYTES) };
        assert!(result.is_ok(), "what was mapped can be unmapped");
    }
}
