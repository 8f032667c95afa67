//! Algorithm 2: controls how much of the CPU buffer prefill may use. A larger buffer admits prompts sooner (TTFT) and
//! makes decoding wait for fetches (TPOT).

/// Iterations in the violation window (eLLM 4.4.2).
pub const WINDOW: u32 = 5;

/// Violations within the window that trigger an event (eLLM 4.4.2).
pub const VIOLATIONS: u32 = 3;

/// The tuning factor alpha (eLLM 4.4.2).
pub const FACTOR: u64 = 2;

/// SLO violations of one scheduling iteration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Violations {
    /// A TTFT was above its SLO.
    pub ttft: bool,
    /// A TPOT was above its SLO.
    pub tpot: bool,
}

/// The buffer controller. The caller chooses the buffer's unit (chunks); the size starts at 1 and never falls below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferController {
    logical: u64,
    max: u64,
    ttft: Window,
    tpot: Window,
}

impl BufferController {
    /// Starts at size 1. `max` is B_max, the physical buffer; with 0 there is no buffer and the size stays 0.
    pub const fn new(max: u64) -> BufferController {
        let logical = if max == 0 { 0 } else { 1 };
        BufferController { logical, max, ttft: Window::EMPTY, tpot: Window::EMPTY }
    }

    /// Records one iteration and returns the new size. Shrinking evicts nothing: content above the new size drains on
    /// its own.
    pub fn iteration(&mut self, seen: Violations) -> u64 {
        self.ttft.push(seen.ttft);
        self.tpot.push(seen.tpot);
        let (ttft, tpot) = (self.ttft.event(), self.tpot.event());
        if tpot {
            self.logical = (self.logical / FACTOR).max(1).min(self.max);
        } else if ttft {
            self.logical = self.logical.saturating_mul(FACTOR).min(self.max);
        }
        if tpot || ttft {
            self.ttft = Window::EMPTY;
            self.tpot = Window::EMPTY;
        }
        self.logical
    }

    /// Returns size and windows as a digest word.
    pub const fn word(&self) -> u64 {
        self.logical ^ (self.ttft.0 as u64) << 48 ^ (self.tpot.0 as u64) << 56
    }

    /// Returns the current size.
    pub const fn logical(&self) -> u64 {
        self.logical
    }
}

/// The last [`WINDOW`] iterations, the newest in bit 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Window(u32);

impl Window {
    const EMPTY: Window = Window(0);

    fn push(&mut self, violated: bool) {
        self.0 = (self.0 << 1 | u32::from(violated)) & ((1 << WINDOW) - 1);
    }

    fn event(self) -> bool {
        self.0.count_ones() >= VIOLATIONS
    }
}
