//! The C functions as a caller in another language sees them.

use std::ffi::{CStr, c_char, c_void};
use std::path::Path;
use std::ptr;

use serde_json::Value;
use sluice_vllm_link::*;

/// A code and the text of the last error.
pub type Refused = (i32, String);

/// A link.
#[derive(Debug)]
pub struct CLink(pub *mut c_void);

// SAFETY: a link may be used by several threads.
unsafe impl Send for CLink {}
// SAFETY: as above.
unsafe impl Sync for CLink {}

type Connect = unsafe extern "C" fn(*const c_char, usize, *const c_char, usize, i64, *mut *mut c_void) -> i32;

pub fn last_error() -> String {
    // SAFETY: the text is valid until the next failure in this thread.
    unsafe { CStr::from_ptr(sluice_last_error()) }.to_str().unwrap().to_owned()
}

pub fn checked(code: i32) -> Result<(), Refused> {
    if code == SLUICE_OK { Ok(()) } else { Err((code, last_error())) }
}

impl CLink {
    pub fn worker(path: &Path, hello: &str) -> Result<CLink, Refused> {
        CLink::connect(sluice_worker_connect, path, hello, 10_000)
    }

    pub fn scheduler(path: &Path, hello: &str) -> Result<CLink, Refused> {
        CLink::connect(sluice_scheduler_connect, path, hello, 10_000)
    }

    pub fn connect(function: Connect, path: &Path, hello: &str, limit_ms: i64) -> Result<CLink, Refused> {
        let path = path.to_str().unwrap();
        let mut link = ptr::null_mut();
        let (start, length) = (path.as_ptr().cast(), path.len());
        // SAFETY: both texts and the place for the link exist during the call.
        let code =
            unsafe { function(start, length, hello.as_ptr().cast(), hello.len(), limit_ms, &mut link) };
        checked(code).map(|()| CLink(link))
    }

    pub fn setup(&self) -> Value {
        // SAFETY: the link exists, and the places are writable.
        self.text(|text, bytes| unsafe { sluice_setup(self.0, text, bytes) }).unwrap()
    }

    pub fn receive(&self, limit_ms: i64) -> Result<Value, Refused> {
        // SAFETY: the link exists, and the places are writable.
        self.text(|text, bytes| unsafe { sluice_receive(self.0, limit_ms, text, bytes) })
    }

    /// Receives a message that must come.
    pub fn next(&self) -> Value {
        self.receive(10_000).unwrap()
    }

    fn text(&self, read: impl FnOnce(*mut *const c_char, *mut usize) -> i32) -> Result<Value, Refused> {
        let (mut text, mut bytes) = (ptr::null(), 0);
        checked(read(&mut text, &mut bytes))?;
        // SAFETY: the text is valid until the next message of the link is received.
        let text = unsafe { std::slice::from_raw_parts(text.cast::<u8>(), bytes) };
        Ok(serde_json::from_slice(text).unwrap())
    }

    pub fn send(&self, text: &str) -> Result<(), Refused> {
        // SAFETY: the link and the text exist.
        checked(unsafe { sluice_send(self.0, text.as_ptr().cast(), text.len()) })
    }

    pub fn reserve(&self) -> Result<(), Refused> {
        // SAFETY: the link exists.
        checked(unsafe { sluice_reserve(self.0) })
    }

    pub fn layer_range(&self, layer: u32) -> Result<(u64, u64), Refused> {
        let (mut address, mut bytes) = (0, 0);
        // SAFETY: the link exists, and the places are writable.
        checked(unsafe { sluice_layer_range(self.0, layer, &mut address, &mut bytes) })?;
        Ok((address, bytes))
    }

    pub fn kv_range(&self) -> Result<(u64, u64), Refused> {
        let (mut address, mut bytes) = (0, 0);
        // SAFETY: the link exists, and the places are writable.
        checked(unsafe { sluice_kv_range(self.0, &mut address, &mut bytes) })?;
        Ok((address, bytes))
    }

    pub fn apply(&self, id: u64) -> Result<(), Refused> {
        // SAFETY: the link exists, and no test uses memory during the call.
        checked(unsafe { sluice_apply(self.0, id) })
    }

    pub fn begin_pass(&self) -> Result<u64, Refused> {
        let mut pass = 0;
        // SAFETY: the link exists, and the place is writable.
        checked(unsafe { sluice_begin_pass(self.0, &mut pass) }).map(|()| pass)
    }

    pub fn end_pass(&self, pass: u64) -> Result<(), Refused> {
        // SAFETY: the link exists.
        checked(unsafe { sluice_end_pass(self.0, pass, 100, 10, 7, 2) })
    }

    pub fn wait_ready(&self, layer: u32, pass: u64, limit_ms: i64) -> Result<(), Refused> {
        // SAFETY: the link exists.
        checked(unsafe { sluice_wait_ready(self.0, layer, pass, limit_ms) })
    }

    pub fn publish_done(&self, layer: u32, pass: u64) -> Result<(), Refused> {
        // SAFETY: the link exists.
        checked(unsafe { sluice_publish_done(self.0, layer, pass) })
    }

    pub fn shutdown(&self) -> Result<(), Refused> {
        // SAFETY: the link exists.
        checked(unsafe { sluice_shutdown(self.0) })
    }
}

impl Drop for CLink {
    fn drop(&mut self) {
        // SAFETY: the link was not freed, and no test uses its memory afterwards.
        unsafe { sluice_free(self.0) };
    }
}
