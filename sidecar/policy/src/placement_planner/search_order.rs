//! Orders the objects of a problem for the search and caches what it needs repeatedly.

use alloc::vec::Vec;
use core::cmp::Reverse;

use super::problem::{Object, Problem};

/// Objects by position: most link work first, because that matters most; equal objects are adjacent.
#[derive(Debug)]
pub(super) struct SearchOrder<'a> {
    pub problem: &'a Problem,
    /// The objects by position.
    pub objects: Vec<&'a Object>,
    /// The choices of each object, least link work first, ties by size.
    pub ranked: Vec<Vec<u16>>,
    /// Whether the object equals its predecessor.
    pub alike: Vec<bool>,
    /// The object's index in the problem.
    indices: Vec<usize>,
}

impl<'a> SearchOrder<'a> {
    pub fn new(problem: &'a Problem) -> Self {
        let indices = by_weight(&problem.objects);
        let objects: Vec<&Object> = indices.iter().map(|&index| &problem.objects[index]).collect();
        let ranked = objects.iter().map(|object| by_work(object)).collect();
        let alike =
            |place: usize| place.checked_sub(1).is_some_and(|before| objects[before] == objects[place]);
        let alike = (0..objects.len()).map(alike).collect();
        SearchOrder { problem, objects, ranked, alike, indices }
    }

    /// Returns the bytes of these choices, given by position.
    pub fn bytes_of(&self, chosen: &[u16]) -> u64 {
        let choices = self.objects.iter().zip(chosen);
        self.problem.bytes(choices.map(|(object, &choice)| &object.choices[usize::from(choice)]))
    }

    pub fn fits(&self, chosen: &[u16]) -> bool {
        self.bytes_of(chosen) <= self.problem.capacity_bytes
    }

    /// Maps choices by position to the problem's numbering of objects.
    pub fn by_index(&self, chosen: &[u16]) -> Vec<u16> {
        let mut by_index = alloc::vec![0; chosen.len()];
        self.indices.iter().zip(chosen).for_each(|(&index, &choice)| by_index[index] = choice);
        by_index
    }

    /// Returns the rank of this choice of the object at `place`.
    pub fn rank(&self, place: usize, choice: u16) -> usize {
        self.ranked[place].iter().position(|&other| other == choice).expect("the choice is one of the object")
    }
}

fn by_weight(objects: &[Object]) -> Vec<usize> {
    let weight = |index: &usize| {
        let choices = objects[*index].choices.iter();
        Reverse(choices.map(|choice| (choice.work_ns(), choice.resident_bytes)).max())
    };
    let mut order: Vec<usize> = (0..objects.len()).collect();
    order.sort_by_cached_key(weight);
    order
}

fn by_work(object: &Object) -> Vec<u16> {
    let mut ranked: Vec<(u64, u64, u16)> = (object.choices.iter().zip(0..))
        .map(|(choice, index)| (choice.work_ns(), choice.resident_bytes, index))
        .collect();
    ranked.sort_unstable();
    ranked.into_iter().map(|(_, _, index)| index).collect()
}
