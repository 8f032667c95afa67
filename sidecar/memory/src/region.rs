//! Prefaulted host memory: anonymous, or a file that a GPU copies at full speed. If the machine has too little memory,
//! creating the region fails instead of a later access.

use std::ffi::c_void;
use std::ptr;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{self, Advice, MapFlags, MprotectFlags, ProtFlags};

use crate::cuda;
use crate::mapping::page_size::page_bytes;

/// Prefaulted host memory, unmapped on drop.
#[derive(Debug)]
pub struct Region {
    start: *mut c_void,
    bytes: usize,
    writable: bool,
    registration: Option<cuda::Registration>,
}

// SAFETY: the region owns its memory, which is not tied to a thread.
unsafe impl Send for Region {}
// SAFETY: `&Region` gives read access only and `&mut Region` write access; callers that write through
// [`Region::at`] exclude concurrent access themselves.
unsafe impl Sync for Region {}

impl Region {
    /// Maps zeroed anonymous memory and faults in all pages.
    pub(crate) fn new(bytes: u64) -> Result<Region, Errno> {
        let bytes = usize::try_from(bytes).map_err(|_| Errno::NOMEM)?;
        if bytes == 0 {
            return Ok(Region {
                start: ptr::NonNull::dangling().as_ptr(),
                bytes,
                writable: true,
                registration: None,
            });
        }
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses overlaps no existing mapping.
        let start = unsafe { mm::mmap_anonymous(ptr::null_mut(), bytes, protection, MapFlags::PRIVATE) }?;
        let region = Region { start, bytes, writable: true, registration: None };
        // Only advice: without huge pages the region uses small ones.
        let _ = region.advise(Advice::LinuxHugepage);
        region.advise(Advice::LinuxPopulateWrite)?;
        Ok(region)
    }

    /// Maps zeroed memory, faults in all pages, and locks them for the device. The pages belong to a memfd, so that a
    /// child of this process does not split them from what the device sees.
    pub(crate) fn registered(context: &cuda::Context, bytes: u64) -> Result<Region, cuda::Error> {
        let too_large = |_| cuda::Error::Kernel { call: "mmap", source: Errno::NOMEM };
        let bytes = usize::try_from(bytes).map_err(too_large)?;
        if bytes == 0 {
            return Region::new(0).map_err(cuda::Error::kernel("mmap"));
        }
        let file =
            memfd_create("sluice-host", MemfdFlags::CLOEXEC).map_err(cuda::Error::kernel("memfd_create"))?;
        ftruncate(&file, bytes as u64).map_err(cuda::Error::kernel("ftruncate"))?;
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping at an address that the kernel chooses overlaps no existing mapping.
        let start = unsafe { mm::mmap(ptr::null_mut(), bytes, protection, flags, &file, 0) }
            .map_err(cuda::Error::kernel("mmap"))?;
        let mut region = Region { start, bytes, writable: true, registration: None };
        // Only advice: without huge pages the region uses small ones.
        let _ = region.advise(Advice::LinuxHugepage);
        region.advise(Advice::LinuxPopulateWrite).map_err(cuda::Error::kernel("madvise"))?;
        let whole = bytes.next_multiple_of(page_bytes() as usize);
        // SAFETY: the kernel mapped whole pages, which stay mapped until the region is dropped.
        region.registration = Some(unsafe { cuda::Registration::new(context, start, whole) }?);
        Ok(region)
    }

    fn advise(&self, advice: Advice) -> Result<(), Errno> {
        // SAFETY: the range is this region's mapping; both kinds of advice used above keep its contents.
        unsafe { mm::madvise(self.start, self.bytes, advice) }
    }

    /// Makes the pages permanently read-only.
    pub(crate) fn protect(&mut self) -> Result<(), Errno> {
        self.writable = false;
        if self.bytes == 0 {
            return Ok(());
        }
        // SAFETY: the range is this region's mapping, and the exclusive borrow excludes all slices of it.
        unsafe { mm::mprotect(self.start, self.bytes, MprotectFlags::READ) }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping is readable and `self.bytes` long; writes need `&mut self`.
        unsafe { std::slice::from_raw_parts(self.start.cast(), self.bytes) }
    }

    /// Returns a pointer to `bytes` bytes from byte `offset`. The caller must exclude concurrent access.
    /// Panics if the range is not within the region.
    pub(crate) fn at(&self, offset: usize, bytes: usize) -> *mut u8 {
        let end = offset.checked_add(bytes);
        assert!(end.is_some_and(|end| end <= self.bytes), "{bytes} bytes at {offset} of {}", self.bytes);
        self.start.cast::<u8>().wrapping_add(offset)
    }

    /// Panics after [`Region::protect`].
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        assert!(self.writable, "a region that was made read-only is not written");
        // SAFETY: as in `bytes`; the mapping is still writable, and the exclusive borrow excludes every other
        // slice.
        unsafe { std::slice::from_raw_parts_mut(self.start.cast(), self.bytes) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // The driver lets go of the pages before they are unmapped.
        self.registration = None;
        if self.bytes == 0 {
            return;
        }
        // SAFETY: the mapping belongs to this region and no slice of it outlives `self`.
        let result = unsafe { mm::munmap(self.start, self.bytes) };
        debug_assert!(result.is_ok(), "munmap of our own region: {result:?}");
    }
}
