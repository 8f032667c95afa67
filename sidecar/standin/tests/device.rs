//! A device with a context, a stream and memory, each released on drop.

use std::ffi::c_void;
use std::ptr;

use cudarc::driver::sys::{CUresult, CUstream};

/// Calls a function of the driver and asserts that it succeeds.
macro_rules! cu {
    ($function:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: the tests call functions as the driver documents them, with places of their own.
        let result = unsafe { ::cudarc::driver::sys::$function($($argument),*) };
        assert_eq!(result, ::cudarc::driver::sys::CUresult::CUDA_SUCCESS, stringify!($function));
    }};
}
pub(crate) use cu;

/// Calls a function of the driver and returns its result.
macro_rules! result_of {
    ($function:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: as for `cu`.
        unsafe { ::cudarc::driver::sys::$function($($argument),*) }
    }};
}
pub(crate) use result_of;

/// The primary context of the device, current on this thread, with a stream.
pub struct Device {
    pub stream: CUstream,
}

impl Device {
    pub fn open() -> Device {
        let (mut device, mut context, mut stream) = (0, ptr::null_mut(), ptr::null_mut());
        cu!(cuInit(0));
        cu!(cuDeviceGet(&mut device, 0));
        cu!(cuDevicePrimaryCtxRetain(&mut context, device));
        cu!(cuCtxSetCurrent(context));
        cu!(cuStreamCreate(&mut stream, 1));
        Device { stream }
    }

    pub fn synchronize(&self) {
        cu!(cuStreamSynchronize(self.stream));
    }

    /// The result of all work of the stream.
    pub fn outcome(&self) -> CUresult {
        result_of!(cuStreamSynchronize(self.stream))
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // After a fault of the device every call fails.
        let _ = result_of!(cuStreamDestroy_v2(self.stream));
        let _ = result_of!(cuDevicePrimaryCtxRelease_v2(0));
    }
}

/// Device memory.
pub struct Buffer {
    pub address: u64,
    bytes: usize,
}

impl Buffer {
    pub fn new(bytes: usize) -> Buffer {
        let mut address = 0;
        cu!(cuMemAlloc_v2(&mut address, bytes));
        Buffer { address, bytes }
    }

    /// Device memory with these numbers.
    pub fn of<T: Copy>(values: &[T]) -> Buffer {
        let buffer = Buffer::new(size_of_val(values));
        cu!(cuMemcpyHtoD_v2(buffer.address, values.as_ptr().cast::<c_void>(), size_of_val(values)));
        buffer
    }

    /// Reads numbers, after all work of the default stream.
    pub fn read<T: Copy + Default>(&self, count: usize) -> Vec<T> {
        let mut values = vec![T::default(); count];
        assert!(size_of_val(values.as_slice()) <= self.bytes, "inside the buffer");
        let bytes = size_of_val(values.as_slice());
        cu!(cuMemcpyDtoH_v2(values.as_mut_ptr().cast::<c_void>(), self.address, bytes));
        values
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let _ = result_of!(cuMemFree_v2(self.address));
    }
}
