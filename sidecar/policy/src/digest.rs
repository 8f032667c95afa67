//! Fingerprints of histories: equal histories have equal digests. Not cryptographic.

use core::hash::Hasher;

/// Mixes the bits of a word (the finaliser of SplitMix64).
pub const fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// A fingerprint of a sequence of words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest(u64);

impl Digest {
    /// Returns the digest of the empty sequence, scoped by `seed`.
    pub const fn new(seed: u64) -> Digest {
        Digest(mix(seed.wrapping_add(0x9e37_79b9_7f4a_7c15)))
    }

    /// Appends `word` to the sequence.
    pub const fn word(&mut self, word: u64) {
        self.0 = mix(self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ word);
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
