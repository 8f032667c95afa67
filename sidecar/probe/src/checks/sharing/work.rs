//! Work that keeps a part of the device busy, and its rate.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sluice_memory::cuda::{Buffer, Context, Event, PinnedMemory, Stream};

use super::clock::now_ns;
use super::signalled::{self, SignalledCopies, WORDS};
use super::spread::SampleSpread;
use crate::Error;
use crate::bench::ProbeOptions;
use crate::kernels::Kernels;

/// A kind of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Load {
    /// Copies from registered host memory.
    Copy,
    /// Copies of 16 MiB (4 MiB with `--quick`), one at a time; each waits for a word and writes one.
    Signalled,
    /// A kernel that reads device memory.
    Read,
    /// A matrix product.
    Product,
}

/// Result of a run.
#[derive(Debug, Serialize, Deserialize)]
pub struct Track {
    /// One rate per slice of time.
    pub rates: Vec<f64>,
    /// Milliseconds between the ends of two pieces of work; for signalled copies, from word to word.
    pub times_ms: SampleSpread,
}

/// Pieces in flight, so that the device always has a next one.
const DEPTH: usize = 4;
/// Minimum length of a slice for a rate: longer than the time slices of contexts.
const SLICE_NS: u64 = 20_000_000;
/// Minimum number of timed pieces, even after the window.
const MIN_SAMPLES: usize = 3;
/// Time limit per piece.
const LIMIT: Duration = Duration::from_secs(10);

/// A load and its resources.
#[derive(Debug)]
pub struct RunningLoad {
    load: Load,
    stream: Stream,
    kernels: Kernels,
    /// Source of copies; one page for loads that do not copy.
    host: PinnedMemory,
    device: Buffer,
    /// Bytes of one copy, of one matrix or of one read.
    bytes: u64,
    /// Rows of a matrix.
    side: u64,
    /// Warm-up time in nanoseconds, which is not counted: clocks and the link are slow after idle time.
    warm_up_ns: u64,
}

impl Load {
    /// All kinds.
    pub const ALL: [Load; 4] = [Load::Copy, Load::Signalled, Load::Read, Load::Product];

    /// Returns the load's name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Load::Copy => "copy",
            Load::Signalled => "signalled copy",
            Load::Read => "read",
            Load::Product => "product",
        }
    }

    /// Returns the unit of its rate.
    pub fn unit(self) -> &'static str {
        match self {
            Load::Copy | Load::Signalled | Load::Read => "GB/s",
            Load::Product => "GFLOP/s",
        }
    }

    /// Returns the bytes of a piece of its work: of a copy, of a read, or of a matrix.
    pub fn bytes(self, setup: ProbeOptions) -> u64 {
        match self {
            Load::Copy => setup.pick(16, 64) << 20,
            Load::Signalled => setup.pick(4, 16) << 20,
            Load::Read => setup.pick(64, 512) << 20,
            Load::Product => side(setup) * side(setup) * 4,
        }
    }

    /// Describes the times in its [`Track`].
    pub fn times(self) -> &'static str {
        match self {
            Load::Signalled => "from word to word",
            Load::Copy | Load::Read | Load::Product => "between pieces",
        }
    }
}

/// Returns the rows and columns of the matrices of a product.
fn side(setup: ProbeOptions) -> u64 {
    setup.pick(512, 4096)
}

impl RunningLoad {
    /// Allocates the resources of `load`.
    pub fn new(setup: ProbeOptions, context: &Context, load: Load) -> Result<RunningLoad, Error> {
        let (side, bytes) = (side(setup), load.bytes(setup));
        let (host, device) = match load {
            Load::Copy => (bytes, bytes),
            Load::Signalled => (bytes + WORDS, bytes),
            Load::Read => (4096, bytes),
            Load::Product => (4096, 3 * bytes),
        };
        let work = RunningLoad {
            load,
            stream: Stream::new(context)?,
            kernels: Kernels::load(context)?,
            host: PinnedMemory::registered(context, host)?,
            device: Buffer::new(context, device)?,
            bytes,
            side,
            warm_up_ns: setup.pick(20, 300) * 1_000_000,
        };
        // Fill with 1.0, an ordinary number: products are slow with unusual numbers.
        work.stream.fill(work.device.at(0), 0x3f80_0000, device)?;
        work.submit_one()?;
        work.stream.finish_within(LIMIT)?;
        Ok(work)
    }

    /// Runs from `start_ns` (monotonic clock) on, first for the warm-up time, then for `window_ns`, or until `ends` is
    /// set.
    pub fn run(&self, (start_ns, window_ns): (u64, u64), ends: &AtomicBool) -> Result<Track, Error> {
        while now_ns() < start_ns {
            std::hint::spin_loop();
        }
        let warm_ns = start_ns + self.warm_up_ns;
        let goes_on = || now_ns() < warm_ns + window_ns && !ends.load(Ordering::Relaxed);
        match self.load {
            Load::Signalled => self.one_by_one(warm_ns, goes_on),
            Load::Copy | Load::Read | Load::Product => self.back_to_back(warm_ns, goes_on),
        }
    }

    /// Times each piece.
    fn one_by_one(&self, warm_ns: u64, goes_on: impl Fn() -> bool) -> Result<Track, Error> {
        let mut times = Vec::new();
        while goes_on() || times.len() < MIN_SAMPLES {
            let time = self.signalled().once()?;
            if now_ns() >= warm_ns {
                times.push(time);
            }
        }
        let ms: Vec<f64> = times.iter().map(|ns| *ns as f64 / 1e6).collect();
        Ok(Track { rates: signalled::rates(&times, self.bytes), times_ms: SampleSpread::of(&ms) })
    }

    /// Runs pieces without a pause.
    fn back_to_back(&self, warm_ns: u64, goes_on: impl Fn() -> bool) -> Result<Track, Error> {
        let (mut flying, mut ends) = (VecDeque::new(), Vec::new());
        while goes_on() || ends.len() < MIN_SAMPLES {
            while flying.len() < DEPTH {
                self.submit_one()?;
                flying.push_back(Event::after(&self.stream)?);
            }
            let first = flying.pop_front().expect("pieces are in flight");
            first.finish_within(LIMIT)?;
            if now_ns() >= warm_ns {
                ends.push(now_ns());
            }
        }
        self.stream.finish_within(LIMIT)?;
        Ok(Track { rates: rates(&ends, self.size(), SLICE_NS), times_ms: SampleSpread::of(&gaps_ms(&ends)) })
    }

    /// Submits one piece of work to the stream.
    fn submit_one(&self) -> Result<(), Error> {
        let at = |number: u64| self.device.at(number * self.bytes);
        match self.load {
            Load::Copy => self.stream.upload(at(0), &self.host, 0, self.bytes)?,
            Load::Signalled => _ = self.signalled().once()?,
            Load::Read => self.kernels.read(&self.stream, at(0), self.bytes)?,
            Load::Product => self.kernels.product(&self.stream, [at(0), at(1), at(2)], self.side)?,
        }
        Ok(())
    }

    fn signalled(&self) -> SignalledCopies<'_> {
        let (stream, host) = (&self.stream, &self.host);
        SignalledCopies { stream, host, to: self.device.at(0), bytes: self.bytes, limit: LIMIT }
    }

    /// Returns the bytes or floating-point operations per piece.
    fn size(&self) -> f64 {
        match self.load {
            Load::Copy | Load::Signalled | Load::Read => self.bytes as f64,
            Load::Product => 2.0 * (self.side as f64).powi(3),
        }
    }
}

/// Returns rates per nanosecond (billions per second) of consecutive slices of at least `slice_ns`, or one rate if the
/// total time is shorter. Pieces end at `ends`.
fn rates(ends: &[u64], size: f64, slice_ns: u64) -> Vec<f64> {
    let (mut rates, mut first) = (Vec::new(), 0);
    for at in 1..ends.len() {
        let length = ends[at] - ends[first];
        let last = at + 1 == ends.len() && rates.is_empty();
        if length >= slice_ns || last {
            rates.push((at - first) as f64 * size / length.max(1) as f64);
            first = at;
        }
    }
    rates
}

fn gaps_ms(ends: &[u64]) -> Vec<f64> {
    ends.windows(2).map(|pair| (pair[1] - pair[0]) as f64 / 1e6).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_counts_the_pauses_between_bursts() {
        // Bursts of two pieces, then a pause: 2 pieces of 50 per 10 ns, for any gap within a burst.
        let ends = [0, 1, 10, 11, 20, 21, 30];
        assert_eq!(rates(&ends, 50.0, 10), [10.0, 10.0, 10.0]);
        assert_eq!(rates(&[0, 4, 8], 50.0, 10), [12.5], "less than a slice is one slice");
    }

    #[test]
    fn a_track_of_any_length_is_a_short_message() {
        // 1.5 s of pieces of one microsecond, with gaps that need all their digits.
        let ends: Vec<u64> = (0..1_500_000).map(|piece| piece * 1000 + piece % 7).collect();
        let track = Track { rates: rates(&ends, 1.0, SLICE_NS), times_ms: SampleSpread::of(&gaps_ms(&ends)) };
        let said = serde_json::to_string(&track).expect("a track is plain data");
        assert!(said.len() < 4096, "{} bytes", said.len());
        assert!(track.rates.len() > 70, "{} slices", track.rates.len());
    }
}
