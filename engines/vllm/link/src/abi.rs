//! The C functions. Their table is in the documentation of this crate.
//!
//! # Safety
//!
//! Every function here asks the same of its caller:
//!
//! - a link is null or comes from one of the two functions that connect, and was not freed;
//! - a text is null with length 0, or points to that number of bytes which do not change during the call;
//! - a place for a result is null or may be written.

use std::ffi::{OsStr, c_char, c_void};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use sluice_link::control::PassRecord;

use crate::exit_watch;
use crate::failure::{self, Failure, call};
use crate::inbox::Deadline;
use crate::link::Link;
use crate::scheduler::Scheduler;
use crate::worker::Worker;

/// Version of these functions and of their JSON. A caller refuses another one.
pub const ABI_VERSION: u32 = 1;

/// Returns [`ABI_VERSION`].
#[unsafe(no_mangle)]
pub extern "C" fn sluice_abi_version() -> u32 {
    ABI_VERSION
}

/// Returns the text of the last failure in this thread, valid until the next one in this thread.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_last_error() -> *const c_char {
    failure::last_error()
}

/// Connects as a worker, and returns a link once the sidecar has sent its memory.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_worker_connect(
    path: *const c_char,
    path_bytes: usize,
    hello: *const c_char,
    hello_bytes: usize,
    timeout_ms: i64,
    link: *mut *mut c_void,
) -> i32 {
    call(|| {
        // SAFETY: the caller passes texts and a place for the link (see the module).
        let (path, hello, link) =
            unsafe { (bytes(path, path_bytes)?, bytes(hello, hello_bytes)?, place(link)?) };
        let worker = Worker::connect(Path::new(OsStr::from_bytes(path)), hello, Deadline::after(timeout_ms))?;
        link.write(handle(Link::Worker(Box::new(worker))));
        Ok(())
    })
}

/// Connects as a scheduler, and returns a link once the sidecar has sent its extents.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_scheduler_connect(
    path: *const c_char,
    path_bytes: usize,
    hello: *const c_char,
    hello_bytes: usize,
    timeout_ms: i64,
    link: *mut *mut c_void,
) -> i32 {
    call(|| {
        // SAFETY: the caller passes texts and a place for the link (see the module).
        let (path, hello, link) =
            unsafe { (bytes(path, path_bytes)?, bytes(hello, hello_bytes)?, place(link)?) };
        let path = Path::new(OsStr::from_bytes(path));
        let scheduler = Scheduler::connect(path, hello, Deadline::after(timeout_ms))?;
        link.write(handle(Link::Scheduler(Box::new(scheduler))));
        Ok(())
    })
}

/// Returns what the sidecar has sent in reply to the hello. The text is valid as long as the link.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_setup(
    link: *const c_void,
    text: *mut *const c_char,
    text_bytes: *mut usize,
) -> i32 {
    call(|| {
        // SAFETY: the caller passes a link and places for the results (see the module).
        let (link, text, text_bytes) = unsafe { (as_link(link)?, place(text)?, place(text_bytes)?) };
        let setup = link.setup_text();
        text.write(setup.as_ptr().cast());
        text_bytes.write(setup.len());
        Ok(())
    })
}

/// Returns the next message. The text is valid until the next call for this link.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_receive(
    link: *const c_void,
    timeout_ms: i64,
    text: *mut *const c_char,
    text_bytes: *mut usize,
) -> i32 {
    call(|| {
        // SAFETY: the caller passes a link and places for the results (see the module).
        let (link, text, text_bytes) = unsafe { (as_link(link)?, place(text)?, place(text_bytes)?) };
        let (start, length) = link.receive(Deadline::after(timeout_ms))?;
        text.write(start.cast());
        text_bytes.write(length);
        Ok(())
    })
}

/// Sends a message.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_send(link: *const c_void, text: *const c_char, text_bytes: usize) -> i32 {
    call(|| {
        // SAFETY: the caller passes a link and a text (see the module).
        let (link, text) = unsafe { (as_link(link)?, bytes(text, text_bytes)?) };
        link.send(text)
    })
}

/// Starts a thread that ends this process once the sidecar has closed the link or exited.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_exit_with_sidecar(link: *const c_void, status: i32) -> i32 {
    // SAFETY: the caller passes a link (see the module).
    call(|| exit_watch::start(unsafe { as_link(link)? }.socket(), status))
}

/// Says goodbye and cuts the link. A call that receives in another thread ends.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_shutdown(link: *const c_void) -> i32 {
    call(|| {
        // SAFETY: the caller passes a link (see the module).
        unsafe { as_link(link)? }.shutdown();
        Ok(())
    })
}

/// Frees a link, and with a worker's link its ranges.
///
/// # Safety
/// See the module. No other call uses the link, and nothing of this process uses the ranges afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_free(link: *mut c_void) {
    call(|| {
        if !link.is_null() {
            // SAFETY: the link was made by `handle`, and the caller does not use it again.
            drop(unsafe { Box::from_raw(link.cast::<Link>()) });
        }
        Ok(())
    });
}

/// Reserves the addresses of all ranges.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_reserve(link: *const c_void) -> i32 {
    // SAFETY: the caller passes a link (see the module).
    call(|| unsafe { as_worker(link)? }.reserve())
}

/// Returns the first address and the bytes of a layer's range.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_layer_range(
    link: *const c_void,
    layer: u32,
    address: *mut u64,
    range_bytes: *mut u64,
) -> i32 {
    // SAFETY: the caller passes a link and places for the results (see the module).
    call(|| unsafe { range(link, Some(layer), address, range_bytes) })
}

/// Returns the first address and the bytes of the KV range.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_kv_range(
    link: *const c_void,
    address: *mut u64,
    range_bytes: *mut u64,
) -> i32 {
    // SAFETY: the caller passes a link and places for the results (see the module).
    call(|| unsafe { range(link, None, address, range_bytes) })
}

/// Carries out an order that was received, and replies.
///
/// # Safety
/// See the module. No pass runs, and on a GPU all of its work is done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_apply(link: *const c_void, id: u64) -> i32 {
    // SAFETY: the caller passes a link (see the module).
    call(|| unsafe { as_worker(link)? }.apply(id))
}

/// Begins a pass, and returns its number.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_begin_pass(link: *const c_void, pass: *mut u64) -> i32 {
    call(|| {
        // SAFETY: the caller passes a link and a place for the number (see the module).
        let (worker, pass) = unsafe { (as_worker(link)?, place(pass)?) };
        pass.write(worker.begin_pass());
        Ok(())
    })
}

/// Ends a pass.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_end_pass(
    link: *const c_void,
    pass: u64,
    total_ns: u64,
    stall_ns: u64,
    tokens: u32,
    sequences: u32,
) -> i32 {
    call(|| {
        let record = PassRecord { pass, total_ns, stall_ns, tokens, sequences };
        // SAFETY: the caller passes a link (see the module).
        unsafe { as_worker(link)? }.end_pass(record);
        Ok(())
    })
}

/// Counts a layer that a pass begins.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_begin_layer(link: *const c_void) -> i32 {
    call(|| {
        // SAFETY: the caller passes a link (see the module).
        unsafe { as_worker(link)? }.begin_layer();
        Ok(())
    })
}

/// Waits until a layer holds its weights for a pass.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_wait_ready(
    link: *const c_void,
    layer: u32,
    pass: u64,
    timeout_ms: i64,
) -> i32 {
    // SAFETY: the caller passes a link (see the module).
    call(|| unsafe { as_worker(link)? }.wait_ready(layer, pass, Deadline::after(timeout_ms)))
}

/// Publishes that a pass has read a layer for the last time.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_publish_done(link: *const c_void, layer: u32, pass: u64) -> i32 {
    // SAFETY: the caller passes a link (see the module).
    call(|| unsafe { as_worker(link)? }.publish_done(layer, pass))
}

fn handle(link: Link) -> *mut c_void {
    Box::into_raw(Box::new(link)).cast()
}

/// # Safety
/// See the module.
unsafe fn as_link<'a>(link: *const c_void) -> Result<&'a Link, Failure> {
    // SAFETY: the link is null or was made by `handle` and not freed, as the caller of the C function ensures. It is
    // used through shared references only.
    unsafe { link.cast::<Link>().as_ref() }.ok_or_else(|| Failure::Invalid("the link is null".to_owned()))
}

/// # Safety
/// See the module.
unsafe fn as_worker<'a>(link: *const c_void) -> Result<&'a Worker, Failure> {
    // SAFETY: as the caller ensures.
    unsafe { as_link(link)? }.worker()
}

/// # Safety
/// See the module.
unsafe fn range(
    link: *const c_void,
    layer: Option<u32>,
    address: *mut u64,
    range_bytes: *mut u64,
) -> Result<(), Failure> {
    // SAFETY: as the caller ensures.
    let (worker, address, range_bytes) = unsafe { (as_worker(link)?, place(address)?, place(range_bytes)?) };
    let (start, length) = worker.range(layer)?;
    address.write(start);
    range_bytes.write(length);
    Ok(())
}

/// # Safety
/// See the module.
unsafe fn bytes<'a>(text: *const c_char, length: usize) -> Result<&'a [u8], Failure> {
    match (text.is_null(), length) {
        (true, 0) => Ok(&[]),
        (true, _) => Err(Failure::Invalid("a text is null".to_owned())),
        // SAFETY: the text has that number of bytes, as the caller of the C function ensures.
        (false, _) => Ok(unsafe { std::slice::from_raw_parts(text.cast(), length) }),
    }
}

/// # Safety
/// See the module.
unsafe fn place<'a, T>(place: *mut T) -> Result<&'a mut MaybeUninit<T>, Failure> {
    // SAFETY: the place is null or may be written, as the caller of the C function ensures; it need not hold a value.
    unsafe { place.cast::<MaybeUninit<T>>().as_mut() }
        .ok_or_else(|| Failure::Invalid("a place for a result is null".to_owned()))
}
