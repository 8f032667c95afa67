//! Percentiles by nearest rank, and the median.

use alloc::vec::Vec;

/// Returns the rank of a percentile in `count` sorted samples, counted from 1: at least `permille` / 1000 of the
/// samples have this rank or a lower one.
#[inline]
pub const fn nearest_rank(count: u64, permille: u64) -> u64 {
    let rank = (count * permille).div_ceil(1000);
    if rank == 0 { 1 } else { rank }
}

/// Returns a percentile of `samples`, which are in any order and are reordered. `None` for no sample, or above 1000.
pub fn percentile<T: Copy + Ord>(samples: &mut [T], permille: u64) -> Option<T> {
    let at = nearest_rank(samples.len() as u64, permille) as usize - 1;
    (at < samples.len()).then(|| *samples.select_nth_unstable(at).1)
}

/// Returns a percentile of ascending samples. `None` for no sample, or above 1000.
pub fn percentile_of_sorted<T: Copy>(sorted: &[T], permille: u64) -> Option<T> {
    sorted.get(nearest_rank(sorted.len() as u64, permille) as usize - 1).copied()
}

/// Returns the middle sample, or the mean of the two middle ones. `None` for no sample.
pub fn median(samples: &[f64]) -> Option<f64> {
    let mut sorted = Vec::from(samples);
    sorted.sort_unstable_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    Some(if sorted.len() % 2 == 1 { upper } else { f64::midpoint(sorted[sorted.len() / 2 - 1], upper) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_the_smallest_sample_that_covers_its_share() {
        let mut samples: Vec<u32> = (1..=200).rev().collect();
        assert_eq!(
            [500, 900, 990, 1000].map(|of| percentile(&mut samples, of)),
            [100, 180, 198, 200].map(Some)
        );
        assert_eq!((percentile(&mut samples, 0), percentile(&mut samples, 1001)), (Some(1), None));
        assert_eq!((percentile(&mut [7], 990), percentile::<u32>(&mut [], 990)), (Some(7), None));
    }

    #[test]
    fn sorted_samples_need_no_order() {
        assert_eq!(percentile_of_sorted(&[0.5, 1.5, 2.5], 500), Some(1.5));
        assert_eq!(percentile_of_sorted(&[0.5, 1.5, 2.5], 340), Some(1.5));
        assert_eq!(percentile_of_sorted::<f64>(&[], 500), None);
    }

    #[test]
    fn a_median_is_the_middle_in_any_order() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[]), None);
    }
}
