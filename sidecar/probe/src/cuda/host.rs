//! Host memory that the device copies at full speed: pages of a memfd that were registered, or the driver's own.

use std::ffi::c_void;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::atomic::AtomicU64;

use cudarc::driver::sys;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{self, MapFlags, ProtFlags};

use super::{Address, Context};
use crate::Error;
use crate::driver::call;

/// Page-locked host memory. Whoever drops it has waited for the work that uses it.
#[derive(Debug)]
pub struct HostMemory {
    start: *mut c_void,
    bytes: u64,
    /// The file behind it; none when it is the driver's own.
    file: Option<OwnedFd>,
    _context: Context,
}

// SAFETY: the memory is owned and not tied to a thread; its words are read and written as atomics only.
unsafe impl Send for HostMemory {}

impl HostMemory {
    /// A new memfd of at least `bytes`, in whole pages, mapped, prefaulted and registered.
    pub fn registered(context: &Context, bytes: u64) -> Result<HostMemory, Error> {
        let bytes = pages(bytes);
        let file =
            memfd_create("sluice-gpu-probe", MemfdFlags::CLOEXEC).map_err(Error::kernel("memfd_create"))?;
        ftruncate(&file, bytes).map_err(Error::kernel("ftruncate"))?;
        HostMemory::from_file(context, file, bytes)
    }

    /// The first `bytes`, in whole pages, of a memfd that this or another process registered; mapped, prefaulted and registered.
    pub fn from_file(context: &Context, file: OwnedFd, bytes: u64) -> Result<HostMemory, Error> {
        let bytes = pages(bytes);
        let start = mapped(file.as_fd(), bytes)?;
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
        // SAFETY: the pages are mapped, and stay so until `drop` has unregistered them.
        let registered = unsafe { call!(cuMemHostRegister_v2(start, bytes as usize, flags)) };
        if let Err(error) = registered {
            // SAFETY: our own mapping, which nobody uses.
            let _ = unsafe { mm::munmap(start, bytes as usize) };
            return Err(error);
        }
        Ok(HostMemory { start, bytes, file: Some(file), _context: context.clone() })
    }

    /// Memory that the driver allocates.
    pub fn pinned(context: &Context, bytes: u64) -> Result<HostMemory, Error> {
        let mut start = ptr::null_mut();
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: writes one pointer.
        unsafe { call!(cuMemHostAlloc(&mut start, bytes as usize, flags)) }?;
        Ok(HostMemory { start, bytes, file: None, _context: context.clone() })
    }

    /// Its size.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The file behind it, to be sent to another process.
    ///
    /// # Panics
    /// If the driver allocated it.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_ref().expect("this memory is a file").as_fd()
    }

    /// The device's address for its byte 0.
    pub fn address(&self) -> Result<Address, Error> {
        let mut address = 0;
        // SAFETY: writes one address; the memory was registered for the device's use.
        unsafe { call!(cuMemHostGetDevicePointer_v2(&mut address, self.start, 0)) }?;
        Ok(address)
    }

    /// Word number `index`, of 64 bits. The device writes to it too, hence atomic.
    pub fn word(&self, index: u64) -> &AtomicU64 {
        let place = self.slice(index * 8, 8).cast::<u64>();
        // SAFETY: inside the memory, aligned (it starts at a page), and only ever accessed as atomics or by the device.
        unsafe { AtomicU64::from_ptr(place) }
    }

    /// `bytes` from byte `from` on.
    pub(crate) fn slice(&self, from: u64, bytes: u64) -> *mut c_void {
        let end = from.checked_add(bytes).expect("no slice wraps around");
        assert!(end <= self.bytes, "{from}..{end} lies in {} bytes", self.bytes);
        self.start.wrapping_byte_add(from as usize)
    }
}

/// At least `bytes`, in whole pages.
fn pages(bytes: u64) -> u64 {
    bytes.next_multiple_of(rustix::param::page_size() as u64)
}

fn mapped(file: BorrowedFd<'_>, bytes: u64) -> Result<*mut c_void, Error> {
    let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::POPULATE);
    // SAFETY: a fresh mapping at an address of the kernel's choice touches nothing that exists.
    unsafe { mm::mmap(ptr::null_mut(), bytes as usize, protection, flags, file, 0) }
        .map_err(Error::kernel("mmap"))
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        // After a fault of the device every call fails: nothing is to be done about it here.
        if self.file.is_none() {
            // SAFETY: the driver's own memory, which nothing uses any more.
            let _ = unsafe { call!(cuMemFreeHost(self.start)) };
            return;
        }
        // SAFETY: registered by us.
        let _ = unsafe { call!(cuMemHostUnregister(self.start)) };
        // SAFETY: our own mapping, which nothing uses any more.
        let _ = unsafe { mm::munmap(self.start, self.bytes as usize) };
    }
}
