//! Random draws for a soak: each purpose has a stream of its own.

use sluice_common::random;

/// Draws that follow from a seed.
#[derive(Clone, Debug)]
pub struct Rng(random::Rng);

impl Rng {
    /// Returns the stream of `seed` for one purpose: additional draws of one stream do not affect the others.
    pub fn of(seed: u64, what: &str) -> Rng {
        let start = what.bytes().fold(seed, |seed, byte| random::Rng::new(seed).next_u64() ^ u64::from(byte));
        Rng(random::Rng::new(start))
    }

    /// One of `from..to`.
    pub fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.0.below(to - from)
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
