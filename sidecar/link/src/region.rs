//! Sealed shared memory: a memfd that neither end can shrink, mapped whole and accessed through atomics only.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use thiserror::Error;

/// Shared memory that cannot be created or trusted.
#[derive(Debug, Error)]
pub enum RegionError {
    /// A system call failed.
    #[error("{call} of shared memory: {source}")]
    Kernel {
        /// System call.
        call: &'static str,
        /// Its error.
        source: Errno,
    },
    /// The peer could shrink it, and a read beyond the new end would raise SIGBUS.
    #[error("shared memory is not sealed against shrinking")]
    Unsealed,
    /// It is smaller than needed.
    #[error("shared memory holds {got} bytes, {needed} are needed")]
    Small {
        /// Bytes it has.
        got: u64,
        /// Bytes it needs.
        needed: u64,
    },
}

fn syscall_error(call: &'static str) -> impl FnOnce(Errno) -> RegionError {
    move |source| RegionError::Kernel { call, source }
}

/// A mapped memfd. All access goes through atomics, so a peer that writes at any moment can cause wrong values but no
/// undefined behaviour.
#[derive(Debug)]
pub struct Region {
    fd: OwnedFd,
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping is process-wide memory, accessed through atomics only and unmapped once, by the owner's drop.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Creates `bytes` of zeroed shared memory of fixed size. Untouched pages use no memory.
    pub fn create(name: &str, bytes: usize) -> Result<Region, RegionError> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = memfd_create(name, flags).map_err(syscall_error("memfd_create"))?;
        ftruncate(&fd, bytes as u64).map_err(syscall_error("ftruncate"))?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        fcntl_add_seals(&fd, seals).map_err(syscall_error("fcntl(F_ADD_SEALS)"))?;
        Region::map(fd, bytes)
    }

    /// Maps the first `needed` bytes of shared memory from the peer.
    pub fn open(fd: OwnedFd, needed: usize) -> Result<Region, RegionError> {
        check_sealed(fd.as_fd(), needed as u64)?;
        Region::map(fd, needed)
    }

    fn map(fd: OwnedFd, bytes: usize) -> Result<Region, RegionError> {
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::NORESERVE);
        // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing of ours.
        let start = unsafe { mmap(std::ptr::null_mut(), bytes, prot, flags, &fd, 0) };
        let start =
            NonNull::new(start.map_err(syscall_error("mmap"))?.cast()).expect("mmap never maps page zero");
        Ok(Region { fd, start, bytes })
    }

    /// Returns the memfd, to pass to the peer.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Returns the u32 words `at..at + count`. `None` outside of the region.
    pub fn words(&self, at: usize, count: usize) -> Option<&[AtomicU32]> {
        let end = at.checked_add(count)?;
        if end > self.bytes / 4 {
            return None;
        }
        // SAFETY: the range is inside the mapping, which is valid as long as `self`; the mapping is page-aligned, so
        // the words are aligned; atomics may be shared with writers in other processes.
        Some(unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast::<AtomicU32>().add(at), count) })
    }

    /// Returns the u64 at index `at`, counted in u64. `None` outside of the region.
    pub fn long(&self, at: usize) -> Option<&AtomicU64> {
        if at >= self.bytes / 8 {
            return None;
        }
        // SAFETY: as for `words`.
        Some(unsafe { &*self.start.as_ptr().cast::<AtomicU64>().add(at) })
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: this is the mapping that `map` made; every borrow of it ended with `self`.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "a mapping of ours is always unmappable");
    }
}

/// Refuses a descriptor that is smaller than `needed` bytes or whose size the peer may still change.
pub fn check_sealed(fd: BorrowedFd<'_>, needed: u64) -> Result<(), RegionError> {
    let seals = fcntl_get_seals(fd).map_err(syscall_error("fcntl(F_GET_SEALS)"))?;
    if !seals.contains(SealFlags::SHRINK) {
        return Err(RegionError::Unsealed);
    }
    let got = fstat(fd).map_err(syscall_error("fstat"))?.st_size as u64;
    if got < needed { Err(RegionError::Small { got, needed }) } else { Ok(()) }
}
