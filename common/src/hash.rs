//! The hash FNV-1a of 64 bits (Fowler, Noll and Vo). Not cryptographic.

const OFFSET_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0100_0000_01b3;

/// Returns the hash of `units`. Bytes give the published hash. Wider units are hashed whole, so words and their bytes
/// have different hashes.
#[inline]
pub fn fnv1a<T: Into<u64>>(units: impl IntoIterator<Item = T>) -> u64 {
    units.into_iter().fold(OFFSET_BASIS, |hash, unit| (hash ^ unit.into()).wrapping_mul(PRIME))
}

#[cfg(test)]
mod tests {
    use super::fnv1a;

    #[test]
    fn hashes_of_texts_are_the_published_ones() {
        assert_eq!(fnv1a("".bytes()), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a("a".bytes()), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv1a("foobar".bytes()), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn a_word_is_hashed_whole() {
        assert_eq!(fnv1a([u64::from(b'a')]), fnv1a("a".bytes()));
        assert_ne!(fnv1a([0x6261_u64]), fnv1a("ab".bytes()));
    }
}
