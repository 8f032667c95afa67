//! Stateless random numbers: a hash of (seed, position).

/// Computes the finalizer of SplitMix64 (Steele, Lea, Flood 2014): a bijection in which every input bit affects every
/// output bit.
const fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// Returns 64 random bits for (`seed`, `position`). The seed is mixed before the position is added, so that adjacent
/// seeds do not share one stream shifted by one.
pub(crate) const fn bits(seed: u64, position: u64) -> u64 {
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    mix(mix(seed.wrapping_add(GOLDEN)).wrapping_add(position.wrapping_add(1).wrapping_mul(GOLDEN)))
}

/// Returns a number in `[0, 1)` with 53 random bits.
pub fn unit_interval(seed: u64, position: u64) -> f64 {
    (bits(seed, position) >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
}
