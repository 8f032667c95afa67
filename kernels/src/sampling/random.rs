//! Stateless random numbers: a hash of (seed, position).

use sluice_common::random::{GOLDEN_GAMMA, mix};

/// Returns 64 random bits for (`seed`, `position`). The seed is mixed before the position is added, so that adjacent
/// seeds do not share one stream shifted by one.
pub(crate) const fn bits(seed: u64, position: u64) -> u64 {
    let stream = mix(seed.wrapping_add(GOLDEN_GAMMA));
    mix(stream.wrapping_add(position.wrapping_add(1).wrapping_mul(GOLDEN_GAMMA)))
}

/// Returns a number in `[0, 1)` with 53 random bits.
pub fn unit_interval(seed: u64, position: u64) -> f64 {
    (bits(seed, position) >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
}
