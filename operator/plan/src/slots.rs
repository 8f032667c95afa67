//! Selects the slots of a tenant: how many, and which are removed on scale-down.

use std::cmp::Reverse;
use std::collections::BTreeSet;

/// A slot that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExistingSlot {
    /// Its index, unique in the tenant.
    pub index: u32,
    /// Whether it has a GPU.
    pub is_placed: bool,
    /// How long it has had no request, seconds; 0 = it has one, or this is not known.
    pub idle_seconds: u64,
}

/// Returns the slot indices of a tenant with `replicas`, given the existing slots. Existing slots stay, and new ones
/// take the lowest free indices. On scale-down, slots without a GPU are removed first, then the longest idle, then
/// the highest index.
pub fn slot_indices(existing: &[ExistingSlot], replicas: usize) -> BTreeSet<u32> {
    let mut ranked: Vec<&ExistingSlot> = existing.iter().collect();
    ranked.sort_by_key(|slot| (Reverse(slot.is_placed), slot.idle_seconds, slot.index));
    let mut kept: BTreeSet<u32> = ranked.into_iter().map(|slot| slot.index).take(replicas).collect();
    let mut free = (0..).filter(|index| existing.iter().all(|slot| slot.index != *index));
    while kept.len() < replicas {
        kept.extend(free.next());
    }
    kept
}
