//! Selection of a tenant's slots.

use std::collections::BTreeSet;

use sluice_plan::slots::{ExistingSlot, slot_indices};

fn existing_slot(index: u32, placed: bool, idle_seconds: u64) -> ExistingSlot {
    ExistingSlot { index, is_placed: placed, idle_seconds }
}

fn set(indices: &[u32]) -> BTreeSet<u32> {
    indices.iter().copied().collect()
}

#[test]
fn new_slots_take_the_lowest_free_indices() {
    assert_eq!(slot_indices(&[], 2), set(&[0, 1]));
    assert_eq!(slot_indices(&[existing_slot(1, true, 0)], 3), set(&[0, 1, 2]));
}

#[test]
fn unplaced_slot_is_removed_before_idlest() {
    let existing = [existing_slot(0, false, 0), existing_slot(1, true, 900), existing_slot(2, true, 5)];
    assert_eq!(slot_indices(&existing, 2), set(&[1, 2]));
    assert_eq!(slot_indices(&existing, 1), set(&[2]));
}

#[test]
fn highest_index_is_removed_among_equals() {
    assert_eq!(slot_indices(&[existing_slot(0, true, 7), existing_slot(1, true, 7)], 1), set(&[0]));
}

#[test]
fn same_replicas_keep_slots_and_zero_removes_all() {
    let existing = [existing_slot(4, true, 7), existing_slot(9, false, 0)];
    assert_eq!(slot_indices(&existing, 2), set(&[4, 9]));
    assert_eq!(slot_indices(&existing, 0), set(&[]));
}
