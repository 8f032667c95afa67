//! Physical memory and the addresses behind which it is mapped.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use cudarc::driver::sys::{
    CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationGranularity_flags, CUmemAllocationHandleType,
    CUmemAllocationProp, CUmemAllocationProp_st__bindgen_ty_1, CUmemAllocationType,
    CUmemGenericAllocationHandle, CUmemLocation, CUmemLocationType,
};

use super::{Address, Context, Device};
use crate::Error;
use crate::driver::call;

/// The only kind of handle that we export.
const FD: CUmemAllocationHandleType = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

fn location(device: Device) -> CUmemLocation {
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

/// Bytes of which the size of every handle is a multiple.
pub fn granularity(device: Device) -> Result<u64, Error> {
    let (mut bytes, wanted) = (0, properties(device, FD));
    let least = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    // SAFETY: reads the properties and writes one integer.
    unsafe { call!(cuMemGetAllocationGranularity(&mut bytes, &wanted, least)) }?;
    Ok(bytes as u64)
}

/// Physical memory of the device: made here or imported.
#[derive(Debug)]
pub struct Handle {
    raw: CUmemGenericAllocationHandle,
    bytes: u64,
    _context: Context,
}

impl Handle {
    /// Takes `bytes` (a multiple of [`granularity`]) that can be exported as a file descriptor.
    pub fn create(context: &Context, bytes: u64) -> Result<Handle, Error> {
        Handle::create_as(context, bytes, FD)
    }

    /// As [`Handle::create`], to be exported as `kind`.
    pub fn create_as(
        context: &Context,
        bytes: u64,
        kind: CUmemAllocationHandleType,
    ) -> Result<Handle, Error> {
        Handle::create_with(context, bytes, properties(context.device(), kind))
    }

    /// As [`Handle::create`], but of the host's memory at NUMA node `node`.
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

    /// A descriptor by which another process may import it.
    pub fn export(&self) -> Result<OwnedFd, Error> {
        let mut fd: i32 = -1;
        let place = (&raw mut fd).cast::<c_void>();
        // SAFETY: for this kind of handle the driver writes one descriptor, an `int`.
        unsafe { call!(cuMemExportToShareableHandle(place, self.raw, FD, 0)) }?;
        assert!(fd >= 0, "a driver that succeeds exports a descriptor");
        // SAFETY: the driver opened the descriptor for us and keeps no other claim on it.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Imports what another process exported; `bytes` as there. The descriptor is only borrowed.
    pub fn import(context: &Context, fd: BorrowedFd<'_>, bytes: u64) -> Result<Handle, Error> {
        let mut raw = 0;
        // For this kind of handle the driver takes the number itself in place of a pointer.
        let number = fd.as_raw_fd() as usize as *mut c_void;
        // SAFETY: the number is an open descriptor for the length of the call.
        unsafe { call!(cuMemImportFromShareableHandle(&mut raw, number, FD)) }?;
        Ok(Handle { raw, bytes, _context: context.clone() })
    }

    /// Its size.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Gives it back and says how that went; dropping it does the same in silence. The memory goes when its mappings, imports
    /// and descriptors have gone too.
    pub fn release(self) -> Result<(), Error> {
        let handle = std::mem::ManuallyDrop::new(self);
        // SAFETY: the handle is ours and not used again; the context is read out once, and dropped.
        let (result, _context) =
            unsafe { (call!(cuMemRelease(handle.raw)), std::ptr::read(&handle._context)) };
        result
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: the handle is ours and not used again. After a fault of the device every call fails.
        let _ = unsafe { call!(cuMemRelease(self.raw)) };
    }
}

/// Reserved addresses.
#[derive(Debug)]
pub struct Range {
    base: Address,
    bytes: u64,
    /// What is mapped: offset to size.
    mapped: BTreeMap<u64, u64>,
    context: Context,
}

impl Range {
    /// Reserves `bytes` (a multiple of [`granularity`]) of addresses, wherever the driver likes.
    pub fn reserve(context: &Context, bytes: u64) -> Result<Range, Error> {
        let mut base = 0;
        // SAFETY: writes the address; nothing is mapped there yet.
        unsafe { call!(cuMemAddressReserve(&mut base, bytes as usize, 0, 0, 0)) }?;
        Ok(Range { base, bytes, mapped: BTreeMap::new(), context: context.clone() })
    }

    /// The address of byte `offset`.
    pub fn at(&self, offset: u64) -> Address {
        assert!(offset <= self.bytes, "offset {offset} lies in a range of {} bytes", self.bytes);
        self.base + offset
    }

    /// Its size.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Maps all of `handle` at `offset`; nobody may access it there before [`Range::allow`].
    pub fn map(&mut self, offset: u64, handle: &Handle) -> Result<(), Error> {
        self.map_part(offset, handle, 0, handle.bytes)
    }

    /// As [`Range::map`], but only `bytes` from byte `from` of the handle. Drivers refuse it so far.
    pub fn map_part(&mut self, offset: u64, handle: &Handle, from: u64, bytes: u64) -> Result<(), Error> {
        assert!(offset + bytes <= self.bytes, "a mapping lies in its range");
        // SAFETY: the addresses are ours, and the driver refuses those that are mapped.
        unsafe { call!(cuMemMap(self.base + offset, bytes as usize, from as usize, handle.raw, 0)) }?;
        self.mapped.insert(offset, bytes);
        Ok(())
    }

    /// Lets the device read and write what is mapped at `offset`.
    pub fn allow(&mut self, offset: u64, bytes: u64) -> Result<(), Error> {
        let access = CUmemAccessDesc {
            location: location(self.context.device()),
            flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        // SAFETY: the addresses are ours, and the driver refuses those that are not mapped.
        unsafe { call!(cuMemSetAccess(self.at(offset), bytes as usize, &access, 1)) }
    }

    /// [`Range::map`] and [`Range::allow`]; when the second fails the first is undone.
    pub fn remap(&mut self, offset: u64, handle: &Handle) -> Result<(), Error> {
        self.map(offset, handle)?;
        let allowed = self.allow(offset, handle.bytes);
        if allowed.is_err() {
            let _ = self.unmap(offset);
        }
        allowed
    }

    /// Unmaps what [`Range::map`] mapped at `offset`. Nothing on the device may be using it.
    pub fn unmap(&mut self, offset: u64) -> Result<(), Error> {
        let bytes = *self.mapped.get(&offset).expect("only what is mapped is unmapped");
        // SAFETY: exactly one mapping of ours; that no work uses it is the caller's to see to, and costs the device's context,
        // not host memory, when it is wrong.
        unsafe { call!(cuMemUnmap(self.base + offset, bytes as usize)) }?;
        self.mapped.remove(&offset);
        Ok(())
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        for (offset, bytes) in &self.mapped {
            // SAFETY: one mapping of ours. After a fault of the device every call fails.
            let _ = unsafe { call!(cuMemUnmap(self.base + offset, *bytes as usize)) };
        }
        // SAFETY: the range is ours and nothing is mapped in it.
        let _ = unsafe { call!(cuMemAddressFree(self.base, self.bytes as usize)) };
    }
}

/// Memory at an address of its own.
#[derive(Debug)]
pub struct Buffer {
    // Dropped first: unmapped before the handle is released.
    range: Range,
    _handle: Handle,
}

impl Buffer {
    /// At least `bytes`, rounded up to [`granularity`].
    pub fn new(context: &Context, bytes: u64) -> Result<Buffer, Error> {
        let bytes = bytes.next_multiple_of(granularity(context.device())?);
        let handle = Handle::create(context, bytes)?;
        let mut range = Range::reserve(context, bytes)?;
        range.remap(0, &handle)?;
        Ok(Buffer { range, _handle: handle })
    }

    /// The address of byte `offset`.
    pub fn at(&self, offset: u64) -> Address {
        self.range.at(offset)
    }

    /// Its size.
    pub fn bytes(&self) -> u64 {
        self.range.bytes()
    }
}
