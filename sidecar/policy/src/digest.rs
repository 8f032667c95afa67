//! Fingerprints: equal histories have equal digests. Not cryptography.

use core::hash::Hasher;

/// A well-spread function of a word (the finaliser of SplitMix64).
pub const fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// A fingerprint of a sequence of words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest(u64);

impl Digest {
    /// Of the empty sequence, scoped by `seed`.
    pub const fn new(seed: u64) -> Digest {
        Digest(mix(seed.wrapping_add(0x9e37_79b9_7f4a_7c15)))
    }

    /// The sequence goes on with `word`.
    pub const fn word(&mut self, word: u64) {
        self.0 = mix(self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ word);
    }

    /// The fingerprint so far.
    pub const fn value(self) -> u64 {
        self.0
    }
}

/// Fingerprints of values that derive `Hash`: they depend on the order of fields and variants, and on no name.
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
