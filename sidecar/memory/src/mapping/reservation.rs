//! Address space that is reserved until drop: `PROT_NONE` wherever nothing is mapped, at every moment.

use std::ffi::c_void;
use std::ptr;

use rustix::fd::BorrowedFd;
use rustix::mm::{self, Advice, MapFlags, ProtFlags};

use super::error::MappingError;

/// Alignment of the base, so that 2 MiB chunks can be backed by huge pages.
const BASE_ALIGN: usize = 2 << 20;

/// A reserved range of addresses.
#[derive(Debug)]
pub struct Reservation {
    /// Return value of `mmap`, for `munmap`.
    mmap_base: *mut c_void,
    mmap_bytes: usize,
    /// First usable byte, aligned.
    base: *mut u8,
    bytes: usize,
}

// SAFETY: this value owns the address space exclusively; the system calls on it do not depend on the thread.
unsafe impl Send for Reservation {}
// SAFETY: `&Reservation` gives out raw pointers and, by `map` and `unmap`, changes what backs them. Code that
// dereferences such a pointer must ensure that it is backed, on one thread as on many.
unsafe impl Sync for Reservation {}

impl Reservation {
    /// Reserves `bytes` (a multiple of the page size).
    pub fn new(bytes: usize) -> Result<Reservation, MappingError> {
        let whole_bytes = bytes
            .checked_add(BASE_ALIGN)
            .ok_or(MappingError::Kernel { call: "mmap", source: rustix::io::Errno::NOMEM })?;
        // SAFETY: a new mapping at an address that the kernel chooses overlaps no existing mapping.
        let whole = unsafe {
            mm::mmap_anonymous(
                ptr::null_mut(),
                whole_bytes,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }
        .map_err(|source| MappingError::Kernel { call: "mmap", source })?;
        let skip = whole.cast::<u8>().align_offset(BASE_ALIGN);
        assert!(skip <= BASE_ALIGN, "aligning never skips more than the alignment");
        let base = whole.cast::<u8>().wrapping_add(skip);
        Ok(Reservation { mmap_base: whole, mmap_bytes: whole_bytes, base, bytes })
    }

    /// Returns the address of byte `offset`. Dereferencing it is sound only while something is mapped there.
    pub fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset <= self.bytes, "offset {offset} lies in the reservation of {} bytes", self.bytes);
        self.base.wrapping_add(offset)
    }

    /// Maps `bytes` of `file` from byte `from` at `offset`, shared, readable and writable.
    pub fn map(
        &self,
        offset: usize,
        bytes: usize,
        file: BorrowedFd<'_>,
        from: u64,
    ) -> Result<(), MappingError> {
        let at = self.checked_ptr(offset, bytes);
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: `checked_ptr` keeps the range inside the reservation, which only this type maps into, so
        // MAP_FIXED replaces only PROT_NONE pages of this reservation; no reference into them exists because
        // they are not backed.
        unsafe { mm::mmap(at, bytes, protection, MapFlags::SHARED | MapFlags::FIXED, file, from) }
            .map_err(|source| MappingError::Kernel { call: "mmap", source })?;
        Ok(())
    }

    /// Restores `PROT_NONE` in one call: after a plain `munmap` another allocation could take the range.
    pub fn unmap(&self, offset: usize, bytes: usize) -> Result<(), MappingError> {
        let at = self.checked_ptr(offset, bytes);
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: `checked_ptr` keeps the range inside the reservation; the caller's rule of re-backing
        // ensures that these addresses are not in use while they change.
        unsafe { mm::mmap_anonymous(at, bytes, ProtFlags::empty(), flags) }
            .map_err(|source| MappingError::Kernel { call: "mmap", source })?;
        Ok(())
    }

    /// Advises the kernel about the mapping at `offset`. Accepts only advice that keeps the contents.
    pub(crate) fn advise(&self, offset: usize, bytes: usize, advice: Advice) -> Result<(), MappingError> {
        assert!(matches!(advice, Advice::LinuxHugepage | Advice::LinuxPopulateWrite), "contents are kept");
        // SAFETY: `checked_ptr` keeps the range inside the reservation, and the advice allowed above changes
        // no byte.
        unsafe { mm::madvise(self.checked_ptr(offset, bytes), bytes, advice) }
            .map_err(|source| MappingError::Kernel { call: "madvise", source })
    }

    fn checked_ptr(&self, offset: usize, bytes: usize) -> *mut c_void {
        let end = offset.checked_add(bytes).expect("no range wraps around");
        assert!(end <= self.bytes, "{offset}..{end} lies in the reservation of {} bytes", self.bytes);
        self.at(offset).cast()
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // SAFETY: `mmap_base` is this value's mapping and the owner is being dropped, so its addresses are no
        // longer in use.
        let result = unsafe { mm::munmap(self.mmap_base, self.mmap_bytes) };
        debug_assert!(result.is_ok(), "munmap of our own reservation: {result:?}");
    }
}
