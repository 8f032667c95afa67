//! The epoch of the turn that is in force on a GPU: one word in the file of locks, which is all of the neighbourhood's
//! files that an engine gets.
//!
//! A participant that takes the turn writes its epoch there. So a tenant whose turn was taken over while its processes
//! were stopped sees that before it does anything more, and its engine does not run a step of that turn.

use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::fs::FileType;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use crate::truncation_guard::TruncationGuard;

/// "SLUICEFN".
const MAGIC: u64 = u64::from_be_bytes(*b"SLUICEFN");
/// Bytes of the page.
pub(crate) const FENCE_BYTES: usize = 4096;
/// Words of the page. The magic is the last one: a file that is cut anywhere loses it.
const EPOCH_AT: usize = 0;
const MAGIC_AT: usize = FENCE_BYTES / 8 - 1;

/// Why an engine cannot see the epoch of the turn.
#[derive(Debug, thiserror::Error)]
#[error("{call} of the description of the participant's life failed")]
pub struct FenceError {
    /// The system call.
    call: &'static str,
    /// Its error.
    #[source]
    source: Errno,
}

/// The engine's view of the turn that is in force. It reads and never writes.
///
/// It keeps the description alive that it was opened with, as the engine's own copy does.
#[derive(Debug)]
pub struct SliceFence {
    page: FencePage,
}

impl SliceFence {
    /// Looks at the turns of the GPU through `life`, the description that the engine got in the set-up. `None` when it is not
    /// a file of locks with an epoch in it: the tenant is alone on its GPU, or that file is damaged.
    ///
    /// # Errors
    /// The kernel refuses to say what `life` is, or to map it.
    pub fn open(life: BorrowedFd<'_>) -> Result<Option<SliceFence>, FenceError> {
        let failed = |call| move |source| FenceError { call, source };
        if !has_epoch(life).map_err(failed("read"))? {
            return Ok(None);
        }
        let page = FencePage::map(life, ProtFlags::READ).map_err(failed("mmap"))?;
        Ok(Some(SliceFence { page }))
    }

    /// Whether another turn than `epoch` is in force, so that nothing of `epoch` may run any more. Epoch 0 belongs to no
    /// turn and never passes. No epoch passes once the file is damaged: then the locks alone say who has the turn.
    pub fn is_stale(&self, epoch: u64) -> bool {
        epoch != 0 && self.page.epoch().is_some_and(|in_force| in_force != epoch)
    }
}

/// Whether the file has an epoch in it.
pub(crate) fn has_epoch(file: BorrowedFd<'_>) -> Result<bool, Errno> {
    let stat = rustix::fs::fstat(file)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Ok(false);
    }
    let mut magic = [0; 8];
    let read = rustix::io::pread(file, &mut magic, MAGIC_AT as u64 * 8)?;
    Ok(read == magic.len() && u64::from_ne_bytes(magic) == MAGIC)
}

/// The page of a file of locks, mapped shared.
#[derive(Debug)]
pub(crate) struct FencePage {
    base: *mut AtomicU64,
    /// Says so once the page was gone when it was touched.
    truncation_guard: TruncationGuard,
    /// The page is not what it was any more.
    lost: AtomicBool,
}

// SAFETY: the mapping lives as long as the value, and its words are only ever reached as atomics.
unsafe impl Send for FencePage {}
// SAFETY: as above; atomics may be shared.
unsafe impl Sync for FencePage {}

impl FencePage {
    /// Maps the first page of `file`, for the sidecar: it also writes.
    pub(crate) fn map_writable(file: BorrowedFd<'_>) -> Result<FencePage, Errno> {
        FencePage::map(file, ProtFlags::READ | ProtFlags::WRITE)
    }

    fn map(file: BorrowedFd<'_>, access: ProtFlags) -> Result<FencePage, Errno> {
        // SAFETY: a fresh mapping at an address of the kernel's choice touches nothing that exists.
        let base =
            unsafe { rustix::mm::mmap(ptr::null_mut(), FENCE_BYTES, access, MapFlags::SHARED, file, 0) }?;
        // SAFETY: the mapping is as long as it is said to be, and unmapped in `drop` alone.
        let watched = unsafe { TruncationGuard::new(base.cast(), FENCE_BYTES) };
        let Some(watched) = watched else {
            // SAFETY: nothing refers to the mapping yet.
            unsafe { rustix::mm::munmap(base, FENCE_BYTES) }?;
            return Err(Errno::NOMEM);
        };
        Ok(FencePage { base: base.cast(), truncation_guard: watched, lost: AtomicBool::new(false) })
    }

    /// Makes the page of a new file one with an epoch.
    pub(crate) fn init(&self) {
        self.word(EPOCH_AT).store(0, Ordering::Release);
        self.word(MAGIC_AT).store(MAGIC, Ordering::Release);
    }

    /// The epoch in force; 0 before the first turn. `None` from the moment on when the file was cut or emptied.
    pub(crate) fn epoch(&self) -> Option<u64> {
        if self.lost.load(Ordering::Acquire) {
            return None;
        }
        let epoch = self.word(EPOCH_AT).load(Ordering::Acquire);
        // After the epoch: while the magic stays, what was read before it was the file's.
        if self.word(MAGIC_AT).load(Ordering::Acquire) == MAGIC && !self.truncation_guard.is_truncated() {
            return Some(epoch);
        }
        self.lost.store(true, Ordering::Release);
        None
    }

    /// Puts a turn in force. The caller holds the lock of that turn and the guard.
    pub(crate) fn set_epoch(&self, epoch: u64) {
        self.word(EPOCH_AT).store(epoch, Ordering::Release);
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at <= MAGIC_AT, "word {at} is one of the page");
        // SAFETY: the word lies in the mapping, which lives as long as `self`, is aligned, and other processes change it
        // only atomically.
        unsafe { &*self.base.add(at) }
    }
}

impl Drop for FencePage {
    fn drop(&mut self) {
        self.truncation_guard.unregister();
        // SAFETY: the mapping belongs to `self` alone and no reference into it outlives `self`.
        let result = unsafe { rustix::mm::munmap(self.base.cast(), FENCE_BYTES) };
        assert!(result.is_ok(), "what was mapped can be unmapped");
    }
}
