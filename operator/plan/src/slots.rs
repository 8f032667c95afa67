//! Which slots a tenant has: how many, and which of them go when it is scaled down.

use std::cmp::Reverse;
use std::collections::BTreeSet;

/// A slot that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExistingSlot {
    /// Its index, unique in the tenant.
    pub index: u32,
    /// Whether it has a GPU.
    pub is_placed: bool,
    /// For how long it has had no request, seconds; 0 = it has one, or nobody knows.
    pub idle_seconds: u64,
}

/// Indices of the slots that a tenant of `replicas` is to have, given those that exist. Those that exist stay, new ones
/// take the lowest free indices; when there are too many, those without a GPU go first, then the idlest, then the
/// youngest index.
pub fn slot_indices(existing: &[ExistingSlot], replicas: usize) -> BTreeSet<u32> {
    let mut ranked: Vec<&ExistingSlot> = existing.iter().collect();
    ranked.sort_by_key(|seat| (Reverse(seat.is_placed), seat.idle_seconds, seat.index));
    let mut kept: BTreeSet<u32> = ranked.into_iter().map(|seat| seat.index).take(replicas).collect();
    let mut free = (0..).filter(|index| existing.iter().all(|seat| seat.index != *index));
    while kept.len() < replicas {
        kept.extend(free.next());
    }
    kept
}
