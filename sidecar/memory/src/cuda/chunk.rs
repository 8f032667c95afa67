//! Physical memory: a chunk is one handle of the driver.

use std::ffi::c_void;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use cudarc::driver::sys::{
    CUmemAllocationGranularity_flags, CUmemAllocationHandleType, CUmemAllocationProp,
    CUmemAllocationProp_st__bindgen_ty_1, CUmemAllocationType, CUmemGenericAllocationHandle, CUmemLocation,
    CUmemLocationType,
};

use super::Error;
use super::driver::call;
use super::{Context, Device};

/// The only kind of export.
const FD: CUmemAllocationHandleType = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

pub(super) fn location(device: Device) -> CUmemLocation {
    CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device.raw() }
}

fn properties(device: Device, handles: CUmemAllocationHandleType) -> CUmemAllocationProp {
    CUmemAllocationProp {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: handles,
        location: location(device),
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}

/// Returns the granularity: every chunk's size is a multiple of it, in bytes.
pub fn granularity(device: Device) -> Result<u64, Error> {
    let (mut bytes, wanted) = (0, properties(device, FD));
    let least = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    // SAFETY: reads the properties and writes one integer.
    unsafe { call!(cuMemGetAllocationGranularity(&mut bytes, &wanted, least)) }?;
    Ok(bytes as u64)
}

/// Physical memory of the device, created here or imported. Each mapping shares it, so a chunk is released only after
/// its last mapping was unmapped.
#[derive(Debug)]
pub struct Chunk {
    pub(super) raw: CUmemGenericAllocationHandle,
    bytes: u64,
    _context: Context,
}

impl Chunk {
    /// Allocates `bytes` (a multiple of [`granularity`]) that can be exported as a file descriptor.
    pub fn create(context: &Context, bytes: u64) -> Result<Arc<Chunk>, Error> {
        Chunk::create_as(context, bytes, FD)
    }

    /// Like [`Chunk::create`], for export as `kind`.
    pub fn create_as(
        context: &Context,
        bytes: u64,
        kind: CUmemAllocationHandleType,
    ) -> Result<Arc<Chunk>, Error> {
        Chunk::create_with(context, bytes, properties(context.device(), kind))
    }

    /// Like [`Chunk::create`], but allocates host memory on NUMA node `node`.
    pub fn create_on_host(context: &Context, node: i32, bytes: u64) -> Result<Arc<Chunk>, Error> {
        let location = CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA, id: node };
        Chunk::create_with(
            context,
            bytes,
            CUmemAllocationProp { location, ..properties(context.device(), FD) },
        )
    }

    fn create_with(context: &Context, bytes: u64, wanted: CUmemAllocationProp) -> Result<Arc<Chunk>, Error> {
        let mut raw = 0;
        // SAFETY: reads the properties and writes the handle.
        unsafe { call!(cuMemCreate(&mut raw, bytes as usize, &wanted, 0)) }?;
        Ok(Arc::new(Chunk { raw, bytes, _context: context.clone() }))
    }

    /// Returns a descriptor with which another process may import the memory.
    pub fn export(&self) -> Result<OwnedFd, Error> {
        let mut fd: i32 = -1;
        let place = (&raw mut fd).cast::<c_void>();
        // SAFETY: for this handle type the driver writes one descriptor, an `int`.
        unsafe { call!(cuMemExportToShareableHandle(place, self.raw, FD, 0)) }?;
        assert!(fd >= 0, "a driver that succeeds exports a descriptor");
        // SAFETY: the driver opened the descriptor for this call and keeps no other claim on it.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Imports memory that another process exported; `bytes` must be its size. The descriptor is only borrowed.
    pub fn import(context: &Context, fd: BorrowedFd<'_>, bytes: u64) -> Result<Arc<Chunk>, Error> {
        let mut raw = 0;
        // For this handle type the driver takes the number itself instead of a pointer.
        let number = fd.as_raw_fd() as usize as *mut c_void;
        // SAFETY: the number is an open descriptor during the call.
        unsafe { call!(cuMemImportFromShareableHandle(&mut raw, number, FD)) }?;
        Ok(Arc::new(Chunk { raw, bytes, _context: context.clone() }))
    }

    /// Returns the size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Releases the chunk and returns the result; a drop ignores it. The memory is free after imports and descriptors in
    /// other processes are released too.
    ///
    /// # Panics
    /// If this is not its last owner: a mapping of this process is left.
    pub fn release(self: Arc<Chunk>) -> Result<(), Error> {
        let chunk = Arc::into_inner(self).expect("a chunk that is released is mapped nowhere");
        let chunk = std::mem::ManuallyDrop::new(chunk);
        // SAFETY: this value owns the handle, which is not used again; the context is read once and dropped.
        let (result, _context) = unsafe { (call!(cuMemRelease(chunk.raw)), std::ptr::read(&chunk._context)) };
        result
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        // SAFETY: this value owns the handle, which is not used again. After a device fault every call fails.
        let _ = unsafe { call!(cuMemRelease(self.raw)) };
    }
}
