//! Which slots a tenant has.

use std::collections::BTreeSet;

use sluice_plan::seat::{Seat, seats};

fn seat(index: u32, placed: bool, idle_seconds: u64) -> Seat {
    Seat { index, placed, idle_seconds }
}

fn set(indices: &[u32]) -> BTreeSet<u32> {
    indices.iter().copied().collect()
}

#[test]
fn new_slots_take_the_lowest_free_indices() {
    assert_eq!(seats(&[], 2), set(&[0, 1]));
    assert_eq!(seats(&[seat(1, true, 0)], 3), set(&[0, 1, 2]));
}

#[test]
fn a_slot_without_a_gpu_goes_before_the_idlest() {
    let existing = [seat(0, false, 0), seat(1, true, 900), seat(2, true, 5)];
    assert_eq!(seats(&existing, 2), set(&[1, 2]));
    assert_eq!(seats(&existing, 1), set(&[2]));
}

#[test]
fn among_equals_the_youngest_goes() {
    assert_eq!(seats(&[seat(0, true, 7), seat(1, true, 7)], 1), set(&[0]));
}

#[test]
fn as_many_as_there_are_changes_nothing_and_none_leaves_none() {
    let existing = [seat(4, true, 7), seat(9, false, 0)];
    assert_eq!(seats(&existing, 2), set(&[4, 9]));
    assert_eq!(seats(&existing, 0), set(&[]));
}
