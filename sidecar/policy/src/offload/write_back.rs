//! What is known of the link to the host tier: how long a block takes, and whether writes fail.

use crate::ewma::Ewma;

/// Time that one write-back takes at most, by the measured link, nanoseconds: a step that needs its blocks waits no
/// longer.
pub const WRITE_PIECE_NS: u64 = 20_000_000;

/// Blocks of the first write-back, before the link to the host was measured: it may be slow.
const FIRST_PIECE_BLOCKS: u32 = 1;

/// Bytes of one write-back at most. Smaller copies do not reach the link's bandwidth; larger ones delay a waiting step
/// if the link slows down.
pub const MAX_PIECE_BYTES: u64 = 16 << 20;

/// The longest wait of steps for KV of paused requests to leave the device, nanoseconds: beyond it, requests are
/// recomputed.
pub const MAX_WAIT_NS: u64 = 200_000_000;

/// Boundaries between two measurements of a link that is, or was, too slow for prompts.
const PROBE_BOUNDARIES: u64 = 1024;

/// Most failures in a row that lengthen the pause of writes, which doubles with each.
const MAX_DOUBLINGS: u32 = 10;

/// The measured link to the host tier. Boundaries are the clock.
#[derive(Clone, Debug, Default)]
pub struct WriteBackLink {
    /// Time of one block, nanoseconds.
    layer_block_ns: Ewma,
    failures: u32,
    /// No write is tried before this boundary.
    retry_at: u64,
    /// The link is to be measured, and no other measurement follows before this boundary.
    is_probe_due: bool,
    probe_at: u64,
}

impl WriteBackLink {
    /// Returns the time of one block, nanoseconds; `None` before one was measured.
    pub fn layer_block_ns(&self) -> Option<u64> {
        self.layer_block_ns.value()
    }

    /// Records that `layer_blocks` were written in this time.
    pub fn on_written(&mut self, layer_blocks: u64, duration_ns: u64) {
        if let Some(layer_block_ns) = duration_ns.checked_div(layer_blocks) {
            self.layer_block_ns.observe(layer_block_ns);
            self.failures = 0;
        }
    }

    /// Records that a write failed: the next one waits, twice as long as after the failure before.
    pub fn on_failed(&mut self, boundary: u64) {
        self.failures += 1;
        self.retry_at = boundary + (1 << self.failures.min(MAX_DOUBLINGS));
    }

    /// Whether writes may be tried: none failed within the back-off.
    pub fn is_healthy(&self, boundary: u64) -> bool {
        boundary >= self.retry_at
    }

    /// Whether `layer_blocks` can leave the device before steps have waited for long, as far as is known.
    pub fn is_fast_enough(&self, layer_blocks: u32) -> bool {
        let layer_block_ns = self.layer_block_ns().unwrap_or(0);
        u64::from(layer_blocks).saturating_mul(layer_block_ns) <= MAX_WAIT_NS
    }

    /// Returns the blocks of the next write.
    pub fn piece(&self, layer_block_bytes: u64) -> u32 {
        let max = (MAX_PIECE_BYTES / layer_block_bytes).max(1);
        let within = |layer_block_ns: u64| (WRITE_PIECE_NS / layer_block_ns.max(1)).clamp(1, max);
        self.layer_block_ns().map_or(FIRST_PIECE_BLOCKS, |layer_block_ns| within(layer_block_ns) as u32)
    }

    /// Requests a measurement, unless one was requested a short time ago.
    pub fn request_probe(&mut self, boundary: u64) {
        if boundary >= self.probe_at {
            (self.is_probe_due, self.probe_at) = (true, boundary + PROBE_BOUNDARIES);
        }
    }

    /// Takes the request for a measurement. Returns whether there was one.
    pub fn take_probe(&mut self) -> bool {
        core::mem::take(&mut self.is_probe_due)
    }

    /// Returns a number that changes with the state of failures and measurements.
    pub fn digest_word(&self) -> u64 {
        self.retry_at
            ^ u64::from(self.failures) << 32
            ^ u64::from(self.is_probe_due) << 63
            ^ self.probe_at << 16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_write_is_one_block_and_later_ones_fit_the_measured_time() {
        let mut link = WriteBackLink::default();
        assert_eq!(link.piece(1 << 20), FIRST_PIECE_BLOCKS);
        link.on_written(2, 2 * WRITE_PIECE_NS / 5);
        assert_eq!(link.layer_block_ns(), Some(WRITE_PIECE_NS / 5));
        assert_eq!(link.piece(1 << 20), 5, "by time");
        assert_eq!(link.piece(8 << 20), 2, "by bytes");
        assert_eq!(link.piece(1 << 30), 1, "at least one");
    }

    #[test]
    fn each_failure_doubles_the_pause_until_a_write_succeeds() {
        let mut link = WriteBackLink::default();
        assert!(link.is_healthy(0));
        link.on_failed(10);
        assert!(!link.is_healthy(11) && link.is_healthy(12));
        link.on_failed(12);
        assert!(!link.is_healthy(15) && link.is_healthy(16));
        link.on_written(1, 1);
        link.on_failed(20);
        assert!(link.is_healthy(22), "the count begins again");
        (0..100).for_each(|_| link.on_failed(30));
        assert!(link.is_healthy(30 + (1 << MAX_DOUBLINGS)), "a pause has a limit");
    }

    #[test]
    fn unknown_link_counts_as_fast_and_a_slow_one_does_not() {
        let mut link = WriteBackLink::default();
        assert!(link.is_fast_enough(u32::MAX));
        link.on_written(1, MAX_WAIT_NS / 4);
        assert!(link.is_fast_enough(4) && !link.is_fast_enough(5));
    }

    #[test]
    fn measurements_are_requested_at_most_once_in_a_while() {
        let mut link = WriteBackLink::default();
        link.request_probe(5);
        assert!(link.take_probe() && !link.take_probe());
        link.request_probe(5 + PROBE_BOUNDARIES - 1);
        assert!(!link.take_probe());
        link.request_probe(5 + PROBE_BOUNDARIES);
        assert!(link.take_probe());
    }
}
