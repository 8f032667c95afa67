//! Streams and events: order and time on the device.

use std::ptr;
use std::time::{Duration, Instant};

use cudarc::driver::sys::{self, CUresult, CUstream_flags, CUstreamWaitValue_flags};

use super::Error;
use super::driver::{call, check};
use super::{Address, Context, PinnedMemory};

/// Default time limit for waits for the device.
pub const WAIT_LIMIT: Duration = Duration::from_secs(20);

/// A queue of ordered work. Streams do not wait for each other or for the default stream.
#[derive(Debug)]
pub struct Stream {
    raw: sys::CUstream,
    context: Context,
}

// SAFETY: any thread may use a stream; the driver does the necessary locking.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// Creates an empty stream.
    pub fn new(context: &Context) -> Result<Stream, Error> {
        let mut raw = ptr::null_mut();
        let flags = CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: writes one pointer.
        unsafe { call!(cuStreamCreate(&mut raw, flags)) }?;
        Ok(Stream { raw, context: context.clone() })
    }

    /// Returns the driver's pointer.
    pub fn raw(&self) -> sys::CUstream {
        self.raw
    }

    /// Returns the context of the stream.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Whether all of its work is done. Returns an error of that work.
    pub fn is_idle(&self) -> Result<bool, Error> {
        // SAFETY: the stream exists as long as `self`.
        ready("cuStreamQuery", unsafe { sys::cuStreamQuery(self.raw) })
    }

    /// Waits at most [`WAIT_LIMIT`] for all of its work.
    pub fn finish(&self) -> Result<(), Error> {
        self.finish_within(WAIT_LIMIT)
    }

    /// Waits at most `limit` for all of its work.
    pub fn finish_within(&self, limit: Duration) -> Result<(), Error> {
        poll_until(limit, "work on a stream", || self.is_idle())
    }

    /// Makes later work of the stream wait for `event`.
    pub fn wait(&self, event: &Event) -> Result<(), Error> {
        // SAFETY: stream and event exist; the driver keeps the event's record even after the event is dropped.
        unsafe { call!(cuStreamWaitEvent(self.raw, event.raw, 0)) }
    }

    /// Makes later work of the stream wait until the word at `address` is at least `value` (as a circular comparison of
    /// 64 bits).
    pub fn wait_value(&self, address: Address, value: u64) -> Result<(), Error> {
        self.context.device().driver().optional("cuStreamWaitValue64_v2")?;
        let flags = CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_GEQ as u32;
        // SAFETY: the driver refuses an address that is not mapped for the device.
        unsafe { call!(cuStreamWaitValue64_v2(self.raw, address, value, flags)) }
    }

    /// Writes `value` to the word at `address` after the work queued so far.
    pub fn write_value(&self, address: Address, value: u64) -> Result<(), Error> {
        self.context.device().driver().optional("cuStreamWriteValue64_v2")?;
        // SAFETY: the driver refuses an address that is not mapped for the device.
        unsafe { call!(cuStreamWriteValue64_v2(self.raw, address, value, 0)) }
    }

    /// Copies `bytes` from byte `from` of `host` to the device.
    ///
    /// # Panics
    /// If they are not inside `host`.
    pub fn upload(&self, to: Address, host: &PinnedMemory, from: u64, bytes: u64) -> Result<(), Error> {
        // SAFETY: `slice` checks that the source is inside `host`, whose owner keeps it until the work is done (see
        // `PinnedMemory`).
        unsafe {
            call!(cuMemcpyHtoDAsync_v2(to, host.slice(from, bytes).cast_const(), bytes as usize, self.raw))
        }
    }

    /// Copies `bytes` from the device to byte `to` of `host`.
    ///
    /// # Panics
    /// If they are not inside `host`.
    pub fn download(&self, host: &PinnedMemory, to: u64, from: Address, bytes: u64) -> Result<(), Error> {
        // SAFETY: as in `upload`.
        unsafe { call!(cuMemcpyDtoHAsync_v2(host.slice(to, bytes), from, bytes as usize, self.raw)) }
    }

    /// Copies `bytes` to the device, at the speed of the link if their pages are registered.
    ///
    /// # Safety
    /// They are not written before the copy is done.
    pub unsafe fn upload_bytes(&self, to: Address, bytes: &[u8]) -> Result<(), Error> {
        // SAFETY: the caller keeps the source; the device reports a wrong target as a fault.
        unsafe { call!(cuMemcpyHtoDAsync_v2(to, bytes.as_ptr().cast(), bytes.len(), self.raw)) }
    }

    /// Copies from the device into `bytes`, at the speed of the link if their pages are registered.
    ///
    /// # Safety
    /// They are not accessed before the copy is done.
    pub unsafe fn download_bytes(&self, bytes: &mut [u8], from: Address) -> Result<(), Error> {
        // SAFETY: the caller keeps the target; the device reports a wrong source as a fault.
        unsafe { call!(cuMemcpyDtoHAsync_v2(bytes.as_mut_ptr().cast(), from, bytes.len(), self.raw)) }
    }

    /// Copies `bytes` on the device.
    pub fn copy(&self, to: Address, from: Address, bytes: u64) -> Result<(), Error> {
        // SAFETY: accesses only device memory; the device reports a wrong address as a fault.
        unsafe { call!(cuMemcpyDtoDAsync_v2(to, from, bytes as usize, self.raw)) }
    }

    /// Fills `bytes` (a multiple of 4) with `word`.
    pub fn fill(&self, to: Address, word: u32, bytes: u64) -> Result<(), Error> {
        // SAFETY: as in `copy`.
        unsafe { call!(cuMemsetD32Async(to, word, (bytes / 4) as usize, self.raw)) }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: this value owns the stream; the driver finishes its work in the background. After a device fault
        // every call fails.
        let _ = unsafe { call!(cuStreamDestroy_v2(self.raw)) };
    }
}

/// A point in a stream's work, with its time.
#[derive(Debug)]
pub struct Event {
    raw: sys::CUevent,
    _context: Context,
}

// SAFETY: any thread may use an event; the driver does the necessary locking.
unsafe impl Send for Event {}

impl Event {
    /// Creates an event that is not recorded yet.
    pub fn new(context: &Context) -> Result<Event, Error> {
        let mut raw = ptr::null_mut();
        // SAFETY: writes one pointer.
        unsafe { call!(cuEventCreate(&mut raw, 0)) }?;
        Ok(Event { raw, _context: context.clone() })
    }

    /// Creates an event after the stream's work queued so far.
    pub fn after(stream: &Stream) -> Result<Event, Error> {
        let event = Event::new(stream.context())?;
        event.record(stream)?;
        Ok(event)
    }

    /// Moves the event behind the stream's work queued so far.
    pub fn record(&self, stream: &Stream) -> Result<(), Error> {
        // SAFETY: event and stream exist, and hold their contexts.
        unsafe { call!(cuEventRecord(self.raw, stream.raw)) }
    }

    /// Whether the device has reached the event.
    pub fn is_reached(&self) -> Result<bool, Error> {
        // SAFETY: the event exists as long as `self`.
        ready("cuEventQuery", unsafe { sys::cuEventQuery(self.raw) })
    }

    /// Waits at most [`WAIT_LIMIT`] until the event is reached.
    pub fn finish(&self) -> Result<(), Error> {
        self.finish_within(WAIT_LIMIT)
    }

    /// Waits at most `limit` until the event is reached.
    pub fn finish_within(&self, limit: Duration) -> Result<(), Error> {
        poll_until(limit, "an event", || self.is_reached())
    }

    /// Returns the nanoseconds from `start` to this event, by the device's clock (resolution about half a microsecond).
    /// Both must have been reached.
    pub fn since_ns(&self, start: &Event) -> Result<f64, Error> {
        let mut milliseconds = 0.0_f32;
        // SAFETY: writes one number; the driver refuses events that are not recorded.
        unsafe { call!(cuEventElapsedTime(&mut milliseconds, start.raw, self.raw)) }?;
        Ok(f64::from(milliseconds) * 1e6)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: this value owns the event; the driver keeps the state that queued work needs. After a device fault
        // every call fails.
        let _ = unsafe { call!(cuEventDestroy_v2(self.raw)) };
    }
}

fn ready(call: &'static str, result: CUresult) -> Result<bool, Error> {
    match result {
        CUresult::CUDA_ERROR_NOT_READY => Ok(false),
        result => check(call, result).map(|()| true),
    }
}

/// Polls `done` until it returns `true`, at most `limit`. It spins because the awaited events take microseconds and are
/// timed.
pub fn poll_until<E: From<Error>>(
    limit: Duration,
    what: &str,
    mut done: impl FnMut() -> Result<bool, E>,
) -> Result<(), E> {
    let start = Instant::now();
    while !done()? {
        if start.elapsed() > limit {
            return Err(Error::Timeout { what: what.into(), limit }.into());
        }
        std::hint::spin_loop();
    }
    Ok(())
}
