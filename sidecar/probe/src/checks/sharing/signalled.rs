//! Copies as a sidecar makes them for an engine: each waits on its stream for a word, and writes a word when it is
//! done.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sluice_memory::cuda::{self, Address, PinnedMemory, Stream, stream::poll_until};

use super::clock::now_ns;
use crate::Error;

/// Bytes after the copied ones, for the words.
pub const WORDS: u64 = 4096;
/// Offsets of the words there, each in its own cache line: the word that releases a copy, and the word that it writes.
const GO: u64 = 0;
const DONE: u64 = 64;
/// Copies per rate.
const COPIES_PER_RATE: usize = 16;

/// The resources of signalled copies.
#[derive(Clone, Copy, Debug)]
pub struct SignalledCopies<'a> {
    /// Stream of the copies.
    pub stream: &'a Stream,
    /// Source, with [`WORDS`] more bytes at its end.
    pub host: &'a PinnedMemory,
    /// Destination.
    pub to: Address,
    /// Bytes per copy.
    pub bytes: u64,
    /// Time limit per copy.
    pub limit: Duration,
}

impl SignalledCopies<'_> {
    /// Makes one copy, released at a time that is independent of the device's time slices. Returns the nanoseconds from
    /// its word to the word that it writes.
    pub fn once(&self) -> Result<u64, Error> {
        let number = self.word(DONE).load(Ordering::SeqCst) + 1;
        let queued = self.queue(number);
        let ready = now_ns();
        while now_ns() < ready + pause_ns(number) {
            std::hint::spin_loop();
        }
        let early = self.word(DONE).load(Ordering::SeqCst) >= number;
        let start = now_ns();
        // Also if queueing failed, so that no work waits forever.
        self.word(GO).store(number, Ordering::SeqCst);
        queued?;
        if early {
            return Err(Error::Otherwise("copied before the word was written".into()));
        }
        let done = || Ok::<_, Error>(self.word(DONE).load(Ordering::SeqCst) >= number);
        poll_until(self.limit, "a copy whose word is there", done)?;
        Ok(now_ns() - start)
    }

    fn queue(&self, number: u64) -> Result<(), cuda::Error> {
        let words = self.host.address()? + self.bytes;
        self.stream.wait_value(words + GO, number)?;
        self.stream.upload(self.to, self.host, 0, self.bytes)?;
        self.stream.write_value(words + DONE, number)
    }

    fn word(&self, place: u64) -> &AtomicU64 {
        self.host.word((self.bytes + place) / 8)
    }
}

/// Returns rates per nanosecond, each over a few consecutive copies, from their times: pauses between copies do not
/// count.
pub fn rates(times_ns: &[u64], bytes: u64) -> Vec<f64> {
    let rate = |times: &[u64]| times.len() as f64 * bytes as f64 / times.iter().sum::<u64>().max(1) as f64;
    times_ns.chunks(COPIES_PER_RATE).map(rate).collect()
}

/// Returns a pause of less than 2 ms, different for each of two thousand copies. The first copy, which is not timed, is
/// held for 100 ms, so that a copy that does not wait has finished by then.
fn pause_ns(number: u64) -> u64 {
    if number == 1 { 100_000_000 } else { number * 617 % 2000 * 1000 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_of_the_time_from_word_to_word() {
        let times = [[10; COPIES_PER_RATE], [20; COPIES_PER_RATE]].concat();
        assert_eq!(rates(&times, 50), [5.0, 2.5]);
        assert_eq!(rates(&[4, 6], 10), [2.0], "fewer are one rate");
    }

    #[test]
    fn copies_are_released_at_different_times() {
        let all: std::collections::BTreeSet<u64> = (2..2002).map(pause_ns).collect();
        assert_eq!(all.len(), 2000);
        assert!(pause_ns(1) > 2_000_000 && all.last().is_some_and(|longest| *longest < 2_000_000));
    }
}
