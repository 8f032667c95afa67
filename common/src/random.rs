//! Pseudo-random numbers that a seed determines: SplitMix64.
//!
//! Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014.

/// The step of the generator's state: the odd integer closest to 2^64 divided by the golden ratio.
pub const GOLDEN_GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// Mixes the bits of a word by the generator's finalizer: a bijection in which every input bit affects every output
/// bit.
#[inline]
pub const fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// A seeded generator.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Creates the generator of `seed`.
    pub const fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    /// Returns the next 64 bits.
    #[inline]
    pub const fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN_GAMMA);
        mix(self.0)
    }

    /// Returns a number below `bound`. Its bias is below 2^-32 for bounds below 2^32.
    ///
    /// # Panics
    /// If `bound` is 0.
    #[inline]
    pub const fn below(&mut self, bound: u64) -> u64 {
        self.next_u64() % bound
    }

    /// Returns a number in `low..=high`.
    ///
    /// # Panics
    /// If `low` is above `high`, or the range contains all numbers.
    #[inline]
    pub const fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// Returns true with a probability of `permille` / 1000. A probability of 0 draws no number.
    #[inline]
    pub const fn chance(&mut self, permille: u64) -> bool {
        permille > 0 && self.below(1000) < permille
    }
}

#[cfg(test)]
mod tests {
    use super::Rng;

    #[test]
    fn numbers_are_those_of_the_published_generator() {
        let mut rng = Rng::new(1_234_567);
        let numbers = [(); 5].map(|()| rng.next_u64());
        // Output of the reference implementation in C (https://prng.di.unimi.it/splitmix64.c).
        assert_eq!(
            numbers,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423,
                4_593_380_528_125_082_431,
                16_408_922_859_458_223_821
            ]
        );
    }

    #[test]
    fn ranges_include_both_ends() {
        let mut rng = Rng::new(1);
        let drawn: alloc::collections::BTreeSet<_> = (0..100).map(|_| rng.between(3, 5)).collect();
        assert_eq!(drawn.into_iter().collect::<alloc::vec::Vec<_>>(), [3, 4, 5]);
    }

    #[test]
    fn chances_are_met_in_proportion() {
        let mut rng = Rng::new(1);
        assert!((0..100).all(|_| !rng.chance(0)) && (0..100).all(|_| rng.chance(1000)));
        let met = (0..10_000).filter(|_| rng.chance(250)).count();
        assert!((2300..2700).contains(&met), "{met} of 10000");
    }
}
