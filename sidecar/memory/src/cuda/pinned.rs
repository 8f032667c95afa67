//! Host memory that the device copies at full speed: registered pages of a memfd, or memory that the driver allocates.

use std::ffi::c_void;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::atomic::AtomicU64;

use cudarc::driver::sys;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{self, MapFlags, ProtFlags};

use super::Error;
use super::driver::call;
use super::{Address, Context};
use crate::mapping::page_size::page_bytes;

/// Page-locked host memory. Before dropping it, the owner must wait for the work that uses it.
#[derive(Debug)]
pub struct PinnedMemory {
    start: *mut c_void,
    bytes: u64,
    /// The memory's file; `None` if the driver allocated the memory.
    file: Option<OwnedFd>,
    context: Context,
}

// SAFETY: the memory is owned and not tied to a thread; its words are accessed only as atomics.
unsafe impl Send for PinnedMemory {}
// SAFETY: as above.
unsafe impl Sync for PinnedMemory {}

impl PinnedMemory {
    /// Creates a memfd of at least `bytes`, in whole pages, and maps, prefaults and registers it.
    pub fn registered(context: &Context, bytes: u64) -> Result<PinnedMemory, Error> {
        let bytes = pages(bytes);
        let file = memfd_create("sluice-host", MemfdFlags::CLOEXEC).map_err(Error::kernel("memfd_create"))?;
        ftruncate(&file, bytes).map_err(Error::kernel("ftruncate"))?;
        PinnedMemory::from_file(context, file, bytes)
    }

    /// Maps, prefaults and registers the first `bytes`, in whole pages, of a memfd that this or another process
    /// created.
    pub fn from_file(context: &Context, file: OwnedFd, bytes: u64) -> Result<PinnedMemory, Error> {
        let bytes = pages(bytes);
        let start = mapped(file.as_fd(), bytes)?;
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
        // SAFETY: the pages are mapped and stay mapped until `drop` has unregistered them.
        let registered = unsafe { call!(cuMemHostRegister_v2(start, bytes as usize, flags)) };
        if let Err(error) = registered {
            // SAFETY: this function made the mapping, and it is not used.
            let _ = unsafe { mm::munmap(start, bytes as usize) };
            return Err(error);
        }
        Ok(PinnedMemory { start, bytes, file: Some(file), context: context.clone() })
    }

    /// Lets the driver allocate page-locked memory.
    pub fn allocate(context: &Context, bytes: u64) -> Result<PinnedMemory, Error> {
        let mut start = ptr::null_mut();
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: writes one pointer.
        unsafe { call!(cuMemHostAlloc(&mut start, bytes as usize, flags)) }?;
        Ok(PinnedMemory { start, bytes, file: None, context: context.clone() })
    }

    /// Returns the size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the memory's file, for another process.
    ///
    /// # Panics
    /// If the driver allocated the memory.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_ref().expect("this memory is a file").as_fd()
    }

    /// Returns the device address of byte 0.
    pub fn address(&self) -> Result<Address, Error> {
        let mut address = 0;
        // SAFETY: writes one address; the memory is registered for the device.
        unsafe { call!(cuMemHostGetDevicePointer_v2(&mut address, self.start, 0)) }?;
        Ok(address)
    }

    /// Returns the 64-bit word `index`. It is atomic because the device writes to it too.
    pub fn word(&self, index: u64) -> &AtomicU64 {
        let place = self.slice(index * 8, 8).cast::<u64>();
        // SAFETY: the word is inside the memory and aligned (the memory starts at a page), and only atomics and the
        // device access it.
        unsafe { AtomicU64::from_ptr(place) }
    }

    /// Writes the first bytes, which no work on the device may use during the call.
    ///
    /// # Panics
    /// If they are not inside the memory.
    pub fn write(&mut self, bytes: &[u8]) {
        let to = self.slice(0, bytes.len() as u64).cast::<u8>();
        // SAFETY: the target is inside the memory, which this value owns and borrows mutably here.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    /// Returns a pointer to `bytes` bytes, from byte `from` on.
    pub(crate) fn slice(&self, from: u64, bytes: u64) -> *mut c_void {
        let end = from.checked_add(bytes).expect("no slice wraps around");
        assert!(end <= self.bytes, "{from}..{end} lies in {} bytes", self.bytes);
        self.start.wrapping_byte_add(from as usize)
    }
}

/// Rounds `bytes` up to whole pages.
fn pages(bytes: u64) -> u64 {
    bytes.next_multiple_of(page_bytes())
}

fn mapped(file: BorrowedFd<'_>, bytes: u64) -> Result<*mut c_void, Error> {
    let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::POPULATE);
    // SAFETY: a new mapping at an address of the kernel's choice affects no existing memory.
    unsafe { mm::mmap(ptr::null_mut(), bytes as usize, protection, flags, file, 0) }
        .map_err(Error::kernel("mmap"))
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        // The last owner may run on a thread without a context. After a device fault every call fails.
        let _ = self.context.enter();
        if self.file.is_none() {
            // SAFETY: the driver allocated the memory, and it is no longer used.
            let _ = unsafe { call!(cuMemFreeHost(self.start)) };
            return;
        }
        // SAFETY: `from_file` registered the memory.
        let _ = unsafe { call!(cuMemHostUnregister(self.start)) };
        // SAFETY: `from_file` made the mapping, and it is no longer used.
        let _ = unsafe { mm::munmap(self.start, self.bytes as usize) };
    }
}
