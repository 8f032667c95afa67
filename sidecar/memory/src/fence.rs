//! The current time-slice epoch of a GPU: one word in the lock file, the only ledger file that an engine
//! gets.
//!
//! A participant that takes the time slice writes its epoch there. A tenant whose slice was taken over while
//! its processes were stopped sees this before it does anything else, and its engine runs no step under the
//! old epoch.

use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::fs::FileType;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use crate::truncation_guard::TruncationGuard;

/// "SLUICEFN".
const MAGIC: u64 = u64::from_be_bytes(*b"SLUICEFN");
/// Size of the page, bytes.
pub(crate) const FENCE_BYTES: usize = 4096;
/// Words of the page. The magic is the last one, so that any truncation of the page removes it.
const EPOCH_AT: usize = 0;
const MAGIC_AT: usize = FENCE_BYTES / 8 - 1;

/// Why an engine cannot read the time-slice epoch.
#[derive(Debug, thiserror::Error)]
#[error("{call} of the description of the participant's life failed")]
pub struct FenceError {
    /// The system call.
    call: &'static str,
    /// Its error.
    #[source]
    source: Errno,
}

/// The engine's read-only view of the current time slice.
///
/// Its mapping keeps the liveness description open, as the engine's own copy does.
#[derive(Debug)]
pub struct SliceFence {
    page: FencePage,
}

impl SliceFence {
    /// Opens the view through `life`, the description that the engine received during setup. Returns `None`
    /// if it is not a lock file with an epoch: the tenant is alone on its GPU, or the file is damaged.
    ///
    /// # Errors
    /// The kernel cannot stat, read or map `life`.
    pub fn open(life: BorrowedFd<'_>) -> Result<Option<SliceFence>, FenceError> {
        let failed = |call| move |source| FenceError { call, source };
        if !has_epoch(life).map_err(failed("read"))? {
            return Ok(None);
        }
        let page = FencePage::map(life, ProtFlags::READ).map_err(failed("mmap"))?;
        Ok(Some(SliceFence { page }))
    }

    /// Whether an epoch other than `epoch` is current, so that nothing of `epoch` may run any more. Epoch 0
    /// belongs to no time slice and is never stale. No epoch is stale once the file is damaged: then the
    /// locks alone decide who holds the slice.
    pub fn is_stale(&self, epoch: u64) -> bool {
        epoch != 0 && self.page.epoch().is_some_and(|in_force| in_force != epoch)
    }
}

/// Whether the file contains an epoch.
pub(crate) fn has_epoch(file: BorrowedFd<'_>) -> Result<bool, Errno> {
    let stat = rustix::fs::fstat(file)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Ok(false);
    }
    let mut magic = [0; 8];
    let read = rustix::io::pread(file, &mut magic, MAGIC_AT as u64 * 8)?;
    Ok(read == magic.len() && u64::from_ne_bytes(magic) == MAGIC)
}

/// The first page of a lock file, in a shared mapping.
#[derive(Debug)]
pub(crate) struct FencePage {
    base: *mut AtomicU64,
    /// Records that an access touched a truncated page.
    truncation_guard: TruncationGuard,
    /// The page was truncated or emptied.
    lost: AtomicBool,
}

// SAFETY: the mapping exists as long as the value, and its words are accessed only as atomics.
unsafe impl Send for FencePage {}
// SAFETY: as above; atomics may be shared between threads.
unsafe impl Sync for FencePage {}

impl FencePage {
    /// Maps the first page of `file` for the sidecar, which also writes it.
    pub(crate) fn map_writable(file: BorrowedFd<'_>) -> Result<FencePage, Errno> {
        FencePage::map(file, ProtFlags::READ | ProtFlags::WRITE)
    }

    fn map(file: BorrowedFd<'_>, access: ProtFlags) -> Result<FencePage, Errno> {
        // SAFETY: a new mapping at an address that the kernel chooses overlaps no existing mapping.
        let base =
            unsafe { rustix::mm::mmap(ptr::null_mut(), FENCE_BYTES, access, MapFlags::SHARED, file, 0) }?;
        // SAFETY: the mapping is `FENCE_BYTES` long and only `drop` unmaps it.
        let watched = unsafe { TruncationGuard::new(base.cast(), FENCE_BYTES) };
        let Some(watched) = watched else {
            // SAFETY: nothing refers to the mapping yet.
            unsafe { rustix::mm::munmap(base, FENCE_BYTES) }?;
            return Err(Errno::NOMEM);
        };
        Ok(FencePage { base: base.cast(), truncation_guard: watched, lost: AtomicBool::new(false) })
    }

    /// Initializes the page of a new file with epoch 0.
    pub(crate) fn init(&self) {
        self.word(EPOCH_AT).store(0, Ordering::Release);
        self.word(MAGIC_AT).store(MAGIC, Ordering::Release);
    }

    /// Returns the current epoch; 0 before the first time slice. Returns `None` once the file was truncated
    /// or emptied.
    pub(crate) fn epoch(&self) -> Option<u64> {
        if self.lost.load(Ordering::Acquire) {
            return None;
        }
        let epoch = self.word(EPOCH_AT).load(Ordering::Acquire);
        // The magic is read after the epoch: if it is intact, so was the epoch.
        if self.word(MAGIC_AT).load(Ordering::Acquire) == MAGIC && !self.truncation_guard.is_truncated() {
            return Some(epoch);
        }
        self.lost.store(true, Ordering::Release);
        None
    }

    /// Makes an epoch current. The caller holds the lock of its time slice and the guard.
    pub(crate) fn set_epoch(&self, epoch: u64) {
        self.word(EPOCH_AT).store(epoch, Ordering::Release);
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at <= MAGIC_AT, "word {at} is one of the page");
        // SAFETY: the word is within the mapping, which exists as long as `self`; it is aligned, and other
        // processes change it only atomically.
        unsafe { &*self.base.add(at) }
    }
}

impl Drop for FencePage {
    fn drop(&mut self) {
        self.truncation_guard.unregister();
        // SAFETY: this value owns the mapping, and no reference into it outlives `self`.
        let result = unsafe { rustix::mm::munmap(self.base.cast(), FENCE_BYTES) };
        assert!(result.is_ok(), "what was mapped can be unmapped");
    }
}
