//! A context: a process's state on a device.

use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys;

use super::Device;
use super::Error;
use super::driver::call;

/// A context of this process. Every object created in it shares it, and the last one destroys it.
#[derive(Clone, Debug)]
pub struct Context {
    owned: Arc<ContextHandle>,
}

#[derive(Debug)]
struct ContextHandle {
    raw: sys::CUcontext,
    device: Device,
    /// Whether it is the device's primary context, which this process shares with other libraries.
    is_primary: bool,
}

// SAFETY: a context may be current on any thread, and on several at once; the driver does the necessary locking.
unsafe impl Send for ContextHandle {}
// SAFETY: the fields do not change, and the driver does the necessary locking.
unsafe impl Sync for ContextHandle {}

/// The device's memory as counted by the driver, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// Free bytes, for any process.
    pub free: u64,
    /// Total bytes.
    pub total: u64,
}

impl Context {
    /// Creates a context on `device` and makes it current on this thread.
    pub fn new(device: Device) -> Result<Context, Error> {
        let mut raw = ptr::null_mut();
        // SAFETY: writes one pointer; the driver found the device.
        unsafe { call!(cuCtxCreate_v2(&mut raw, 0, device.raw())) }?;
        Ok(Context { owned: Arc::new(ContextHandle { raw, device, is_primary: false }) })
    }

    /// Retains the device's primary context, which other libraries of this process use (the CUDA runtime, PyTorch), and
    /// makes it current on this thread.
    ///
    /// # Errors
    /// Among others, [`Error::Absent`] on a driver without primary contexts.
    pub fn primary(device: Device) -> Result<Context, Error> {
        device.driver().optional("cuDevicePrimaryCtxRetain")?;
        device.driver().optional("cuDevicePrimaryCtxRelease_v2")?;
        let mut raw = ptr::null_mut();
        // SAFETY: writes one pointer; the driver found the device.
        unsafe { call!(cuDevicePrimaryCtxRetain(&mut raw, device.raw())) }?;
        let context = Context { owned: Arc::new(ContextHandle { raw, device, is_primary: true }) };
        context.enter()?;
        Ok(context)
    }

    /// Makes the context current on this thread. A thread other than the creator must call this first.
    pub fn enter(&self) -> Result<(), Error> {
        // SAFETY: the context exists as long as `self`.
        unsafe { call!(cuCtxSetCurrent(self.owned.raw)) }
    }

    /// Returns the driver's pointer.
    pub(crate) fn raw(&self) -> sys::CUcontext {
        self.owned.raw
    }

    /// Returns the device.
    pub fn device(&self) -> Device {
        self.owned.device
    }

    /// Whether the driver loads all kernels with their module (`CUDA_MODULE_LOADING=EAGER`). Otherwise it loads a kernel
    /// when that is used first, and may wait for all streams then.
    ///
    /// # Errors
    /// [`Error::Absent`] on a driver before CUDA 11.7.
    pub fn loads_eagerly(&self) -> Result<bool, Error> {
        self.device().driver().optional("cuModuleGetLoadingMode")?;
        let mut mode = sys::CUmoduleLoadingMode::CU_MODULE_LAZY_LOADING;
        // SAFETY: writes one enumerator; CUDA 11.7 and later have the same two.
        unsafe { call!(cuModuleGetLoadingMode(&mut mode)) }?;
        Ok(mode == sys::CUmoduleLoadingMode::CU_MODULE_EAGER_LOADING)
    }

    /// Returns the current state of the device's memory.
    pub fn memory(&self) -> Result<MemoryInfo, Error> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: writes two integers.
        unsafe { call!(cuMemGetInfo_v2(&mut free, &mut total)) }?;
        Ok(MemoryInfo { free: free as u64, total: total as u64 })
    }
}

impl Drop for ContextHandle {
    fn drop(&mut self) {
        // Errors are ignored: after a device fault every call fails.
        if self.is_primary {
            // SAFETY: this value retained the context once. Every object created in it held it, so all are freed.
            let _ = unsafe { call!(cuDevicePrimaryCtxRelease_v2(self.device.raw())) };
        } else {
            // SAFETY: every object created in the context held it, so all of them are freed.
            let _ = unsafe { call!(cuCtxDestroy_v2(self.raw)) };
        }
    }
}
