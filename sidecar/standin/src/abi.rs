//! The driver's C interface: result codes, and the structures that its functions take.

use std::ffi::{c_int, c_uint, c_void};

/// The codes that this library returns.
pub mod code {
    pub const INVALID_VALUE: u32 = 1;
    pub const OUT_OF_MEMORY: u32 = 2;
    pub const NOT_INITIALIZED: u32 = 3;
    pub const NO_DEVICE: u32 = 100;
    pub const INVALID_DEVICE: u32 = 101;
    pub const INVALID_IMAGE: u32 = 200;
    pub const INVALID_CONTEXT: u32 = 201;
    pub const NO_BINARY_FOR_GPU: u32 = 209;
    pub const INVALID_PTX: u32 = 218;
    pub const UNSUPPORTED_PTX_VERSION: u32 = 222;
    pub const OPERATING_SYSTEM: u32 = 304;
    pub const INVALID_HANDLE: u32 = 400;
    pub const NOT_FOUND: u32 = 500;
    pub const NOT_READY: u32 = 600;
    pub const ILLEGAL_ADDRESS: u32 = 700;
    pub const HOST_MEMORY_ALREADY_REGISTERED: u32 = 712;
    pub const HOST_MEMORY_NOT_REGISTERED: u32 = 713;
    pub const NOT_SUPPORTED: u32 = 801;
    pub const STREAM_CAPTURE_INVALIDATED: u32 = 901;
    pub const UNKNOWN: u32 = 999;
}

/// Returns a code's name and description, both ending with a zero byte.
pub fn code_text(code: u32) -> (&'static [u8], &'static [u8]) {
    match code {
        0 => (b"CUDA_SUCCESS\0", b"no error\0"),
        code::INVALID_VALUE => (b"CUDA_ERROR_INVALID_VALUE\0", b"invalid argument\0"),
        code::OUT_OF_MEMORY => (b"CUDA_ERROR_OUT_OF_MEMORY\0", b"out of memory\0"),
        code::NOT_INITIALIZED => (b"CUDA_ERROR_NOT_INITIALIZED\0", b"initialization error\0"),
        code::NO_DEVICE => (b"CUDA_ERROR_NO_DEVICE\0", b"no CUDA-capable device is detected\0"),
        code::INVALID_DEVICE => (b"CUDA_ERROR_INVALID_DEVICE\0", b"invalid device ordinal\0"),
        code::INVALID_IMAGE => (b"CUDA_ERROR_INVALID_IMAGE\0", b"device kernel image is invalid\0"),
        code::INVALID_CONTEXT => (b"CUDA_ERROR_INVALID_CONTEXT\0", b"invalid device context\0"),
        code::NO_BINARY_FOR_GPU => {
            (b"CUDA_ERROR_NO_BINARY_FOR_GPU\0", b"no kernel image is available for execution on the device\0")
        }
        code::INVALID_PTX => (b"CUDA_ERROR_INVALID_PTX\0", b"a PTX JIT compilation failed\0"),
        code::UNSUPPORTED_PTX_VERSION => (
            b"CUDA_ERROR_UNSUPPORTED_PTX_VERSION\0",
            b"the provided PTX was compiled with an unsupported toolchain.\0",
        ),
        code::OPERATING_SYSTEM => (b"CUDA_ERROR_OPERATING_SYSTEM\0", b"OS call failed\0"),
        code::INVALID_HANDLE => (b"CUDA_ERROR_INVALID_HANDLE\0", b"invalid resource handle\0"),
        code::NOT_FOUND => (b"CUDA_ERROR_NOT_FOUND\0", b"named symbol not found\0"),
        code::NOT_READY => (b"CUDA_ERROR_NOT_READY\0", b"device not ready\0"),
        code::ILLEGAL_ADDRESS => {
            (b"CUDA_ERROR_ILLEGAL_ADDRESS\0", b"an illegal memory access was encountered\0")
        }
        code::HOST_MEMORY_ALREADY_REGISTERED => (
            b"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED\0",
            b"part or all of the requested memory range is already mapped\0",
        ),
        code::HOST_MEMORY_NOT_REGISTERED => (
            b"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED\0",
            b"pointer does not correspond to a registered memory region\0",
        ),
        code::NOT_SUPPORTED => (b"CUDA_ERROR_NOT_SUPPORTED\0", b"operation not supported\0"),
        code::STREAM_CAPTURE_INVALIDATED => (
            b"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED\0",
            b"operation failed due to a previous error during capture\0",
        ),
        _ => (b"CUDA_ERROR_UNKNOWN\0", b"unknown error\0"),
    }
}

/// An output pointer of the caller. Only callers across the C interface create it, and they guarantee, as for the
/// driver, that it is null or points to space for a `T`.
#[repr(transparent)]
pub struct OutPtr<T>(*mut T);

impl<T> OutPtr<T> {
    /// Writes the result.
    pub fn set(&self, value: T) -> Result<(), u32> {
        if self.0.is_null() {
            return Err(code::INVALID_VALUE);
        }
        // SAFETY: not null, so by the type's invariant it points to space for a `T`, which only this call uses.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// Returns the pointer.
    pub fn raw(&self) -> *mut T {
        self.0
    }
}

/// An input pointer of the caller, with the same invariant as [`OutPtr`]: null, or a valid `T`.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct InPtr<T>(*const T);

impl<T: Copy> InPtr<T> {
    /// Wraps a pointer that is a field of a structure.
    ///
    /// # Safety
    /// It must satisfy the type's invariant.
    pub unsafe fn new(place: *const T) -> Self {
        Self(place)
    }

    /// Reads the value.
    pub fn get(&self) -> Result<T, u32> {
        self.at(0)
    }

    /// Reads element `index` of a list whose length the caller states.
    pub fn at(&self, index: usize) -> Result<T, u32> {
        if self.0.is_null() {
            return Err(code::INVALID_VALUE);
        }
        // SAFETY: not null, so by the type's invariant the value is valid, and `index` is below the caller's count.
        Ok(unsafe { self.0.add(index).read_unaligned() })
    }
}

/// `CUmemAllocationProp`, as far as it is used: `CU_MEM_ALLOCATION_TYPE_PINNED` is 1, a descriptor is handle type 1.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct AllocationProperties {
    pub kind: c_uint,
    pub handle_types: c_uint,
    pub location_kind: c_uint,
    pub location: c_int,
    pub security: *mut c_void,
    pub flags: u64,
}

/// `CUmemAccessDesc`: flags 3 means read and write.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct AccessDescription {
    pub location_kind: c_uint,
    pub location: c_int,
    pub flags: c_uint,
}

/// `CUstreamBatchMemOpParams`: six 64-bit words; the first one names the operation.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct BatchOperation {
    pub operation: c_uint,
    pub padding: c_uint,
    pub address: u64,
    pub value: u64,
    pub flags: c_uint,
    pub rest: [c_uint; 5],
}

/// `CUDA_BATCH_MEM_OP_NODE_PARAMS`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct BatchNode {
    pub context: *mut c_void,
    pub count: c_uint,
    pub operations: *const BatchOperation,
    pub flags: c_uint,
}

/// `CUDA_KERNEL_NODE_PARAMS_v2`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct KernelNode {
    pub function: usize,
    pub grid: [c_uint; 3],
    pub block: [c_uint; 3],
    pub shared_bytes: c_uint,
    pub parameters: *const *const u64,
    pub extra: *const *const c_void,
    pub kernel: *mut c_void,
    pub context: *mut c_void,
}

#[cfg(test)]
mod tests {
    use super::{AccessDescription, AllocationProperties, BatchNode, BatchOperation, KernelNode};

    #[test]
    fn the_structures_are_as_long_as_the_drivers() {
        // From cuda.h of CUDA 12, x86-64 and arm64.
        assert_eq!(size_of::<AllocationProperties>(), 32);
        assert_eq!(size_of::<AccessDescription>(), 12);
        assert_eq!(size_of::<BatchOperation>(), 48);
        assert_eq!(size_of::<BatchNode>(), 32);
        assert_eq!(size_of::<KernelNode>(), 72);
    }
}
