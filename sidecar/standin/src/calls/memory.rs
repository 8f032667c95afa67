//! Device memory: physical handles, address ranges, mappings, and plain allocations.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, IntoRawFd};
use std::sync::Arc;

use crate::abi::{AccessDescription, AllocationProperties, InPtr, OutPtr, code};
use crate::address_space::{granularity, space};
use crate::call_guard::calls;
use crate::objects::{Allocation, objects, pool};

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`, the only supported handle type.
const DESCRIPTOR: u32 = 1;

calls! {
    Context fn cuMemGetInfo_v2(free: OutPtr<usize>, total: OutPtr<usize>) {
        let pool = pool()?;
        free.set(pool.free()? as usize)?;
        total.set(pool.capacity() as usize)
    }

    Start fn cuMemGetAllocationGranularity(bytes: OutPtr<usize>, properties: InPtr<AllocationProperties>, _option: u32) {
        check(&properties.get()?)?;
        bytes.set(granularity() as usize)
    }

    Health fn cuMemCreate(handle: OutPtr<u64>, bytes: usize, properties: InPtr<AllocationProperties>, flags: u64) {
        check(&properties.get()?)?;
        if flags != 0 || bytes == 0 || !(bytes as u64).is_multiple_of(granularity()) {
            return Err(code::INVALID_VALUE);
        }
        let memory = pool()?.allocate(bytes as u64)?;
        handle.set(add(Arc::new(memory), properties.get()?.handle_types))
    }

    Health fn cuMemGetAllocationPropertiesFromHandle(properties: OutPtr<AllocationProperties>, handle: u64) {
        let handle_types = allocation(handle)?.handle_types;
        let (security, flags) = (std::ptr::null_mut(), 0);
        properties.set(AllocationProperties {
            kind: 1, handle_types, location_kind: 1, location: 0, security, flags,
        })
    }

    // The new handle is released like every other one.
    Health fn cuMemRetainAllocationHandle(handle: OutPtr<u64>, address: u64) {
        let memory = space().memory_at(address).ok_or(code::INVALID_VALUE)?;
        handle.set(add(memory, DESCRIPTOR))
    }

    Health fn cuMemRelease(handle: u64) {
        objects().handles.remove(&handle).map(drop).ok_or(code::INVALID_VALUE)
    }

    Health fn cuMemExportToShareableHandle(descriptor: OutPtr<i32>, handle: u64, kind: u32, flags: u64) {
        if kind != DESCRIPTOR || flags != 0 {
            return Err(code::NOT_SUPPORTED);
        }
        let Allocation { file, handle_types } = allocation(handle)?;
        if handle_types & DESCRIPTOR == 0 {
            return Err(code::INVALID_VALUE);
        }
        let copy = file.as_fd().try_clone_to_owned().map_err(|_| code::OPERATING_SYSTEM)?;
        descriptor.set(copy.into_raw_fd())
    }

    // The descriptor's value is passed as a pointer.
    Health fn cuMemImportFromShareableHandle(handle: OutPtr<u64>, descriptor: usize, kind: u32) {
        let number = i32::try_from(descriptor).map_err(|_| code::INVALID_VALUE)?;
        if kind != DESCRIPTOR || number < 0 {
            return Err(code::NOT_SUPPORTED);
        }
        // SAFETY: the caller keeps its descriptor open during the call; with a wrong number the kernel fails the call.
        let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
        let copy = borrowed.try_clone_to_owned().map_err(|_| code::INVALID_VALUE)?;
        handle.set(add(Arc::new(File::from(copy)), DESCRIPTOR))
    }

    Health fn cuMemAddressReserve(address: OutPtr<u64>, bytes: usize, _alignment: usize, _wish: u64, flags: u64) {
        if flags != 0 || bytes == 0 || !(bytes as u64).is_multiple_of(granularity()) {
            return Err(code::INVALID_VALUE);
        }
        address.set(space().reserve(bytes as u64)?)
    }

    Health fn cuMemAddressFree(address: u64, bytes: usize) {
        space().unreserve(address, bytes as u64)
    }

    Health fn cuMemMap(address: u64, bytes: usize, offset: usize, handle: u64, flags: u64) {
        let memory = allocation(handle)?.file;
        let length = memory.metadata().map_err(|_| code::OPERATING_SYSTEM)?.len();
        if offset != 0 || flags != 0 || bytes as u64 > length {
            return Err(code::INVALID_VALUE);
        }
        space().map(address, bytes as u64, &memory)
    }

    Health fn cuMemSetAccess(address: u64, bytes: usize, access: InPtr<AccessDescription>, count: usize) {
        let access = access.get()?;
        if count != 1 || (access.location_kind, access.location, access.flags) != (1, 0, 3) {
            return Err(code::NOT_SUPPORTED);
        }
        space().allow(address, bytes as u64)
    }

    Health fn cuMemUnmap(address: u64, bytes: usize) {
        space().unmap(address, bytes as u64)
    }

    Uncaptured fn cuMemAlloc_v2(address: OutPtr<u64>, bytes: usize) {
        if bytes == 0 {
            return Err(code::INVALID_VALUE);
        }
        let rounded = (bytes as u64).next_multiple_of(granularity());
        let memory = Arc::new(pool()?.allocate(rounded)?);
        address.set(space().allocate(bytes as u64, rounded, &memory)?)
    }

    Uncaptured fn cuMemFree_v2(address: u64) {
        space().free(address)
    }
}

/// Whether this kind of memory is supported: pinned, on the device, shared as a descriptor or not shared.
fn check(properties: &AllocationProperties) -> Result<(), u32> {
    if (properties.kind, properties.location_kind, properties.location) != (1, 1, 0) {
        return Err(code::INVALID_VALUE);
    }
    if properties.handle_types > DESCRIPTOR { Err(code::NOT_SUPPORTED) } else { Ok(()) }
}

fn add(file: Arc<File>, handle_types: u32) -> u64 {
    let mut objects = objects();
    let handle = objects.next_handle() as u64;
    objects.handles.insert(handle, Allocation { file, handle_types });
    handle
}

fn allocation(handle: u64) -> Result<Allocation, u32> {
    objects().handles.get(&handle).cloned().ok_or(code::INVALID_VALUE)
}
