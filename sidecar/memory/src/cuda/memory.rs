//! Physical memory and the addresses at which it is mapped.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use cudarc::driver::sys::{
    CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationGranularity_flags, CUmemAllocationHandleType,
    CUmemAllocationProp, CUmemAllocationProp_st__bindgen_ty_1, CUmemAllocationType,
    CUmemGenericAllocationHandle, CUmemLocation, CUmemLocationType,
};

use super::Error;
use super::driver::call;
use super::{Address, Context, CudaDevice};

/// The only handle type that the probe exports.
const FD: CUmemAllocationHandleType = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

fn location(device: CudaDevice) -> CUmemLocation {
    CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device.raw() }
}

fn properties(device: CudaDevice, handles: CUmemAllocationHandleType) -> CUmemAllocationProp {
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

/// Returns the granularity: every handle's size is a multiple of it, in bytes.
pub fn granularity(device: CudaDevice) -> Result<u64, Error> {
    let (mut bytes, wanted) = (0, properties(device, FD));
    let least = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    // SAFETY: reads the properties and writes one integer.
    unsafe { call!(cuMemGetAllocationGranularity(&mut bytes, &wanted, least)) }?;
    Ok(bytes as u64)
}

/// Physical memory of the device, created here or imported.
#[derive(Debug)]
pub struct Handle {
    raw: CUmemGenericAllocationHandle,
    bytes: u64,
    _context: Context,
}

impl Handle {
    /// Allocates `bytes` (a multiple of [`granularity`]) that can be exported as a file descriptor.
    pub fn create(context: &Context, bytes: u64) -> Result<Handle, Error> {
        Handle::create_as(context, bytes, FD)
    }

    /// Like [`Handle::create`], for export as `kind`.
    pub fn create_as(
        context: &Context,
        bytes: u64,
        kind: CUmemAllocationHandleType,
    ) -> Result<Handle, Error> {
        Handle::create_with(context, bytes, properties(context.device(), kind))
    }

    /// Like [`Handle::create`], but allocates host memory on NUMA node `node`.
    pub fn create_on_host(context: &Context, node: i32, bytes: u64) -> Result<Handle, Error> {
        let location = CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA, id: node };
        Handle::create_with(
            context,
            bytes,
            CUmemAllocationProp { location, ..properties(context.device(), FD) },
        )
    }

    fn create_with(context: &Context, bytes: u64, wanted: CUmemAllocationProp) -> Result<Handle, Error> {
        let mut raw = 0;
        // SAFETY: reads the properties and writes the handle.
        unsafe { call!(cuMemCreate(&mut raw, bytes as usize, &wanted, 0)) }?;
        Ok(Handle { raw, bytes, _context: context.clone() })
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
    pub fn import(context: &Context, fd: BorrowedFd<'_>, bytes: u64) -> Result<Handle, Error> {
        let mut raw = 0;
        // For this handle type the driver takes the number itself instead of a pointer.
        let number = fd.as_raw_fd() as usize as *mut c_void;
        // SAFETY: the number is an open descriptor during the call.
        unsafe { call!(cuMemImportFromShareableHandle(&mut raw, number, FD)) }?;
        Ok(Handle { raw, bytes, _context: context.clone() })
    }

    /// Returns the size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Releases the handle and returns the result; a drop ignores it. The memory is freed after its mappings, imports
    /// and descriptors are released too.
    pub fn release(self) -> Result<(), Error> {
        let handle = std::mem::ManuallyDrop::new(self);
        // SAFETY: this value owns the handle, which is not used again; the context is read once and dropped.
        let (result, _context) =
            unsafe { (call!(cuMemRelease(handle.raw)), std::ptr::read(&handle._context)) };
        result
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: this value owns the handle, which is not used again. After a device fault every call fails.
        let _ = unsafe { call!(cuMemRelease(self.raw)) };
    }
}

/// A range of reserved addresses.
#[derive(Debug)]
pub struct Range {
    base: Address,
    bytes: u64,
    /// Mappings: offset to size.
    mapped: BTreeMap<u64, u64>,
    context: Context,
}

impl Range {
    /// Reserves `bytes` (a multiple of [`granularity`]) of addresses; the driver chooses where.
    pub fn reserve(context: &Context, bytes: u64) -> Result<Range, Error> {
        let mut base = 0;
        // SAFETY: writes the address; nothing is mapped there yet.
        unsafe { call!(cuMemAddressReserve(&mut base, bytes as usize, 0, 0, 0)) }?;
        Ok(Range { base, bytes, mapped: BTreeMap::new(), context: context.clone() })
    }

    /// Returns the address of byte `offset`.
    pub fn at(&self, offset: u64) -> Address {
        assert!(offset <= self.bytes, "offset {offset} lies in a range of {} bytes", self.bytes);
        self.base + offset
    }

    /// Returns the size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Maps all of `handle` at `offset`. Accesses are not allowed before [`Range::allow`].
    pub fn map(&mut self, offset: u64, handle: &Handle) -> Result<(), Error> {
        self.map_part(offset, handle, 0, handle.bytes)
    }

    /// Like [`Range::map`], but maps only `bytes` from byte `from` of the handle. No known driver supports this.
    pub fn map_part(&mut self, offset: u64, handle: &Handle, from: u64, bytes: u64) -> Result<(), Error> {
        assert!(offset + bytes <= self.bytes, "a mapping lies in its range");
        // SAFETY: this value owns the addresses, and the driver refuses addresses that are already mapped.
        unsafe { call!(cuMemMap(self.base + offset, bytes as usize, from as usize, handle.raw, 0)) }?;
        self.mapped.insert(offset, bytes);
        Ok(())
    }

    /// Allows the device to read and write the mappings at `offset`.
    pub fn allow(&mut self, offset: u64, bytes: u64) -> Result<(), Error> {
        let access = CUmemAccessDesc {
            location: location(self.context.device()),
            flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        // SAFETY: this value owns the addresses, and the driver refuses addresses that are not mapped.
        unsafe { call!(cuMemSetAccess(self.at(offset), bytes as usize, &access, 1)) }
    }

    /// Runs [`Range::map`] and [`Range::allow`]; undoes the first if the second fails.
    pub fn remap(&mut self, offset: u64, handle: &Handle) -> Result<(), Error> {
        self.map(offset, handle)?;
        let allowed = self.allow(offset, handle.bytes);
        if allowed.is_err() {
            let _ = self.unmap(offset);
        }
        allowed
    }

    /// Unmaps the mapping that [`Range::map`] made at `offset`. No work on the device may use it.
    pub fn unmap(&mut self, offset: u64) -> Result<(), Error> {
        let bytes = *self.mapped.get(&offset).expect("only what is mapped is unmapped");
        // SAFETY: exactly one mapping of this value. The caller ensures that no work uses it; a violation breaks the
        // device's context, not host memory.
        unsafe { call!(cuMemUnmap(self.base + offset, bytes as usize)) }?;
        self.mapped.remove(&offset);
        Ok(())
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        for (offset, bytes) in &self.mapped {
            // SAFETY: one mapping of this value. After a device fault every call fails.
            let _ = unsafe { call!(cuMemUnmap(self.base + offset, *bytes as usize)) };
        }
        // SAFETY: this value owns the range, and nothing is mapped in it.
        let _ = unsafe { call!(cuMemAddressFree(self.base, self.bytes as usize)) };
    }
}

/// Device memory with its own address range.
#[derive(Debug)]
pub struct Buffer {
    // Dropped first: unmapped before the handle is released.
    range: Range,
    _handle: Handle,
}

impl Buffer {
    /// Allocates at least `bytes`, rounded up to [`granularity`].
    pub fn new(context: &Context, bytes: u64) -> Result<Buffer, Error> {
        let bytes = bytes.next_multiple_of(granularity(context.device())?);
        let handle = Handle::create(context, bytes)?;
        let mut range = Range::reserve(context, bytes)?;
        range.remap(0, &handle)?;
        Ok(Buffer { range, _handle: handle })
    }

    /// Returns the address of byte `offset`.
    pub fn at(&self, offset: u64) -> Address {
        self.range.at(offset)
    }

    /// Returns the size in bytes.
    pub fn bytes(&self) -> u64 {
        self.range.bytes()
    }
}
