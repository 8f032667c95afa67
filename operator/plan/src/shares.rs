//! What each tenant of a GPU may hold without asking anybody.

/// Shares of `capacity` bytes, whole chunks, one for each of `weights` (bytes of a tenant's model): its weights and an
/// equal part of what is left, or a part in proportion to its weights where all weights together do not fit. Sums to at
/// most `capacity`; what cannot be dealt out in equal parts, less than a chunk for each tenant, is nobody's. A share
/// depends on its own weights and on all weights together, not on the order of the tenants.
pub fn shares(capacity: u64, chunk: u64, weights: &[u64]) -> Vec<u64> {
    let chunk = chunk.max(1);
    let (room, count) = (capacity / chunk, weights.len().max(1) as u64);
    let weights: Vec<u64> = weights.iter().map(|bytes| bytes.div_ceil(chunk)).collect();
    let all: u128 = weights.iter().map(|chunks| u128::from(*chunks)).sum();
    let part = |chunks: u64| match u64::try_from(all) {
        Ok(all) if all <= room => chunks + (room - all) / count,
        _ => proportion(room, chunks, all),
    };
    weights.into_iter().map(|chunks| part(chunks) * chunk).collect()
}

/// `room * part / whole`, rounded down; `part` is at most `whole`, which is not 0.
fn proportion(room: u64, part: u64, whole: u128) -> u64 {
    let scaled = u128::from(room) * u128::from(part) / whole;
    u64::try_from(scaled).expect("a part of the room is no larger than the room")
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK: u64 = 64 << 10;

    #[test]
    fn a_tenant_gets_its_weights_and_an_equal_part_of_the_rest() {
        assert_eq!(shares(10 * CHUNK, CHUNK, &[CHUNK, 3 * CHUNK]), [4 * CHUNK, 6 * CHUNK]);
        assert_eq!(shares(10 * CHUNK, CHUNK, &[1, 2 * CHUNK + 1]), [4 * CHUNK, 6 * CHUNK]);
    }

    #[test]
    fn weights_that_do_not_fit_together_share_in_proportion() {
        assert_eq!(shares(10 * CHUNK, CHUNK, &[8 * CHUNK, 32 * CHUNK]), [2 * CHUNK, 8 * CHUNK]);
    }

    #[test]
    fn whoever_has_no_weights_yet_gets_an_equal_part() {
        assert_eq!(shares(9 * CHUNK, CHUNK, &[0, 0, 0]), [3 * CHUNK; 3]);
        assert_eq!(shares(9 * CHUNK, CHUNK, &[]), [0; 0]);
    }

    /// Sizes of all magnitudes from a fixed sequence (Knuth's MMIX generator).
    fn cases() -> impl Iterator<Item = (u64, u64, Vec<u64>)> {
        let mut seed = 20_u64;
        let mut next = move || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 8) >> (seed % 50)
        };
        (0..2000).map(move |_| {
            let (capacity, chunk, count) = (next(), 1 + next() % (2 << 20), 1 + next() % 7);
            (capacity, chunk, (0..count).map(|_| next()).collect())
        })
    }

    #[test]
    fn shares_are_whole_chunks_and_never_more_than_the_gpu() {
        for (capacity, chunk, weights) in cases() {
            let shares = shares(capacity, chunk, &weights);
            let sum: u128 = shares.iter().map(|share| u128::from(*share)).sum();
            assert!(sum <= u128::from(capacity), "{capacity} {chunk} {weights:?}: {shares:?}");
            assert!(
                shares.iter().all(|share| share % chunk == 0),
                "{capacity} {chunk} {weights:?}: {shares:?}"
            );
            let lost = u128::from(capacity) - sum;
            let most = u128::from(chunk) * (weights.len() as u128 + 1);
            assert!(lost < most, "{capacity} {chunk} {weights:?}: {shares:?}, {lost} bytes are nobody's");
        }
    }

    #[test]
    fn the_order_of_the_tenants_does_not_matter() {
        for (capacity, chunk, mut weights) in cases() {
            let mut forward = shares(capacity, chunk, &weights);
            weights.reverse();
            forward.reverse();
            assert_eq!(shares(capacity, chunk, &weights), forward, "{capacity} {chunk} {weights:?}");
        }
    }

    #[test]
    fn whatever_fits_has_room_for_its_weights() {
        for (capacity, chunk, weights) in cases() {
            let needed: u128 =
                weights.iter().map(|bytes| u128::from(bytes.div_ceil(chunk)) * u128::from(chunk)).sum();
            if needed <= u128::from(capacity) {
                let enough =
                    shares(capacity, chunk, &weights).iter().zip(&weights).all(|(share, own)| share >= own);
                assert!(enough, "{capacity} {chunk} {weights:?}");
            }
        }
    }
}
