//! Streams and events: order and time on the device.

use std::ptr;
use std::time::{Duration, Instant};

use cudarc::driver::sys::{self, CUresult, CUstream_flags, CUstreamWaitValue_flags};

use super::{Address, Context, HostMemory};
use crate::Error;
use crate::driver::{call, check};

/// Longest that anything on the device is waited for unless the caller says otherwise.
pub const WAIT_LIMIT: Duration = Duration::from_secs(20);

/// Work in order. Streams do not wait for each other, nor for the default stream.
#[derive(Debug)]
pub struct Stream {
    raw: sys::CUstream,
    context: Context,
}

// SAFETY: a stream may be used by any thread; the driver locks what it must.
unsafe impl Send for Stream {}

impl Stream {
    /// An empty stream.
    pub fn new(context: &Context) -> Result<Stream, Error> {
        let mut raw = ptr::null_mut();
        let flags = CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: writes one pointer.
        unsafe { call!(cuStreamCreate(&mut raw, flags)) }?;
        Ok(Stream { raw, context: context.clone() })
    }

    /// The driver's pointer.
    pub(crate) fn raw(&self) -> sys::CUstream {
        self.raw
    }

    /// The context that it belongs to.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Whether all of its work is done. An error of that work comes back here.
    pub fn is_idle(&self) -> Result<bool, Error> {
        // SAFETY: the stream lives as long as `self`.
        ready("cuStreamQuery", unsafe { sys::cuStreamQuery(self.raw) })
    }

    /// Waits for all of its work, at most [`PATIENCE`].
    pub fn finish(&self) -> Result<(), Error> {
        self.finish_within(WAIT_LIMIT)
    }

    /// Waits for all of its work, at most `limit`.
    pub fn finish_within(&self, limit: Duration) -> Result<(), Error> {
        poll_until(limit, "work on a stream", || self.is_idle())
    }

    /// Its further work waits for `event`.
    pub fn wait(&self, event: &Event) -> Result<(), Error> {
        // SAFETY: both live; the driver keeps the event's record even when the event goes.
        unsafe { call!(cuStreamWaitEvent(self.raw, event.raw, 0)) }
    }

    /// Its further work waits until the word at `address` is at least `value` (as a circular comparison of 64 bits).
    pub fn wait_value(&self, address: Address, value: u64) -> Result<(), Error> {
        self.context.device().driver().optional("cuStreamWaitValue64_v2")?;
        let flags = CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_GEQ as u32;
        // SAFETY: the driver refuses an address that is not mapped for the device.
        unsafe { call!(cuStreamWaitValue64_v2(self.raw, address, value, flags)) }
    }

    /// Writes `value` to the word at `address` when the work so far is done.
    pub fn write_value(&self, address: Address, value: u64) -> Result<(), Error> {
        self.context.device().driver().optional("cuStreamWriteValue64_v2")?;
        // SAFETY: the driver refuses an address that is not mapped for the device.
        unsafe { call!(cuStreamWriteValue64_v2(self.raw, address, value, 0)) }
    }

    /// Copies `bytes` from byte `from` of `host` to the device.
    ///
    /// # Panics
    /// If they do not lie in `host`.
    pub fn upload(&self, to: Address, host: &HostMemory, from: u64, bytes: u64) -> Result<(), Error> {
        // SAFETY: `slice` keeps the source inside `host`, which whoever drops it must outlive the work; see there.
        unsafe {
            call!(cuMemcpyHtoDAsync_v2(to, host.slice(from, bytes).cast_const(), bytes as usize, self.raw))
        }
    }

    /// Copies `bytes` from the device to byte `to` of `host`.
    ///
    /// # Panics
    /// If they do not lie in `host`.
    pub fn download(&self, host: &HostMemory, to: u64, from: Address, bytes: u64) -> Result<(), Error> {
        // SAFETY: as in `upload`.
        unsafe { call!(cuMemcpyDtoHAsync_v2(host.slice(to, bytes), from, bytes as usize, self.raw)) }
    }

    /// Copies `bytes` on the device.
    pub fn copy(&self, to: Address, from: Address, bytes: u64) -> Result<(), Error> {
        // SAFETY: device memory only; a wrong address is the device's fault to report.
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
        // SAFETY: the stream is ours; the driver finishes its work in the background. After a fault every call fails.
        let _ = unsafe { call!(cuStreamDestroy_v2(self.raw)) };
    }
}

/// A point in a stream's work, with its time.
#[derive(Debug)]
pub struct Event {
    raw: sys::CUevent,
    _context: Context,
}

impl Event {
    /// An event that nothing has recorded.
    pub fn new(context: &Context) -> Result<Event, Error> {
        let mut raw = ptr::null_mut();
        // SAFETY: writes one pointer.
        unsafe { call!(cuEventCreate(&mut raw, 0)) }?;
        Ok(Event { raw, _context: context.clone() })
    }

    /// A new event at the end of the stream's work so far.
    pub fn after(stream: &Stream) -> Result<Event, Error> {
        let event = Event::new(stream.context())?;
        event.record(stream)?;
        Ok(event)
    }

    /// Moves it to the end of the stream's work so far.
    pub fn record(&self, stream: &Stream) -> Result<(), Error> {
        // SAFETY: both live and belong to contexts that live.
        unsafe { call!(cuEventRecord(self.raw, stream.raw)) }
    }

    /// Whether it was reached.
    pub fn is_reached(&self) -> Result<bool, Error> {
        // SAFETY: the event lives as long as `self`.
        ready("cuEventQuery", unsafe { sys::cuEventQuery(self.raw) })
    }

    /// Waits until it was reached, at most [`PATIENCE`].
    pub fn finish(&self) -> Result<(), Error> {
        self.finish_within(WAIT_LIMIT)
    }

    /// Waits until it was reached, at most `limit`.
    pub fn finish_within(&self, limit: Duration) -> Result<(), Error> {
        poll_until(limit, "an event", || self.is_reached())
    }

    /// Nanoseconds from `start` to this event, by the device's clock (resolution about half a microsecond). Both were reached.
    pub fn since_ns(&self, start: &Event) -> Result<f64, Error> {
        let mut milliseconds = 0.0_f32;
        // SAFETY: writes one number; events that were not recorded are refused.
        unsafe { call!(cuEventElapsedTime(&mut milliseconds, start.raw, self.raw)) }?;
        Ok(f64::from(milliseconds) * 1e6)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: the event is ours; the driver keeps what work still needs of it. After a fault every call fails.
        let _ = unsafe { call!(cuEventDestroy_v2(self.raw)) };
    }
}

fn ready(call: &'static str, result: CUresult) -> Result<bool, Error> {
    match result {
        CUresult::CUDA_ERROR_NOT_READY => Ok(false),
        result => check(call, result).map(|()| true),
    }
}

/// Asks until the answer is yes, at most `limit`. It spins: what it waits for takes microseconds, and is being timed.
pub(crate) fn poll_until(
    limit: Duration,
    what: &str,
    mut done: impl FnMut() -> Result<bool, Error>,
) -> Result<(), Error> {
    let start = Instant::now();
    while !done()? {
        if start.elapsed() > limit {
            return Err(Error::Timeout { what: what.into(), limit });
        }
        std::hint::spin_loop();
    }
    Ok(())
}
