//! The control page. Per layer it holds two generations for the weights and two for the KV: `ready` (the sidecar has
//! copied it in) and `done` (the engine has read it for the last time). Each generation has its own cache line,
//! together with the futex that wakes its waiters.
//!
//! A page for an engine that schedules by itself also holds its passes ([`PassRecord`]) and what each of them finds in
//! the layers that move ([`Lease`]). The page of an engine that runs the sidecar's steps has neither.

mod extended_page;
mod leases;
mod passes;

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use rustix::thread::futex;
use sluice_policy::ids::{Generation, LayerId};
use thiserror::Error;

use crate::region::{Region, RegionError};

pub use extended_page::PASS_RECORDS;
pub use leases::Lease;
pub use passes::{PassCursor, PassRecord};

const MAGIC: u64 = u64::from_le_bytes(*b"SLNKCTRL");
const VERSION: u64 = 3;
/// Header word that counts the iterations of the sidecar's scheduler.
const HEARTBEATS: usize = 3;
/// Header word that counts the layers that the engine has begun.
const LAYERS_BEGUN: usize = 4;
/// Header word with the number of the last pass that the worker has begun.
const PASSES_BEGUN: usize = 5;
/// Header word with the number of the last pass that has ended.
const PASSES_ENDED: usize = 6;
/// Bytes of a cache line: the header has one, each layer [`LAYER_LINES`].
const LINE_BYTES: usize = 64;
const LINE_LONGS: usize = LINE_BYTES / 8;
const LINE_WORDS: usize = LINE_BYTES / 4;
/// Cache lines of a layer: one for each [`Signal`].
const LAYER_LINES: usize = 4;
/// Reads of the generation before a waiter sleeps: a few microseconds.
const SPIN_ITERATIONS: u32 = 400;
/// Longest sleep before the abort flag is read again, since a peer that has exited wakes no waiter.
const SLEEP: Duration = Duration::from_millis(10);

/// A control page that cannot be used.
#[derive(Debug, Error)]
pub enum ControlError {
    /// Not a control page of this version.
    #[error(
        "the control page has magic {magic:#018x} and version {version}, which this build does not support"
    )]
    NotAControlPage {
        /// First word.
        magic: u64,
        /// Second word.
        version: u64,
    },
    /// Made for another model.
    #[error("control page has {got} layers, the model has {needed}")]
    Layers {
        /// Layers of the page.
        got: u64,
        /// Layers of the model.
        needed: u16,
    },
    /// A layer outside of the page.
    #[error("layer {layer} is not in a control page of {layers} layers")]
    OutOfRange {
        /// The requested layer.
        layer: u16,
        /// Layers of the page.
        layers: u16,
    },
    /// The shared memory failed.
    #[error(transparent)]
    Region(#[from] RegionError),
}

/// Result of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitResult {
    /// The generation is published.
    Reached,
    /// The abort flag was raised first.
    Aborted,
    /// The time limit passed first.
    TimedOut,
    /// A later generation is published. Generations only rise, so the expected one will not appear: its slot or buffer
    /// was filled again before it was read.
    Overtaken,
}

/// Limits of a wait.
#[derive(Clone, Copy, Debug)]
pub struct WaitLimit<'a> {
    /// Ends the wait; set by another thread of this process.
    pub abort: &'a AtomicBool,
    /// Longest wait; `None` = until aborted.
    pub limit: Option<Duration>,
}

impl<'a> WaitLimit<'a> {
    /// Waits until `abort` is raised.
    pub fn unlimited(abort: &'a AtomicBool) -> Self {
        WaitLimit { abort, limit: None }
    }
}

#[derive(Clone, Copy)]
#[repr(usize)]
enum Signal {
    Ready,
    Done,
    KvReady,
    KvDone,
}

impl Signal {
    const ALL: [Signal; LAYER_LINES] = [Signal::Ready, Signal::Done, Signal::KvReady, Signal::KvDone];
}

/// One cache line: a generation, a publication counter that waiters sleep on, and the number of sleeping waiters.
struct GenerationWord<'a> {
    value: &'a AtomicU64,
    published: &'a AtomicU32,
    waiters: &'a AtomicU32,
}

impl GenerationWord<'_> {
    /// Publishes a value, and wakes its waiters.
    fn publish(&self, value: u64) {
        self.value.store(value, Ordering::SeqCst);
        self.wake();
    }

    /// Wakes the waiters of a value that was changed.
    fn wake(&self) {
        self.published.fetch_add(1, Ordering::SeqCst);
        // A waiter increments `waiters` before its last read of the value. So it reads the new value, or it is counted
        // here.
        if self.waiters.load(Ordering::SeqCst) != 0 {
            // A failure needs no handling: every waiter wakes at its timeout.
            let _ = futex::wake(self.published, futex::Flags::empty(), i32::MAX as u32);
        }
    }
}

/// The page, at either end.
#[derive(Debug)]
pub struct ControlPage {
    region: Region,
    layers: u16,
}

impl ControlPage {
    /// Creates a page for `layers` layers, with all generations 0.
    pub fn create(layers: u16) -> Result<ControlPage, ControlError> {
        ControlPage::create_sized(layers, generation_bytes(layers))
    }

    fn create_sized(layers: u16, bytes: usize) -> Result<ControlPage, ControlError> {
        let region = Region::create("sluice-control", bytes)?;
        for (at, value) in [(0, MAGIC), (1, VERSION), (2, u64::from(layers))] {
            region.long(at).expect("the header is in the page").store(value, Ordering::Release);
        }
        Ok(ControlPage { region, layers })
    }

    /// Maps the peer's page for any number of layers, to read the sidecar's heartbeats only.
    pub fn open_any_layers(fd: OwnedFd) -> Result<ControlPage, ControlError> {
        let region = Region::open(fd, generation_bytes(0))?;
        let [magic, version] =
            [0, 1].map(|at| region.long(at).expect("the header is in the page").load(Ordering::Acquire));
        if magic != MAGIC || version != VERSION {
            return Err(ControlError::NotAControlPage { magic, version });
        }
        Ok(ControlPage { region, layers: 0 })
    }

    /// Maps the peer's page.
    pub fn open(fd: OwnedFd, layers: u16) -> Result<ControlPage, ControlError> {
        ControlPage::open_sized(fd, layers, generation_bytes(layers))
    }

    fn open_sized(fd: OwnedFd, layers: u16, bytes: usize) -> Result<ControlPage, ControlError> {
        let region = Region::open(fd, bytes)?;
        let read = |at| region.long(at).expect("the header is in the page").load(Ordering::Acquire);
        let (magic, version, got) = (read(0), read(1), read(2));
        if magic != MAGIC || version != VERSION {
            return Err(ControlError::NotAControlPage { magic, version });
        }
        if got != u64::from(layers) {
            return Err(ControlError::Layers { got, needed: layers });
        }
        Ok(ControlPage { region, layers })
    }

    /// Returns the bytes of the generations, which come first.
    pub fn bytes(&self) -> u64 {
        Self::bytes_of(self.layers)
    }

    /// Returns the bytes of the generations of `layers` layers.
    pub fn bytes_of(layers: u16) -> u64 {
        generation_bytes(layers) as u64
    }

    /// Returns the memfd, to pass to the engine.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.region.fd()
    }

    /// Sidecar: counts one iteration of the scheduler's thread.
    pub fn heartbeat(&self) {
        self.header(HEARTBEATS).fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the iterations of the sidecar's scheduler; 0 = it has not started.
    pub fn heartbeats(&self) -> u64 {
        self.header(HEARTBEATS).load(Ordering::Relaxed)
    }

    /// Engine: counts a layer that it begins.
    pub fn begin_layer(&self) {
        self.header(LAYERS_BEGUN).fetch_add(1, Ordering::Relaxed);
    }

    /// Returns a number that changes whenever the engine begins a layer or a pass, or ends a pass, or a `ready` or
    /// `done` is published.
    pub fn progress(&self) -> u64 {
        let published = |side, layer| {
            let word = self.word(side, layer).expect("the layer is one of the page's");
            u64::from(word.published.load(Ordering::Relaxed))
        };
        let of_layer =
            |layer| Signal::ALL.iter().map(|side| published(*side, layer)).fold(0, u64::wrapping_add);
        let counters = [LAYERS_BEGUN, PASSES_BEGUN, PASSES_ENDED];
        let begun =
            counters.iter().map(|at| self.header(*at).load(Ordering::Relaxed)).fold(0, u64::wrapping_add);
        (0..self.layers).map(|layer| of_layer(LayerId(layer))).fold(begun, u64::wrapping_add)
    }

    fn header(&self, at: usize) -> &AtomicU64 {
        self.region.long(at).expect("the header is in the page")
    }

    /// Sidecar: publishes that `layer`'s slot holds `generation`.
    pub fn publish_ready(&self, layer: LayerId, generation: Generation) -> Result<(), ControlError> {
        self.publish(Signal::Ready, layer, generation)
    }

    /// Engine: publishes that `generation` of `layer` was read for the last time.
    pub fn publish_done(&self, layer: LayerId, generation: Generation) -> Result<(), ControlError> {
        self.publish(Signal::Done, layer, generation)
    }

    /// Returns the generation in `layer`'s slot.
    pub fn ready(&self, layer: LayerId) -> Result<Generation, ControlError> {
        Ok(Generation(self.word(Signal::Ready, layer)?.value.load(Ordering::Acquire)))
    }

    /// Returns the last generation of `layer` that the engine has read.
    pub fn done(&self, layer: LayerId) -> Result<Generation, ControlError> {
        Ok(Generation(self.word(Signal::Done, layer)?.value.load(Ordering::Acquire)))
    }

    /// Waits until `ready` is exactly `generation`. An earlier one is an older copy. A later one ends the wait as
    /// [`WaitResult::Overtaken`], because the slot's contents belong to another step.
    pub fn wait_ready(
        &self,
        layer: LayerId,
        generation: Generation,
        patience: WaitLimit<'_>,
    ) -> Result<WaitResult, ControlError> {
        self.wait_exactly(Signal::Ready, layer, generation, patience)
    }

    /// Waits until `done` is at least `generation`.
    pub fn wait_done(
        &self,
        layer: LayerId,
        generation: Generation,
        patience: WaitLimit<'_>,
    ) -> Result<WaitResult, ControlError> {
        Ok(wait(&self.word(Signal::Done, layer)?, |value| value >= generation.0, patience))
    }

    /// Sidecar: publishes that the offloaded KV of `layer` is in its buffer, as `generation`.
    pub fn publish_kv_ready(&self, layer: LayerId, generation: Generation) -> Result<(), ControlError> {
        self.publish(Signal::KvReady, layer, generation)
    }

    /// Engine: publishes that `generation` of `layer`'s KV was read for the last time.
    pub fn publish_kv_done(&self, layer: LayerId, generation: Generation) -> Result<(), ControlError> {
        self.publish(Signal::KvDone, layer, generation)
    }

    /// Returns the generation of `layer`'s KV in its buffer.
    pub fn kv_ready(&self, layer: LayerId) -> Result<Generation, ControlError> {
        Ok(Generation(self.word(Signal::KvReady, layer)?.value.load(Ordering::Acquire)))
    }

    /// Returns the last generation of `layer`'s KV that the engine has read.
    pub fn kv_done(&self, layer: LayerId) -> Result<Generation, ControlError> {
        Ok(Generation(self.word(Signal::KvDone, layer)?.value.load(Ordering::Acquire)))
    }

    /// As [`ControlPage::wait_ready`], for the layer's KV.
    pub fn wait_kv_ready(
        &self,
        layer: LayerId,
        generation: Generation,
        patience: WaitLimit<'_>,
    ) -> Result<WaitResult, ControlError> {
        self.wait_exactly(Signal::KvReady, layer, generation, patience)
    }

    /// As [`ControlPage::wait_done`], for the layer's KV.
    pub fn wait_kv_done(
        &self,
        layer: LayerId,
        generation: Generation,
        patience: WaitLimit<'_>,
    ) -> Result<WaitResult, ControlError> {
        Ok(wait(&self.word(Signal::KvDone, layer)?, |value| value >= generation.0, patience))
    }

    fn wait_exactly(
        &self,
        side: Signal,
        layer: LayerId,
        generation: Generation,
        patience: WaitLimit<'_>,
    ) -> Result<WaitResult, ControlError> {
        let word = self.word(side, layer)?;
        let end = wait(&word, |value| value >= generation.0, patience);
        let overtaken = end == WaitResult::Reached && word.value.load(Ordering::SeqCst) != generation.0;
        Ok(if overtaken { WaitResult::Overtaken } else { end })
    }

    fn publish(&self, side: Signal, layer: LayerId, generation: Generation) -> Result<(), ControlError> {
        let word = self.word(side, layer)?;
        word.publish(generation.0);
        Ok(())
    }

    fn word(&self, side: Signal, layer: LayerId) -> Result<GenerationWord<'_>, ControlError> {
        if layer.0 >= self.layers {
            return Err(ControlError::OutOfRange { layer: layer.0, layers: self.layers });
        }
        let line = line(side, layer);
        let value = self.region.long(line * LINE_LONGS);
        let words = self.region.words(line * LINE_WORDS + 2, 2);
        let [published, sleepers] = words.expect("the line is in the page") else { unreachable!() };
        Ok(GenerationWord { value: value.expect("the line is in the page"), published, waiters: sleepers })
    }
}

/// Returns the byte of the page at which `ready` of a layer's weights is, for a device that writes it.
pub fn ready_offset(layer: LayerId) -> u64 {
    offset(Signal::Ready, layer)
}

/// Returns the byte of the page at which `done` of a layer's weights is, for a device that waits for it.
pub fn done_offset(layer: LayerId) -> u64 {
    offset(Signal::Done, layer)
}

/// Returns the byte of the page at which `ready` of a layer's KV is, for a device that waits for it.
pub fn kv_ready_offset(layer: LayerId) -> u64 {
    offset(Signal::KvReady, layer)
}

/// Returns the byte of the page at which `done` of a layer's KV is, for a device that waits for it.
pub fn kv_done_offset(layer: LayerId) -> u64 {
    offset(Signal::KvDone, layer)
}

fn offset(side: Signal, layer: LayerId) -> u64 {
    (line(side, layer) * LINE_BYTES) as u64
}

/// Returns the cache line of a generation.
fn line(side: Signal, layer: LayerId) -> usize {
    1 + LAYER_LINES * layer.index() + side as usize
}

fn generation_bytes(layers: u16) -> usize {
    (1 + LAYER_LINES * usize::from(layers)) * LINE_BYTES
}

fn wait(word: &GenerationWord<'_>, reached: impl Fn(u64) -> bool, patience: WaitLimit<'_>) -> WaitResult {
    for _ in 0..SPIN_ITERATIONS {
        if reached(word.value.load(Ordering::Acquire)) {
            return WaitResult::Reached;
        }
        std::hint::spin_loop();
    }
    word.waiters.fetch_add(1, Ordering::SeqCst);
    let end = sleep(word, reached, patience);
    word.waiters.fetch_sub(1, Ordering::SeqCst);
    end
}

fn sleep(word: &GenerationWord<'_>, reached: impl Fn(u64) -> bool, patience: WaitLimit<'_>) -> WaitResult {
    let begun = std::time::Instant::now();
    loop {
        let seen = word.published.load(Ordering::SeqCst);
        if reached(word.value.load(Ordering::SeqCst)) {
            return WaitResult::Reached;
        }
        if patience.abort.load(Ordering::Relaxed) {
            return WaitResult::Aborted;
        }
        let left = patience.limit.map_or(SLEEP, |limit| limit.saturating_sub(begun.elapsed()).min(SLEEP));
        if left.is_zero() {
            return WaitResult::TimedOut;
        }
        let timeout = futex::Timespec { tv_sec: 0, tv_nsec: left.subsec_nanos().into() };
        // Woken, timed out, interrupted, or the counter changed: read again in every case.
        let _ = futex::wait(word.published, futex::Flags::empty(), seen, Some(&timeout));
    }
}
