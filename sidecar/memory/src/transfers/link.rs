//! The host link of a copy: not limited, or paced to a bandwidth, so that a laptop can emulate NVLink-C2C or
//! PCIe.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use sluice_policy::copy_priority::CopyPriority;

/// Bytes that one transfer sends before a more urgent one gets the link.
const QUANTUM_BYTES: usize = 256 << 10;
/// Smallest quantum, for links so slow that `QUANTUM_BYTES` would occupy them for longer than a tenth of a
/// second.
const MIN_QUANTUM_BYTES: usize = 256;
/// Sleeps shorter than this are deferred, because each wake-up takes a core from the engine. The last quantum
/// of a copy sleeps for any remaining time, so that the copy takes as long as on a real link.
const MIN_SLEEP: Duration = Duration::from_micros(250);
const NS_PER_S: u128 = 1_000_000_000;

/// Both directions, which do not slow each other down.
#[derive(Clone, Debug)]
pub(crate) struct PacedLinks {
    /// Host to device: fills, and KV that is loaded.
    pub(crate) to_device: Arc<PacedLink>,
    /// Device to host: KV that is offloaded.
    pub(crate) to_host: Arc<PacedLink>,
}

impl PacedLinks {
    /// Creates both links with the given bandwidths, bytes per second; `None` = not limited. Links that are not limited
    /// pass `piece_bytes` at a time, most urgent transfer first; `None` = they order nothing.
    pub(crate) fn new(
        to_device: Option<u64>,
        to_host: Option<u64>,
        piece_bytes: Option<usize>,
    ) -> PacedLinks {
        let link = |bytes_per_s| Arc::new(PacedLink { piece_bytes, ..PacedLink::new(bytes_per_s) });
        PacedLinks { to_device: link(to_device), to_host: link(to_host) }
    }

    /// Returns the bytes sent in both directions; rises while a copy makes progress.
    pub(crate) fn transferred_bytes(&self) -> u64 {
        let of = |link: &PacedLink| link.transferred.load(Ordering::Relaxed);
        of(&self.to_device).wrapping_add(of(&self.to_host))
    }

    /// Ends all waits for the links.
    pub(crate) fn close(&self) {
        self.to_device.close();
        self.to_host.close();
    }
}

/// One direction of the link, shared by its transfers. The most urgent active transfer has it, quantum by
/// quantum.
#[derive(Debug)]
pub(crate) struct PacedLink {
    /// Bandwidth; 0 = not limited.
    bytes_per_s: AtomicU64,
    transferred: AtomicU64,
    /// Bytes that pass at a time if the bandwidth is not limited; `None` = all, and no transfer waits.
    piece_bytes: Option<usize>,
    state: Mutex<LinkState>,
    /// Signals that another transfer may have become the most urgent.
    priority_changed: Condvar,
    close_signal: Condvar,
}

#[derive(Debug)]
struct LinkState {
    /// Time at which all reserved bytes have passed.
    free_at: Instant,
    /// Transfers in progress.
    active: BTreeSet<CopyPriority>,
    /// Number of transfers that wait for a more urgent one.
    waiting: usize,
    closed: bool,
}

/// One transfer, which uses the link until it is dropped.
#[derive(Debug)]
pub(crate) struct Transfer<'a> {
    link: &'a PacedLink,
    priority: CopyPriority,
    waited: Duration,
}

impl PacedLink {
    fn new(bytes_per_s: Option<u64>) -> PacedLink {
        let (wanted, free_at) = (BTreeSet::new(), Instant::now());
        PacedLink {
            bytes_per_s: AtomicU64::new(bytes_per_s.unwrap_or(0)),
            transferred: AtomicU64::new(0),
            piece_bytes: None,
            state: Mutex::new(LinkState { free_at, active: wanted, waiting: 0, closed: false }),
            priority_changed: Condvar::new(),
            close_signal: Condvar::new(),
        }
    }

    /// Changes the bandwidth, also for transfers in progress.
    pub(crate) fn set(&self, bytes_per_s: Option<u64>) {
        let state = self.lock();
        self.bytes_per_s.store(bytes_per_s.unwrap_or(0), Ordering::Relaxed);
        drop(state);
        self.priority_changed.notify_all();
    }

    fn close(&self) {
        self.lock().closed = true;
        self.priority_changed.notify_all();
        self.close_signal.notify_all();
    }

    fn rate(&self) -> u64 {
        self.bytes_per_s.load(Ordering::Relaxed)
    }

    /// Returns the bytes that pass at a time; `None` = all.
    fn quantum(&self) -> Option<usize> {
        let rate = self.rate();
        let tenth = usize::try_from(rate / 10).unwrap_or(QUANTUM_BYTES);
        if rate == 0 { self.piece_bytes } else { Some(tenth.clamp(MIN_QUANTUM_BYTES, QUANTUM_BYTES)) }
    }

    /// Begins a transfer. Time during which the link was idle cannot be used later.
    pub(crate) fn begin(&self, rank: CopyPriority) -> Transfer<'_> {
        let mut state = self.lock();
        state.free_at = state.free_at.max(Instant::now());
        let unknown = state.active.insert(rank);
        assert!(unknown, "each order is one transfer");
        Transfer { link: self, priority: rank, waited: Duration::ZERO }
    }

    /// Sleeps until `moment`. Does not sleep if the link is closed, or if `moment` is very near and more
    /// quanta follow.
    fn sleep_until(&self, moment: Instant, last: bool) {
        let mut state = self.lock();
        loop {
            let left = moment.saturating_duration_since(Instant::now());
            if state.closed || left.is_zero() || (left < MIN_SLEEP && !last) {
                return;
            }
            state = self.close_signal.wait_timeout(state, left).expect("no holder of the link panics").0;
        }
    }

    fn lock(&self) -> MutexGuard<'_, LinkState> {
        self.state.lock().expect("no holder of the link panics")
    }
}

impl<'a> Transfer<'a> {
    /// Sends part of a transfer: calls `copy` with consecutive pieces of `0..bytes`, at the pace of the link
    /// and while no transfer is more urgent. With `last` the transfer ends with this part and waits until the
    /// last byte has passed. Stops at the first error.
    pub(crate) fn transfer<E>(
        &mut self,
        bytes: usize,
        last: bool,
        mut copy: impl FnMut(Range<usize>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut from = 0;
        while from < bytes {
            let Some(quantum) = self.link.quantum() else {
                copy(from..bytes)?;
                self.link.transferred.fetch_add((bytes - from) as u64, Ordering::Relaxed);
                return Ok(());
            };
            let to = bytes.min(from + quantum);
            let passed = self.reserve(to - from);
            copy(from..to)?;
            self.link.transferred.fetch_add((to - from) as u64, Ordering::Relaxed);
            self.link.sleep_until(passed, last && to == bytes);
            from = to;
        }
        Ok(())
    }

    /// Returns the time for which more urgent transfers had the link.
    pub(crate) fn waited(&self) -> Duration {
        self.waited
    }

    /// Reserves the link for `bytes` after everything reserved before. Returns the time at which they have
    /// passed.
    fn reserve(&mut self, bytes: usize) -> Instant {
        let mut state = self.wait_until_first();
        let rate = u128::from(self.link.rate());
        if rate != 0 {
            state.free_at += Duration::from_nanos((bytes as u128 * NS_PER_S).div_ceil(rate) as u64);
        }
        state.free_at
    }

    /// Waits until no transfer on the link is more urgent. Priorities never change, so only the end of a
    /// transfer, another bandwidth or closing the link ends the wait.
    fn wait_until_first(&mut self) -> MutexGuard<'a, LinkState> {
        let (link, rank) = (self.link, self.priority);
        let mut state = link.lock();
        let waits = |state: &LinkState| {
            let passed = state.active.first().is_some_and(|most| *most < rank);
            passed && !state.closed && link.quantum().is_some()
        };
        if waits(&state) {
            let begun = Instant::now();
            state.waiting += 1;
            let woken = link.priority_changed.wait_while(state, |state| waits(state));
            state = woken.expect("no holder of the link panics");
            state.waiting -= 1;
            let now = Instant::now();
            self.waited += now - begun;
            state.free_at = state.free_at.max(now);
        }
        state
    }
}

impl Drop for Transfer<'_> {
    fn drop(&mut self) {
        // The lock is poisoned only if a holder panicked, and then the whole memory is unusable.
        let Ok(mut state) = self.link.state.lock() else { return };
        state.active.remove(&self.priority);
        let others_wait = state.waiting > 0;
        drop(state);
        if others_wait {
            self.link.priority_changed.notify_all();
        }
    }
}

/// Sets the thread's timer slack to 1 µs, because paced copies sleep often and briefly. Keeps the default
/// slack if the process lacks the permission.
pub(crate) fn set_timer_slack() {
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1_000));
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::thread::scope;

    use sluice_policy::ids::{ActionId, Nanos};

    use super::*;

    const PIECE: usize = QUANTUM_BYTES;

    /// Runs a transfer of 40 pieces without a deadline. Signals after its first piece and logs each piece.
    fn run_background(link: &PacedLink, log: &Mutex<Vec<u8>>, first: &Sender<()>) {
        let mut transfer = link.begin(CopyPriority::new(ActionId(1), None, Nanos(0)));
        let carried: Result<(), ()> = transfer.transfer(40 * PIECE, true, |_| {
            log.lock().unwrap().push(b'f');
            first.send(()).unwrap();
            Ok(())
        });
        carried.unwrap();
    }

    /// Runs a transfer of four pieces after the other has begun.
    fn run_urgent(link: &PacedLink, log: &Mutex<Vec<u8>>, due: Option<Nanos>, begun: &Receiver<()>) {
        begun.recv().unwrap();
        let mut transfer = link.begin(CopyPriority::new(ActionId(2), due, Nanos(0)));
        log.lock().unwrap().push(b'|');
        let carried: Result<(), ()> = transfer.transfer(4 * PIECE, true, |_| {
            log.lock().unwrap().push(b'n');
            Ok(())
        });
        carried.unwrap();
    }

    /// Returns the order of the pieces, with `|` where the urgent transfer began.
    fn piece_order(due: Option<Nanos>) -> String {
        // A piece takes 5 ms, so the second transfer begins before the first piece has passed.
        let (link, log) = (PacedLink::new(Some(50 << 20)), Mutex::default());
        let (first, begun) = channel();
        scope(|scope| {
            scope.spawn(|| run_background(&link, &log, &first));
            run_urgent(&link, &log, due, &begun);
        });
        String::from_utf8(log.into_inner().unwrap()).unwrap()
    }

    #[test]
    fn urgent_transfer_preempts_after_current_quantum() {
        let log = piece_order(Some(Nanos(1)));
        let (_, after) = log.split_once('|').unwrap();
        let ahead = after.find("nnnn").expect("nothing comes between its pieces");
        assert!(ahead <= 1, "at most the piece that had its turn: {log}");
        assert_eq!(log.matches('f').count(), 40, "{log}");
    }

    #[test]
    fn transfers_without_deadlines_are_fifo() {
        let log = piece_order(None);
        assert!(log.ends_with("fnnnn"), "{log}");
    }

    /// The link of a GPU is not paced: the urgent transfer has it after the piece that is under way.
    #[test]
    fn urgent_transfer_goes_first_on_link_that_orders_pieces() {
        let link = PacedLink { piece_bytes: Some(PIECE), ..PacedLink::new(None) };
        let log = Mutex::new(String::new());
        let (first, waits) = channel();
        let (begun, urgent_began) = channel();
        let (link, log) = (&link, &log);
        scope(|scope| {
            scope.spawn(move || {
                let mut far = link.begin(CopyPriority::new(ActionId(1), None, Nanos(0)));
                let carried = far.transfer(40 * PIECE, true, |piece| {
                    log.lock().unwrap().push('f');
                    if piece.start == 0 {
                        first.send(()).unwrap();
                        urgent_began.recv().unwrap();
                    }
                    Ok::<(), ()>(())
                });
                carried.unwrap();
            });
            waits.recv().unwrap();
            let mut urgent = link.begin(CopyPriority::new(ActionId(2), Some(Nanos(1)), Nanos(0)));
            begun.send(()).unwrap();
            let carried = urgent.transfer(4 * PIECE, true, |_| {
                log.lock().unwrap().push('n');
                Ok::<(), ()>(())
            });
            carried.unwrap();
        });
        assert_eq!(*log.lock().unwrap(), format!("fnnnn{}", "f".repeat(39)));
    }

    #[test]
    fn unlimited_or_closed_link_never_waits() {
        for close in [false, true] {
            let link = PacedLink::new(close.then_some(1));
            if close {
                link.close();
            }
            let _urgent = link.begin(CopyPriority::new(ActionId(1), Some(Nanos(0)), Nanos(0)));
            let mut far = link.begin(CopyPriority::new(ActionId(2), None, Nanos(0)));
            let mut bytes = 0;
            let carried: Result<(), ()> = far.transfer(PIECE, true, |piece| {
                bytes += piece.len();
                Ok(())
            });
            assert_eq!((carried, bytes, far.waited()), (Ok(()), PIECE, Duration::ZERO));
        }
    }

    #[test]
    fn bandwidth_change_or_close_wakes_waiting_transfer() {
        for news in [(|link: &PacedLink| link.set(None)) as fn(&PacedLink), PacedLink::close] {
            let link = PacedLink::new(Some(50 << 20));
            let _urgent = link.begin(CopyPriority::new(ActionId(1), Some(Nanos(0)), Nanos(0)));
            scope(|scope| {
                let waits = scope.spawn(|| {
                    let mut far = link.begin(CopyPriority::new(ActionId(2), None, Nanos(0)));
                    far.transfer(PIECE, true, |_| Ok::<(), ()>(()))
                });
                while link.lock().waiting == 0 {
                    std::thread::yield_now();
                }
                news(&link);
                assert_eq!(waits.join().unwrap(), Ok(()));
            });
        }
    }
}
