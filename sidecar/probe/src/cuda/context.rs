//! A context: what a process has on a device.

use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys;

use super::Device;
use crate::Error;
use crate::driver::call;

/// A context of this process, shared by everything made in it and destroyed with the last of that.
#[derive(Clone, Debug)]
pub struct Context {
    owned: Arc<ContextHandle>,
}

#[derive(Debug)]
struct ContextHandle {
    raw: sys::CUcontext,
    device: Device,
}

// SAFETY: a context may be current on any thread, and on several at once; the driver locks what it must.
unsafe impl Send for ContextHandle {}
// SAFETY: as above; nothing here changes through a shared reference.
unsafe impl Sync for ContextHandle {}

/// The device's memory as the driver counts it, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// Free, for any process.
    pub free: u64,
    /// All of it.
    pub total: u64,
}

impl Context {
    /// A context on `device`, current on this thread.
    pub fn new(device: Device) -> Result<Context, Error> {
        let mut raw = ptr::null_mut();
        // SAFETY: writes one pointer; the device was found by the driver.
        unsafe { call!(cuCtxCreate_v2(&mut raw, 0, device.raw())) }?;
        Ok(Context { owned: Arc::new(ContextHandle { raw, device }) })
    }

    /// Makes it current on this thread. A thread other than the one that made it has to call this first.
    pub fn enter(&self) -> Result<(), Error> {
        // SAFETY: the context lives as long as `self`.
        unsafe { call!(cuCtxSetCurrent(self.owned.raw)) }
    }

    /// The driver's pointer.
    pub(crate) fn raw(&self) -> sys::CUcontext {
        self.owned.raw
    }

    /// Its device.
    pub fn device(&self) -> Device {
        self.owned.device
    }

    /// The device's memory now.
    pub fn memory(&self) -> Result<MemoryInfo, Error> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: writes two integers.
        unsafe { call!(cuMemGetInfo_v2(&mut free, &mut total)) }?;
        Ok(MemoryInfo { free: free as u64, total: total as u64 })
    }
}

impl Drop for ContextHandle {
    fn drop(&mut self) {
        // SAFETY: whatever was made in the context held it, so all of it is gone. An error has nobody to go to: after a fault
        // of the device every call fails.
        let _ = unsafe { call!(cuCtxDestroy_v2(self.raw)) };
    }
}
