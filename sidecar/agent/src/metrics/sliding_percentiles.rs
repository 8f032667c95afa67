//! Percentiles of recent durations from a logarithmic histogram over the last minute.

use std::time::{Duration, Instant};

use sluice_common::statistics::nearest_rank;
use sluice_wire::state::Percentiles;

/// Buckets per factor of two: a percentile is at most 1/16 too high.
const PER_OCTAVE: u64 = 16;
/// 2^40 ns is 18 minutes. Longer durations count as that.
const OCTAVES: u64 = 40;
const BUCKETS: usize = (PER_OCTAVE * OCTAVES) as usize;
/// Number of slots. A whole slot expires at once, so the histogram covers the last 50 to 60 seconds.
const SLOTS: usize = 6;
const SLOT_WIDTH: Duration = Duration::from_secs(10);

/// Histogram whose samples expire.
#[derive(Debug)]
pub struct SlidingPercentiles {
    slots: Vec<[u32; BUCKETS]>,
    /// Slots begun since `origin`.
    slot_index: u64,
    origin: Instant,
    /// Samples never expire.
    is_cumulative: bool,
}

impl SlidingPercentiles {
    /// Creates an empty histogram.
    pub fn new(now: Instant) -> Self {
        SlidingPercentiles {
            slots: vec![[0; BUCKETS]; SLOTS],
            slot_index: 0,
            origin: now,
            is_cumulative: false,
        }
    }

    /// Creates an empty histogram whose samples never expire, for rare events.
    pub fn cumulative(now: Instant) -> Self {
        SlidingPercentiles { slots: vec![[0; BUCKETS]], slot_index: 0, origin: now, is_cumulative: true }
    }

    /// Records `count` samples of `value`.
    pub fn record(&mut self, now: Instant, value: Duration, count: u64) {
        self.expire(now);
        let part = (self.slot_index % self.slots.len() as u64) as usize;
        let counter = &mut self.slots[part][bucket(u64::try_from(value.as_nanos()).unwrap_or(u64::MAX))];
        *counter = counter.saturating_add(u32::try_from(count).unwrap_or(u32::MAX));
    }

    /// Returns the percentiles of the samples. Each is the upper end of its bucket.
    pub fn percentiles(&mut self, now: Instant) -> Percentiles {
        self.expire(now);
        let counts: Vec<u64> =
            (0..BUCKETS).map(|i| self.slots.iter().map(|part| u64::from(part[i])).sum()).collect();
        let samples: u64 = counts.iter().sum();
        let at = |permille| {
            let rank = nearest_rank(samples, permille);
            let mut seen = 0;
            let index = counts.iter().position(|count| {
                seen += count;
                seen >= rank
            });
            index.map_or(0, upper_end)
        };
        match samples {
            0 => Percentiles::default(),
            _ => Percentiles { samples, p50_ns: at(500), p99_ns: at(990) },
        }
    }

    fn expire(&mut self, now: Instant) {
        if self.is_cumulative {
            return;
        }
        let current_slot = (now.saturating_duration_since(self.origin).as_secs()) / SLOT_WIDTH.as_secs();
        let stale = current_slot.saturating_sub(self.slot_index).min(SLOTS as u64);
        for i in 1..=stale {
            let part = (current_slot.saturating_sub(stale) + i) % SLOTS as u64;
            self.slots[part as usize] = [0; BUCKETS];
        }
        self.slot_index = self.slot_index.max(current_slot);
    }
}

/// Returns the bucket of a value. Values below 16 have one bucket each; above, there are 16 for every factor of two.
fn bucket(ns: u64) -> usize {
    let ns = ns.min((1 << OCTAVES) - 1);
    if ns < PER_OCTAVE {
        return ns as usize;
    }
    let octave = u64::from(ns.ilog2()) - 3;
    (octave * PER_OCTAVE + (ns >> (octave - 1)) - PER_OCTAVE) as usize
}

/// Returns the largest value of a bucket, ns.
fn upper_end(bucket: usize) -> u64 {
    let (octave, step) = (bucket as u64 / PER_OCTAVE, bucket as u64 % PER_OCTAVE);
    match octave {
        0 => step,
        _ => ((PER_OCTAVE + step + 1) << (octave - 1)) - 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_hold_their_values_within_a_sixteenth() {
        let values = (0..1000)
            .chain((4..40).flat_map(|shift| (0..64).map(move |i| (1_u64 << shift) + (i << shift) / 64)));
        for ns in values {
            let top = upper_end(bucket(ns));
            assert!(ns <= top && top <= ns + ns / 16, "{ns} in a bucket up to {top}");
            assert!(bucket(ns) == 0 || upper_end(bucket(ns) - 1) < ns, "{ns} belongs into an earlier bucket");
        }
        assert!(bucket(u64::MAX) < BUCKETS);
    }

    #[test]
    fn percentiles_are_of_ranks() {
        let now = Instant::now();
        let mut recent = SlidingPercentiles::new(now);
        (1..=100).for_each(|i| recent.record(now, Duration::from_nanos(i % 16), 1));
        recent.record(now, Duration::from_millis(1), 3);
        let found = recent.percentiles(now);
        assert_eq!((found.samples, found.p50_ns), (103, 7));
        assert!((1_000_000..1_062_500).contains(&found.p99_ns), "{found:?}");
    }

    #[test]
    fn samples_expire_after_50_to_60_seconds() {
        let start = Instant::now();
        let mut recent = SlidingPercentiles::new(start);
        recent.record(start + Duration::from_secs(9), Duration::from_nanos(7), 1);
        assert_eq!(recent.percentiles(start + Duration::from_secs(59)).samples, 1);
        assert_eq!(recent.percentiles(start + Duration::from_secs(60)).samples, 0);
        recent.record(start + Duration::from_secs(61), Duration::from_nanos(7), 5);
        assert_eq!(recent.percentiles(start + Duration::from_secs(1000)), Percentiles::default());
    }
}
