//! Anonymous host memory that exists from the start: a machine that has too little says so when the region is made, not when
//! it is touched.

use std::ffi::c_void;
use std::ptr;

use rustix::io::Errno;
use rustix::mm::{self, Advice, MapFlags, MprotectFlags, ProtFlags};

/// One anonymous mapping, unmapped when it is dropped.
#[derive(Debug)]
pub(crate) struct Region {
    start: *mut c_void,
    bytes: usize,
    writable: bool,
}

// SAFETY: the region owns its memory, which is not tied to a thread.
unsafe impl Send for Region {}
// SAFETY: `&Region` allows reading only, `&mut Region` writing; whoever writes through [`Region::at`] vouches for it.
unsafe impl Sync for Region {}

impl Region {
    /// Takes the memory at once, prefaulted and zeroed.
    pub(crate) fn new(bytes: u64) -> Result<Region, Errno> {
        let bytes = usize::try_from(bytes).map_err(|_| Errno::NOMEM)?;
        if bytes == 0 {
            return Ok(Region { start: ptr::NonNull::dangling().as_ptr(), bytes, writable: true });
        }
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice touches nothing that exists.
        let start = unsafe { mm::mmap_anonymous(ptr::null_mut(), bytes, protection, MapFlags::PRIVATE) }?;
        let region = Region { start, bytes, writable: true };
        // Advice only: without huge pages the region consists of small ones.
        let _ = region.advise(Advice::LinuxHugepage);
        region.advise(Advice::LinuxPopulateWrite)?;
        Ok(region)
    }

    fn advise(&self, advice: Advice) -> Result<(), Errno> {
        // SAFETY: the range is our own mapping; both kinds of advice used above keep its contents.
        unsafe { mm::madvise(self.start, self.bytes, advice) }
    }

    /// Makes the pages read-only, for good.
    pub(crate) fn protect(&mut self) -> Result<(), Errno> {
        self.writable = false;
        if self.bytes == 0 {
            return Ok(());
        }
        // SAFETY: the range is our own mapping, and the exclusive borrow means that nobody holds a slice of it.
        unsafe { mm::mprotect(self.start, self.bytes, MprotectFlags::READ) }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping is readable and as long as `self`; writes need `&mut self`.
        unsafe { std::slice::from_raw_parts(self.start.cast(), self.bytes) }
    }

    /// `bytes` bytes from byte `offset` on, to be read or written by whoever knows that nobody else does. Panics when they do
    /// not lie in the region.
    pub(crate) fn at(&self, offset: usize, bytes: usize) -> *mut u8 {
        let end = offset.checked_add(bytes);
        assert!(end.is_some_and(|end| end <= self.bytes), "{bytes} bytes at {offset} of {}", self.bytes);
        self.start.cast::<u8>().wrapping_add(offset)
    }

    /// Panics after [`Region::protect`].
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        assert!(self.writable, "a region that was made read-only is not written");
        // SAFETY: as in `bytes`; the mapping is still writable, and the exclusive borrow keeps every other slice away.
        unsafe { std::slice::from_raw_parts_mut(self.start.cast(), self.bytes) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if self.bytes == 0 {
            return;
        }
        // SAFETY: the mapping is ours and its slices do not outlive `self`.
        let result = unsafe { mm::munmap(self.start, self.bytes) };
        debug_assert!(result.is_ok(), "munmap of our own region: {result:?}");
    }
}
