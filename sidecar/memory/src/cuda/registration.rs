//! Host memory that the driver locks in place, so that copies run at the speed of the link.

use std::ffi::c_void;

use cudarc::driver::sys;

use super::Context;
use super::driver::call;
use super::error::Error;

/// Registered pages, unregistered on drop.
#[derive(Debug)]
pub(crate) struct Registration {
    start: *mut c_void,
    context: Context,
}

// SAFETY: the value only names the pages; the driver does the necessary locking.
unsafe impl Send for Registration {}
// SAFETY: as above; no method takes `&self`.
unsafe impl Sync for Registration {}

impl Registration {
    /// Registers mapped pages.
    ///
    /// # Safety
    /// `bytes` bytes from `start`, whole pages, stay mapped until the value is dropped.
    pub(crate) unsafe fn new(
        context: &Context,
        start: *mut c_void,
        bytes: usize,
    ) -> Result<Registration, Error> {
        context.enter()?;
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
        // SAFETY: the pages are mapped, and the caller keeps them until `drop` has unregistered them.
        unsafe { call!(cuMemHostRegister_v2(start, bytes, flags)) }?;
        Ok(Registration { start, context: context.clone() })
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // The last owner may run on a thread without a context. After a device fault every call fails.
        let _ = self.context.enter();
        // SAFETY: `new` registered the pages, which are still mapped.
        let _ = unsafe { call!(cuMemHostUnregister(self.start)) };
    }
}
