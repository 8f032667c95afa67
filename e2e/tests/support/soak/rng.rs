//! Reproducible random numbers: SplitMix64.

/// Draws that follow from a seed.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Returns the stream of `seed` for one purpose: additional draws of one stream do not affect the others.
    pub fn of(seed: u64, what: &str) -> Rng {
        let mut dice = Rng(seed);
        for byte in what.bytes() {
            dice = Rng(dice.next() ^ u64::from(byte));
        }
        dice
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// One of `from..to`.
    pub fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.next() % (to - from)
    }

    /// Returns true with this probability in percent.
    pub fn percent(&mut self, of_hundred: u64) -> bool {
        self.between(0, 100) < of_hundred
    }

    /// One of them.
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.between(0, of.len() as u64) as usize]
    }
}
