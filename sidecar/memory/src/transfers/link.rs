//! The link that a copy passes: as fast as memory, or paced to a bandwidth, so that a laptop can stand for NVLink-C2C or
//! PCIe (DESIGN 4).

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// What one transfer takes of the link before another gets its turn.
const QUANTUM_BYTES: usize = 256 << 10;
/// Least of it, on a link so slow that a quantum would hold it for longer than a tenth of a second.
const LEAST_QUANTUM_BYTES: usize = 256;
/// Sleeps shorter than this are put off: waking up takes a computing core from the engine each time. The last quantum of a
/// copy sleeps however short the rest is, so that the copy takes as long as on a real link.
const SHORTEST_SLEEP: Duration = Duration::from_micros(250);
const NS_PER_S: u128 = 1_000_000_000;

/// Both directions, which do not slow each other down.
#[derive(Clone, Debug)]
pub(crate) struct Links {
    /// Host to device: fills, and KV that comes back.
    pub(crate) to_device: Arc<Link>,
    /// Device to host: KV that goes out.
    pub(crate) to_host: Arc<Link>,
}

impl Links {
    /// Bytes per second to the device and to the host; `None` = as fast as memory.
    pub(crate) fn new(to_device: Option<u64>, to_host: Option<u64>) -> Links {
        let link = |bytes_per_s| Arc::new(Link::new(bytes_per_s));
        Links { to_device: link(to_device), to_host: link(to_host) }
    }

    /// Nothing waits for a link any more.
    pub(crate) fn close(&self) {
        self.to_device.close();
        self.to_host.close();
    }
}

/// One direction of the link, shared by its transfers.
#[derive(Debug)]
pub(crate) struct Link {
    /// 0 = not limited.
    bytes_per_s: AtomicU64,
    /// When everything reserved so far has passed.
    free_at: Mutex<Instant>,
    closed: Mutex<bool>,
    closes: Condvar,
}

impl Link {
    fn new(bytes_per_s: Option<u64>) -> Link {
        Link {
            bytes_per_s: AtomicU64::new(bytes_per_s.unwrap_or(0)),
            free_at: Mutex::new(Instant::now()),
            closed: Mutex::new(false),
            closes: Condvar::new(),
        }
    }

    /// Changes the bandwidth, for transfers under way too.
    pub(crate) fn set(&self, bytes_per_s: Option<u64>) {
        self.bytes_per_s.store(bytes_per_s.unwrap_or(0), Ordering::Relaxed);
    }

    fn close(&self) {
        *self.closed.lock().expect("no holder of the link panics") = true;
        self.closes.notify_all();
    }

    /// Bytes that pass at a time; `None` = all.
    fn quantum(&self) -> Option<usize> {
        let rate = self.bytes_per_s.load(Ordering::Relaxed);
        let tenth = usize::try_from(rate / 10).unwrap_or(QUANTUM_BYTES);
        (rate != 0).then(|| tenth.clamp(LEAST_QUANTUM_BYTES, QUANTUM_BYTES))
    }

    /// A transfer begins: time in which the link was idle is not made up for.
    pub(crate) fn begin(&self) {
        let mut free_at = self.free_at.lock().expect("no holder of the link panics");
        *free_at = (*free_at).max(Instant::now());
    }

    /// Part of a transfer: `copy` gets the range `0..bytes` piece by piece, at the pace of the link; `last` = the transfer
    /// ends with this part, however near the moment is at which it has passed. Stops at the first error.
    pub(crate) fn carry<E>(
        &self,
        bytes: usize,
        last: bool,
        mut copy: impl FnMut(Range<usize>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut from = 0;
        while from < bytes {
            let Some(quantum) = self.quantum() else { return copy(from..bytes) };
            let to = bytes.min(from + quantum);
            let passed = self.pass(to - from);
            copy(from..to)?;
            self.sleep_until(passed, last && to == bytes);
            from = to;
        }
        Ok(())
    }

    /// `bytes` pass, after everything that was reserved before. Returns the moment when they have.
    fn pass(&self, bytes: usize) -> Instant {
        let mut free_at = self.free_at.lock().expect("no holder of the link panics");
        let rate = u128::from(self.bytes_per_s.load(Ordering::Relaxed));
        if rate != 0 {
            *free_at += Duration::from_nanos((bytes as u128 * NS_PER_S).div_ceil(rate) as u64);
        }
        *free_at
    }

    /// Sleeps until `moment`, or not at all when that is very near and more quanta follow, or the link is closed.
    fn sleep_until(&self, moment: Instant, last: bool) {
        let mut closed = self.closed.lock().expect("no holder of the link panics");
        loop {
            let left = moment.saturating_duration_since(Instant::now());
            if *closed || left.is_zero() || (left < SHORTEST_SLEEP && !last) {
                return;
            }
            closed = self.closes.wait_timeout(closed, left).expect("no holder of the link panics").0;
        }
    }
}

/// Lets the thread's sleeps end when they are due: paced copies sleep often and briefly. Without the right to change it, the
/// default slack stays.
pub(crate) fn sleep_precisely() {
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1_000));
}
