//! Fingerprints of histories: equal histories have equal digests. Not cryptographic.

use core::hash::Hasher;

use sluice_common::random::{GOLDEN_GAMMA, mix};

/// A fingerprint of a sequence of words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest(u64);

impl Digest {
    /// Returns the digest of the empty sequence, scoped by `seed`.
    pub const fn new(seed: u64) -> Digest {
        Digest(mix(seed.wrapping_add(GOLDEN_GAMMA)))
    }

    /// Appends `word` to the sequence.
    pub const fn word(&mut self, word: u64) {
        self.0 = mix(self.0.wrapping_mul(GOLDEN_GAMMA) ^ word);
    }

    /// Returns the fingerprint of the sequence so far.
    pub const fn value(self) -> u64 {
        self.0
    }
}

/// Hashes values that derive `Hash`: the digest depends on the order of fields and variants, but on no names.
impl Hasher for Digest {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            self.word(u64::from_le_bytes(word));
        }
    }
}
