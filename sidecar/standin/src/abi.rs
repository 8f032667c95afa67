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
    pub const ILLEGAL_STATE: u32 = 401;
    pub const NOT_FOUND: u32 = 500;
    pub const NOT_READY: u32 = 600;
    pub const ILLEGAL_ADDRESS: u32 = 700;
    pub const HOST_MEMORY_ALREADY_REGISTERED: u32 = 712;
    pub const HOST_MEMORY_NOT_REGISTERED: u32 = 713;
    pub const MISALIGNED_ADDRESS: u32 = 716;
    pub const LAUNCH_FAILED: u32 = 719;
    pub const NOT_PERMITTED: u32 = 800;
    pub const NOT_SUPPORTED: u32 = 801;
    pub const STREAM_CAPTURE_UNSUPPORTED: u32 = 900;
    pub const STREAM_CAPTURE_INVALIDATED: u32 = 901;
    pub const STREAM_CAPTURE_MERGE: u32 = 902;
    pub const STREAM_CAPTURE_UNMATCHED: u32 = 903;
    pub const STREAM_CAPTURE_UNJOINED: u32 = 904;
    pub const STREAM_CAPTURE_ISOLATION: u32 = 905;
    pub const STREAM_CAPTURE_IMPLICIT: u32 = 906;
    pub const CAPTURED_EVENT: u32 = 907;
    pub const STREAM_CAPTURE_WRONG_THREAD: u32 = 908;
    pub const UNKNOWN: u32 = 999;
}

/// An output pointer of the caller. Only callers across the C interface create it, and they guarantee, as for the
/// driver, that it is null or points to space for a `T`.
#[repr(transparent)]
pub struct OutPtr<T>(*mut T);

impl<T> std::fmt::Debug for OutPtr<T> {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(to)
    }
}

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

impl<T> std::fmt::Debug for InPtr<T> {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(to)
    }
}

impl<T: Copy> InPtr<T> {
    /// Wraps a pointer that is a field of a structure.
    ///
    /// # Safety
    /// It must satisfy the type's invariant.
    pub unsafe fn new(place: *const T) -> Self {
        Self(place)
    }

    /// Returns the pointer.
    pub fn raw(&self) -> *const T {
        self.0
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

/// `CUDA_HOST_NODE_PARAMS`, and the arguments of `cuLaunchHostFunc`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct HostNode {
    pub function: Option<extern "C" fn(*mut c_void)>,
    pub data: *mut c_void,
}

/// `CUDA_MEMSET_NODE_PARAMS_v1`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct FillNode {
    pub address: u64,
    pub pitch: usize,
    pub value: c_uint,
    pub element: c_uint,
    pub width: usize,
    pub height: usize,
}

/// `CUDA_MEMCPY2D_v2`. Memory type 1 is the host, 2 the device, 4 either, by its address.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Copy2d {
    pub from: CopySide,
    pub to: CopySide,
    pub width: usize,
    pub height: usize,
}

/// One side of [`Copy2d`].
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CopySide {
    pub x: usize,
    pub y: usize,
    pub kind: c_uint,
    pub host: u64,
    pub device: u64,
    pub array: u64,
    pub pitch: usize,
}

/// `CUlaunchConfig`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct LaunchConfig {
    pub grid: [c_uint; 3],
    pub block: [c_uint; 3],
    pub shared_bytes: c_uint,
    pub stream: usize,
    pub attributes: *const LaunchAttribute,
    pub count: c_uint,
}

/// `CUlaunchAttribute`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct LaunchAttribute {
    pub id: c_uint,
    pub padding: c_uint,
    pub value: [u32; 16],
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
    use super::{
        AccessDescription, AllocationProperties, BatchNode, BatchOperation, Copy2d, FillNode, HostNode,
        KernelNode, LaunchAttribute, LaunchConfig,
    };

    #[test]
    fn the_structures_are_as_long_as_the_drivers() {
        // From cuda.h of CUDA 12, x86-64 and arm64.
        assert_eq!(size_of::<AllocationProperties>(), 32);
        assert_eq!(size_of::<AccessDescription>(), 12);
        assert_eq!(size_of::<BatchOperation>(), 48);
        assert_eq!(size_of::<BatchNode>(), 32);
        assert_eq!(size_of::<KernelNode>(), 72);
        assert_eq!((size_of::<HostNode>(), size_of::<FillNode>(), size_of::<Copy2d>()), (16, 40, 128));
        assert_eq!((size_of::<LaunchConfig>(), size_of::<LaunchAttribute>()), (56, 72));
    }
}
