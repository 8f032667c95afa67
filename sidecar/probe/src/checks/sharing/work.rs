//! Work that keeps a part of the device busy, and how fast it goes.

use std::collections::VecDeque;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::signalled::{self, SignalledCopies, WORDS};
use super::spread::SampleSpread;
use crate::Error;
use crate::bench::Setup;
use crate::cuda::{Buffer, Context, Event, HostMemory, Kernels, Stream};

/// A kind of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Load {
    /// Copies from registered host memory.
    Copy,
    /// Copies of 16 MiB, one at a time, each of which waits for a word and writes one.
    Signalled,
    /// A kernel that reads device memory.
    Read,
    /// A matrix product.
    Product,
}

/// How it went.
#[derive(Debug, Serialize, Deserialize)]
pub struct Track {
    /// Rates, one for each slice of time.
    pub rates: Vec<f64>,
    /// Milliseconds between the ends of two pieces of work; of signalled copies, from word to word.
    pub times_ms: SampleSpread,
}

/// Pieces in flight: the device always has a next one.
const DEPTH: usize = 4;
/// Rates are of slices of at least this length: longer than the time slices of contexts.
const SLICE_NS: u64 = 20_000_000;
/// Pieces that are timed at least, also when the window is over.
const MIN_SAMPLES: usize = 3;
/// Longest that a piece is waited for.
const LIMIT: Duration = Duration::from_secs(10);

/// Work with what it needs.
#[derive(Debug)]
pub struct Work {
    load: Load,
    stream: Stream,
    kernels: Kernels,
    /// What is copied from; one page where nothing is.
    host: HostMemory,
    device: Buffer,
    /// Bytes of one copy or of one matrix, or those that are read.
    bytes: u64,
    /// Rows of a matrix.
    side: u64,
    /// What ends within this time is not counted: clocks and the link are slow after a rest, nanoseconds.
    warm_up_ns: u64,
}

impl Load {
    /// All kinds.
    pub const ALL: [Load; 4] = [Load::Copy, Load::Signalled, Load::Read, Load::Product];

    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Load::Copy => "copy",
            Load::Signalled => "signalled copy",
            Load::Read => "read",
            Load::Product => "product",
        }
    }

    /// The unit of its rate.
    pub fn unit(self) -> &'static str {
        match self {
            Load::Copy | Load::Signalled | Load::Read => "GB/s",
            Load::Product => "GFLOP/s",
        }
    }

    /// What the times of its [`Track`] are.
    pub fn times(self) -> &'static str {
        match self {
            Load::Signalled => "from word to word",
            Load::Copy | Load::Read | Load::Product => "between pieces",
        }
    }
}

impl Work {
    /// Takes what it needs.
    pub fn new(setup: Setup, context: &Context, load: Load) -> Result<Work, Error> {
        let side = setup.pick(512, 4096);
        let bytes = match load {
            Load::Copy => setup.pick(16, 64) << 20,
            Load::Signalled => setup.pick(4, 16) << 20,
            Load::Read => setup.pick(64, 512) << 20,
            Load::Product => side * side * 4,
        };
        let (host, device) = match load {
            Load::Copy => (bytes, bytes),
            Load::Signalled => (bytes + WORDS, bytes),
            Load::Read => (4096, bytes),
            Load::Product => (4096, 3 * bytes),
        };
        let work = Work {
            load,
            stream: Stream::new(context)?,
            kernels: Kernels::load(context)?,
            host: HostMemory::registered(context, host)?,
            device: Buffer::new(context, device)?,
            bytes,
            side,
            warm_up_ns: setup.pick(20, 300) * 1_000_000,
        };
        // 1.0 everywhere: an ordinary number, for products take their time over others.
        work.stream.fill(work.device.at(0), 0x3f80_0000, device)?;
        work.submit_one()?;
        work.stream.finish_within(LIMIT)?;
        Ok(work)
    }

    /// Works from `start_ns` (of the monotonic clock) on, for a moment to warm up and then for `window_ns`.
    pub fn run(&self, start_ns: u64, window_ns: u64) -> Result<Track, Error> {
        while now_ns() < start_ns {
            std::hint::spin_loop();
        }
        let warm_ns = start_ns + self.warm_up_ns;
        match self.load {
            Load::Signalled => self.one_by_one(warm_ns, window_ns),
            Load::Copy | Load::Read | Load::Product => self.back_to_back(warm_ns, window_ns),
        }
    }

    /// The time of each piece.
    fn one_by_one(&self, warm_ns: u64, window_ns: u64) -> Result<Track, Error> {
        let mut times = Vec::new();
        while now_ns() < warm_ns + window_ns || times.len() < MIN_SAMPLES {
            let time = self.signalled().once()?;
            if now_ns() >= warm_ns {
                times.push(time);
            }
        }
        let ms: Vec<f64> = times.iter().map(|ns| *ns as f64 / 1e6).collect();
        Ok(Track { rates: signalled::rates(&times, self.bytes), times_ms: SampleSpread::of(&ms) })
    }

    /// Pieces with no pause between, as far as the device makes none.
    fn back_to_back(&self, warm_ns: u64, window_ns: u64) -> Result<Track, Error> {
        let (mut flying, mut ends) = (VecDeque::new(), Vec::new());
        while now_ns() < warm_ns + window_ns || ends.len() < MIN_SAMPLES {
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

    /// Puts one piece of work on the stream.
    fn submit_one(&self) -> Result<(), Error> {
        let at = |number: u64| self.device.at(number * self.bytes);
        match self.load {
            Load::Copy => self.stream.upload(at(0), &self.host, 0, self.bytes),
            Load::Signalled => self.signalled().once().map(drop),
            Load::Read => self.kernels.read(&self.stream, at(0), self.bytes),
            Load::Product => self.kernels.product(&self.stream, [at(0), at(1), at(2)], self.side),
        }
    }

    fn signalled(&self) -> SignalledCopies<'_> {
        let (stream, host) = (&self.stream, &self.host);
        SignalledCopies { stream, host, to: self.device.at(0), bytes: self.bytes, limit: LIMIT }
    }

    /// Bytes or floating-point operations of one piece.
    fn size(&self) -> f64 {
        match self.load {
            Load::Copy | Load::Signalled | Load::Read => self.bytes as f64,
            Load::Product => 2.0 * (self.side as f64).powi(3),
        }
    }
}

/// The monotonic clock, which all processes share, nanoseconds.
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Rates per nanosecond, that is in billions per second, of consecutive slices of at least `slice_ns`; of everything where
/// that is shorter than a slice. Pieces end at `ends`.
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
        // Bursts of two pieces, then a pause: 2 pieces of 50 in each 10 ns, whatever the middle gap is.
        let ends = [0, 1, 10, 11, 20, 21, 30];
        assert_eq!(rates(&ends, 50.0, 10), [10.0, 10.0, 10.0]);
        assert_eq!(rates(&[0, 4, 8], 50.0, 10), [12.5], "less than a slice is one slice");
    }

    #[test]
    fn a_track_of_any_length_is_a_short_message() {
        // 1.5 s of pieces that take a microsecond each, with gaps that need all their digits.
        let ends: Vec<u64> = (0..1_500_000).map(|piece| piece * 1000 + piece % 7).collect();
        let track = Track { rates: rates(&ends, 1.0, SLICE_NS), times_ms: SampleSpread::of(&gaps_ms(&ends)) };
        let said = serde_json::to_string(&track).expect("a track is plain data");
        assert!(said.len() < 4096, "{} bytes", said.len());
        assert!(track.rates.len() > 70, "{} slices", track.rates.len());
    }
}
