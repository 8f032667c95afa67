//! The mapped file as atomic words.
//!
//! Every store is a release and every load an acquire: whoever sees a word sees all that its writer wrote before. Words that
//! commit something (an instance, a nonce) are therefore written last and cleared first.

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

/// The whole ledger file, mapped shared.
#[derive(Debug)]
pub(super) struct MappedWords {
    base: *mut AtomicU64,
    file: OwnedFd,
    /// Says so once a part of the file was gone when it was touched.
    truncation_guard: TruncationGuard,
    /// Why the file is no ledger any more.
    file_damage: OnceLock<&'static str>,
    /// What was found wrong in this process's record.
    record_damage: OnceLock<&'static str>,
    pub(super) faults: LedgerFaults,
}

// SAFETY: the mapping lives as long as the value, and its words are only ever reached as atomics.
unsafe impl Send for MappedWords {}
// SAFETY: as above; atomics may be shared.
unsafe impl Sync for MappedWords {}

impl MappedWords {
    /// Maps the file at `path`; `None` when its length is not that of a ledger file.
    pub(super) fn map(path: &Path, faults: LedgerFaults) -> Result<Option<MappedWords>, Errno> {
        let file = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        if rustix::fs::fstat(&file)?.st_size != FILE_BYTES as i64 {
            return Ok(None);
        }
        // SAFETY: a fresh mapping at an address of the kernel's choice touches nothing that exists.
        let base = unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            rustix::mm::mmap(ptr::null_mut(), FILE_BYTES, access, MapFlags::SHARED, file.as_fd(), 0)
        }?;
        // SAFETY: the mapping is as long as it is said to be, and unmapped in `drop` alone.
        let watched = unsafe { TruncationGuard::new(base.cast(), FILE_BYTES) };
        let Some(watched) = watched else {
            // SAFETY: nobody knows of the mapping yet.
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

    /// Whether the file is what it was when it was mapped: all users of the GPU may write to it, also what they should not.
    pub(super) fn check_file(&self) -> Result<(), LedgerError> {
        if let Some(what) = self.file_damage.get() {
            return Err(LedgerError::Damaged { what });
        }
        let bytes = self.stat().map_err(kernel_error("fstat"))?.st_size;
        let what = if self.truncation_guard.is_truncated() || bytes < FILE_BYTES as i64 {
            "the file was cut short"
        } else if self.load(header::MAGIC) != MAGIC {
            "the file was emptied"
        } else {
            return Ok(());
        };
        Err(LedgerError::Damaged { what: self.file_damage.get_or_init(|| what) })
    }

    /// Whether bytes may be counted by it: it is whole, and this process's record is what its owner wrote.
    pub(super) fn check_valid(&self) -> Result<(), LedgerError> {
        self.check_file()?;
        self.check_record()
    }

    /// The half of [`Words::sound`] that is no look at the file: for who has just seen that it is whole.
    pub(super) fn check_record(&self) -> Result<(), LedgerError> {
        self.record_damage.get().map_or(Ok(()), |what| Err(LedgerError::Damaged { what }))
    }

    /// From now on this process counts no bytes by the ledger any more.
    pub(super) fn mark_damaged(&self, what: &'static str) -> LedgerError {
        LedgerError::Damaged { what: self.record_damage.get_or_init(|| what) }
    }

    /// Writes what nobody counts by: no test has to end a process before it.
    pub(super) fn store_unhooked(&self, at: usize, value: u64) {
        self.word(at).store(value, Ordering::Release);
    }

    /// What tells the mapped file from one that took its place.
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

    /// As [`Words::store`], without a write when nothing changes.
    pub(super) fn store_if_changed(&self, at: usize, value: u64) {
        if self.load(at) != value {
            self.store(at, value);
        }
    }

    /// Takes the next number of a counter in the file. Counted up before it is used, so that a death in between skips one and
    /// reuses none.
    pub(super) fn take_next(&self, at: usize) -> u64 {
        let number = self.load(at);
        self.store(at, next_nonzero(number));
        number
    }

    pub(super) fn add(&self, at: usize, value: u64) {
        self.faults.before_write();
        self.word(at).fetch_add(value, Ordering::AcqRel);
    }

    /// Subtracts, unless less is there: then the word stays and is returned as the error.
    pub(super) fn subtract(&self, at: usize, value: u64) -> Result<(), u64> {
        self.faults.before_write();
        let less = |found: u64| found.checked_sub(value);
        self.word(at).fetch_update(Ordering::AcqRel, Ordering::Acquire, less).map(drop)
    }

    /// The futex of the turn.
    pub(super) fn futex_word(&self) -> &AtomicU32 {
        // SAFETY: the word lies in the mapping, which lives as long as `self`; its first half is aligned for 32 bits
        // and is reached as nothing else.
        unsafe { &*self.base.add(header::FUTEX).cast::<AtomicU32>() }
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at < FILE_WORDS, "word {at} is one of {FILE_WORDS}");
        // SAFETY: the word lies in the mapping, which lives as long as `self`, is aligned, and other processes change it
        // only atomically.
        unsafe { &*self.base.add(at) }
    }
}

/// The number after this one. 0 is nobody's, so it is left out.
pub(super) fn next_nonzero(number: u64) -> u64 {
    number.wrapping_add(1).max(1)
}

impl Drop for MappedWords {
    fn drop(&mut self) {
        self.truncation_guard.unregister();
        // SAFETY: the mapping is ours alone and no reference into it outlives `self`.
        let result = unsafe { rustix::mm::munmap(self.base.cast(), FILE_BYTES) };
        assert!(result.is_ok(), "what was mapped can be unmapped");
    }
}
