//! The memory that each slot of a GPU may hold without borrowing. The operator and `sluice up` assign it here.

/// A slot of the GPU, as its share depends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotMemory {
    /// Weights of its model, bytes.
    pub weights_bytes: u64,
    /// Planned floor in chunks of the GPU, bytes.
    pub planned_floor_bytes: u64,
    /// Floor that its sidecar reports, bytes; 0 = no report.
    pub reported_floor_bytes: u64,
}

/// The memory that a slot gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotShare {
    /// Memory that it cannot lend while it is awake, bytes: the reported value as far as it exceeds the planned one
    /// and there is room.
    pub floor_bytes: u64,
    /// Memory that it may hold without borrowing, bytes. On a GPU of unknown size this is the floor.
    pub share_bytes: u64,
}

/// Assigns `capacity` bytes to the slots of a GPU in whole chunks. `None` = the size of the GPU is not known.
///
/// A reported floor counts where it exceeds the planned one, because otherwise no peer would ever release the rest. It
/// counts only as far as all other slots keep their planned floors, whatever is reported.
pub fn slot_shares(capacity: Option<u64>, chunk: u64, slots: &[SlotMemory]) -> Vec<SlotShare> {
    let chunk = chunk.max(1);
    let chunks = |bytes: u64| bytes.div_ceil(chunk);
    let planned = |slot: &SlotMemory| chunks(slot.planned_floor_bytes);
    let beyond = |slot: &SlotMemory| chunks(slot.reported_floor_bytes).saturating_sub(planned(slot));
    let beyond: Vec<u64> = slots.iter().map(beyond).collect();
    let capacity_chunks =
        (capacity.unwrap_or(u64::MAX) / chunk).saturating_sub(slots.iter().map(planned).sum());
    let granted = scale_to_fit(capacity_chunks, &beyond);
    let part = |(slot, more): (&SlotMemory, u64)| ShareInput {
        weights_bytes: slot.weights_bytes,
        floor_bytes: match more {
            0 => slot.planned_floor_bytes,
            more => (planned(slot) + more) * chunk,
        },
    };
    let parts: Vec<ShareInput> = slots.iter().zip(granted).map(part).collect();
    let dealt = match capacity {
        Some(capacity) => shares(capacity, chunk, &parts),
        None => parts.iter().map(|part| part.floor_bytes).collect(),
    };
    let share =
        |(part, share_bytes): (&ShareInput, u64)| SlotShare { floor_bytes: part.floor_bytes, share_bytes };
    parts.iter().zip(dealt).map(share).collect()
}

/// Returns `wanted` if it fits into `capacity_chunks`, else proportional parts, rounded down.
fn scale_to_fit(capacity_chunks: u64, wanted: &[u64]) -> Vec<u64> {
    let all: u128 = wanted.iter().map(|one| u128::from(*one)).sum();
    let part = |one: &u64| match u64::try_from(all) {
        Ok(all) if all <= capacity_chunks => *one,
        _ => proportion(capacity_chunks, *one, all),
    };
    wanted.iter().map(part).collect()
}

/// A slot of the GPU with the floor that counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ShareInput {
    /// Weights of its model, bytes.
    weights_bytes: u64,
    /// Memory that it cannot lend, bytes; 0 = not known.
    floor_bytes: u64,
}

/// Returns the shares of `capacity` bytes in whole chunks, one for each of `parts`: its weights and an equal part of
/// the rest, or a part in proportion to its weights if the weights do not fit together. A tenant whose share would be
/// below its floor gets its floor, and the others are assigned the rest in the same way. The sum is at most
/// `capacity`; the rounding remainder, less than a chunk for each tenant, stays unassigned. A share depends on the
/// sizes, not on the order of the tenants.
///
/// If the floors do not fit, they are scaled in proportion: placement uses planned floors, and reported ones may be
/// larger. A tenant that has its floor then keeps it, and the others wait for theirs.
fn shares(capacity: u64, chunk: u64, parts: &[ShareInput]) -> Vec<u64> {
    let chunk = chunk.max(1);
    let capacity_chunks = capacity / chunk;
    let whole = |bytes: u64| bytes.div_ceil(chunk);
    let chunks = |part: &ShareInput| (whole(part.weights_bytes), whole(part.floor_bytes));
    let dealt = assign_above_floors(capacity_chunks, &parts.iter().map(chunks).collect::<Vec<_>>());
    dealt.into_iter().map(|chunks| chunks * chunk).collect()
}

/// Assigns chunks to `(weights, floor)` pairs. Each round fixes at least one tenant at its floor, or is the last.
fn assign_above_floors(capacity_chunks: u64, parts: &[(u64, u64)]) -> Vec<u64> {
    let floors: u128 = parts.iter().map(|(_, floor)| u128::from(*floor)).sum();
    if floors > u128::from(capacity_chunks) {
        return parts.iter().map(|(_, floor)| proportion(capacity_chunks, *floor, floors)).collect();
    }
    let mut fixed = vec![false; parts.len()];
    loop {
        let free = |at: &usize| !fixed[*at];
        let taken: u64 = (0..parts.len()).filter(|at| !free(at)).map(|at| parts[at].1).sum();
        let open: Vec<usize> = (0..parts.len()).filter(free).collect();
        let dealt = split_by_weights(
            capacity_chunks - taken,
            &open.iter().map(|at| parts[*at].0).collect::<Vec<_>>(),
        );
        let mut all: Vec<u64> = parts.iter().map(|(_, floor)| *floor).collect();
        open.iter().zip(dealt).for_each(|(at, chunks)| all[*at] = chunks);
        let below: Vec<usize> = open.into_iter().filter(|at| all[*at] < parts[*at].1).collect();
        if below.is_empty() {
            return all;
        }
        below.into_iter().for_each(|at| fixed[at] = true);
    }
}

fn split_by_weights(capacity_chunks: u64, weights: &[u64]) -> Vec<u64> {
    let count = weights.len().max(1) as u64;
    let all: u128 = weights.iter().map(|chunks| u128::from(*chunks)).sum();
    let part = |chunks: u64| match u64::try_from(all) {
        Ok(all) if all <= capacity_chunks => chunks + (capacity_chunks - all) / count,
        _ => proportion(capacity_chunks, chunks, all),
    };
    weights.iter().map(|chunks| part(*chunks)).collect()
}

/// `room * part / whole`, rounded down; `part` is at most `whole`, which is not 0.
fn proportion(capacity_chunks: u64, part: u64, whole: u128) -> u64 {
    let scaled = u128::from(capacity_chunks) * u128::from(part) / whole;
    u64::try_from(scaled).expect("a part of the room is no larger than the room")
}

#[cfg(test)]
mod tests {
    use sluice_common::random::Rng;

    use super::*;

    const CHUNK: u64 = 64 << 10;

    const fn of_weights(weights_bytes: u64) -> ShareInput {
        ShareInput { weights_bytes, floor_bytes: 0 }
    }

    fn by_weights(capacity: u64, weights: &[u64]) -> Vec<u64> {
        shares(capacity, CHUNK, &weights.iter().copied().map(of_weights).collect::<Vec<_>>())
    }

    /// Returns shares in chunks for parts in chunks.
    fn of(capacity_chunks: u64, parts: &[(u64, u64)]) -> Vec<u64> {
        let part = |(weights, floor): &(u64, u64)| ShareInput {
            weights_bytes: weights * CHUNK,
            floor_bytes: floor * CHUNK,
        };
        let dealt = shares(capacity_chunks * CHUNK, CHUNK, &parts.iter().map(part).collect::<Vec<_>>());
        dealt.into_iter().map(|bytes| bytes / CHUNK).collect()
    }

    #[test]
    fn a_tenant_gets_its_weights_and_an_equal_part_of_the_rest() {
        assert_eq!(by_weights(10 * CHUNK, &[CHUNK, 3 * CHUNK]), [4 * CHUNK, 6 * CHUNK]);
        assert_eq!(by_weights(10 * CHUNK, &[1, 2 * CHUNK + 1]), [4 * CHUNK, 6 * CHUNK]);
    }

    #[test]
    fn weights_that_do_not_fit_together_share_in_proportion() {
        assert_eq!(by_weights(10 * CHUNK, &[8 * CHUNK, 32 * CHUNK]), [2 * CHUNK, 8 * CHUNK]);
    }

    #[test]
    fn tenant_without_weights_gets_equal_share() {
        assert_eq!(by_weights(9 * CHUNK, &[0, 0, 0]), [3 * CHUNK; 3]);
        assert_eq!(by_weights(9 * CHUNK, &[]), [0; 0]);
    }

    #[test]
    fn floors_are_assigned_first_and_remainder_is_shared() {
        // By weights alone 2 and 8; by weights and an equal split of the rest 4 and 6.
        assert_eq!(of(10, &[(8, 3), (32, 1)]), [3, 7]);
        assert_eq!(of(10, &[(1, 5), (3, 0)]), [5, 5]);
        // Fixing one tenant leaves another below its floor: 12 in equal parts, then 5 for two, then 3 for one.
        assert_eq!(of(12, &[(0, 7), (0, 3), (0, 1)]), [7, 3, 2]);
        assert_eq!(of(10, &[(8, 4), (32, 6)]), [4, 6]);
        let odd = ShareInput { weights_bytes: 0, floor_bytes: 2 * CHUNK + 1 };
        assert_eq!(shares(4 * CHUNK, CHUNK, &[odd, of_weights(0)]), [3 * CHUNK, CHUNK], "in whole chunks");
        assert_eq!(of(10, &[(0, 10), (0, 10)]), [5, 5], "not even the floors fit");
    }

    /// Returns sizes of all magnitudes from a fixed sequence. In most cases the floors fit together.
    fn cases() -> impl Iterator<Item = (u64, u64, Vec<ShareInput>)> {
        let mut rng = Rng::new(20);
        let mut next = move || {
            let bits = rng.next_u64();
            (bits >> 8) >> (bits % 50)
        };
        (0..4000).map(move |at| {
            let (capacity, chunk, count) = (next(), 1 + next() % (2 << 20), 1 + next() % 7);
            let floors = match at % 4 {
                0 => 1,
                1 => u64::MAX,
                _ => (capacity / count).max(1),
            };
            let mut part = |_| ShareInput { weights_bytes: next(), floor_bytes: next() % floors };
            (capacity, chunk, (0..count).map(&mut part).collect())
        })
    }

    fn chunks(bytes: u64, chunk: u64) -> u128 {
        u128::from(bytes.div_ceil(chunk))
    }

    #[test]
    fn shares_are_whole_chunks_and_never_more_than_the_gpu() {
        for (capacity, chunk, parts) in cases() {
            let shares = shares(capacity, chunk, &parts);
            let sum: u128 = shares.iter().map(|share| u128::from(*share)).sum();
            assert!(sum <= u128::from(capacity), "{capacity} {chunk} {parts:?}: {shares:?}");
            assert!(
                shares.iter().all(|share| share % chunk == 0),
                "{capacity} {chunk} {parts:?}: {shares:?}"
            );
            let lost = u128::from(capacity) - sum;
            let most = u128::from(chunk) * (parts.len() as u128 + 1);
            assert!(lost < most, "{capacity} {chunk} {parts:?}: {shares:?}, {lost} bytes are unassigned");
        }
    }

    #[test]
    fn share_is_at_least_floor_where_floors_fit() {
        let mut binding = 0;
        for (capacity, chunk, parts) in cases() {
            let floors: u128 = parts.iter().map(|part| chunks(part.floor_bytes, chunk)).sum();
            if floors > u128::from(capacity / chunk) {
                continue;
            }
            let dealt = shares(capacity, chunk, &parts);
            let bare: Vec<ShareInput> = parts.iter().map(|part| of_weights(part.weights_bytes)).collect();
            binding += usize::from(shares(capacity, chunk, &bare) != dealt);
            for (share, part) in dealt.iter().zip(&parts) {
                assert!(*share >= part.floor_bytes, "{capacity} {chunk} {parts:?}: {dealt:?}");
            }
        }
        assert!(binding > 100, "floors matter in {binding} cases");
    }

    #[test]
    fn the_order_of_the_tenants_does_not_matter() {
        for (capacity, chunk, mut parts) in cases() {
            let mut forward = shares(capacity, chunk, &parts);
            parts.reverse();
            forward.reverse();
            assert_eq!(shares(capacity, chunk, &parts), forward, "{capacity} {chunk} {parts:?}");
        }
    }

    #[test]
    fn share_covers_weights_where_floors_allow() {
        for (capacity, chunk, parts) in cases() {
            let larger = |part: &ShareInput| chunks(part.weights_bytes.max(part.floor_bytes), chunk);
            if parts.iter().map(larger).sum::<u128>() <= u128::from(capacity / chunk) {
                let shares = shares(capacity, chunk, &parts);
                let enough = shares.iter().zip(&parts).all(|(share, part)| *share >= part.weights_bytes);
                assert!(enough, "{capacity} {chunk} {parts:?}");
            }
        }
    }
}
