//! The link that a copy passes: as fast as memory, or paced to a bandwidth, so that a laptop can stand for NVLink-C2C or
//! PCIe (DESIGN 4).

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// What one transfer takes of the link before another gets its turn.
const QUANTUM_BYTES: usize = 256 << 10;
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
    /// `bytes_per_s` in each direction; `None` = as fast as memory.
    pub(crate) fn new(bytes_per_s: Option<u64>) -> Links {
        let link = || Arc::new(Link::new(bytes_per_s));
        Links { to_device: link(), to_host: link() }
    }

    /// Changes the bandwidth of both, for transfers under way too.
    pub(crate) fn set(&self, bytes_per_s: Option<u64>) {
        self.to_device.set(bytes_per_s);
        self.to_host.set(bytes_per_s);
    }
}

/// One direction of the link, shared by its transfers.
#[derive(Debug)]
pub(crate) struct Link {
    /// 0 = not limited.
    bytes_per_s: AtomicU64,
    /// When everything reserved so far has passed.
    free_at: Mutex<Instant>,
}

impl Link {
    fn new(bytes_per_s: Option<u64>) -> Link {
        Link { bytes_per_s: AtomicU64::new(bytes_per_s.unwrap_or(0)), free_at: Mutex::new(Instant::now()) }
    }

    fn set(&self, bytes_per_s: Option<u64>) {
        self.bytes_per_s.store(bytes_per_s.unwrap_or(0), Ordering::Relaxed);
    }

    fn limited(&self) -> bool {
        self.bytes_per_s.load(Ordering::Relaxed) != 0
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
        if !self.limited() {
            return copy(0..bytes);
        }
        for from in (0..bytes).step_by(QUANTUM_BYTES) {
            let to = bytes.min(from + QUANTUM_BYTES);
            let passed = self.pass(to - from);
            copy(from..to)?;
            sleep_until(passed, last && to == bytes);
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
}

/// Lets the thread's sleeps end when they are due: paced copies sleep often and briefly. Without the right to change it, the
/// default slack stays.
pub(crate) fn sleep_precisely() {
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1_000));
}

/// Sleeps until `moment`, or not at all when that is very near and more quanta follow.
fn sleep_until(moment: Instant, last: bool) {
    loop {
        let left = moment.saturating_duration_since(Instant::now());
        if left.is_zero() || (left < SHORTEST_SLEEP && !last) {
            return;
        }
        std::thread::sleep(left);
    }
}
