//! Maintains the bytes of a full set of choices incrementally: a single change recounts only what it affects.

use alloc::vec::Vec;

use super::problem::Choice;
use super::search_order::SearchOrder;

/// Choices by position, and their bytes.
#[derive(Debug)]
pub(super) struct BytesUsed<'a, 'o> {
    order: &'o SearchOrder<'a>,
    chosen: Vec<u16>,
    resident_bytes: u64,
    /// Offloaded bytes per layer, for the prefetch buffer.
    absent: Vec<u64>,
}

impl<'a, 'o> BytesUsed<'a, 'o> {
    pub fn new(order: &'o SearchOrder<'a>, chosen: &[u16]) -> Self {
        let absent = alloc::vec![0; order.problem.compute_ns.len()];
        let mut room = BytesUsed { order, chosen: chosen.to_vec(), resident_bytes: 0, absent };
        for place in 0..chosen.len() {
            room.add(place);
        }
        room
    }

    pub fn chosen(&self) -> &[u16] {
        &self.chosen
    }

    pub fn into_chosen(self) -> Vec<u16> {
        self.chosen
    }

    /// Sets the choice of the object at `place`; returns the previous one.
    pub fn swap(&mut self, place: usize, choice: u16) -> u16 {
        let Choice { resident_bytes, buffer_bytes, fetches, .. } = self.choice(place);
        self.resident_bytes -= resident_bytes;
        fetches.iter().for_each(|fetch| self.absent[usize::from(fetch.layer)] -= buffer_bytes);
        let before = core::mem::replace(&mut self.chosen[place], choice);
        self.add(place);
        before
    }

    pub fn fits(&self) -> bool {
        let buffer = self.absent.iter().max().copied().unwrap_or(0);
        self.resident_bytes + buffer <= self.order.problem.capacity_bytes
    }

    /// Reduces the offloaded work of the object at `place` while everything fits.
    pub fn take_back(&mut self, place: usize) {
        let ranked = &self.order.ranked[place];
        for &less in ranked[..self.order.rank(place, self.chosen[place])].iter().rev() {
            let before = self.swap(place, less);
            if !self.fits() {
                self.swap(place, before);
                break;
            }
        }
    }

    fn add(&mut self, place: usize) {
        let Choice { resident_bytes, buffer_bytes, fetches, .. } = self.choice(place);
        self.resident_bytes += resident_bytes;
        fetches.iter().for_each(|fetch| self.absent[usize::from(fetch.layer)] += buffer_bytes);
    }

    fn choice(&self, place: usize) -> &'a Choice {
        &self.order.objects[place].choices[usize::from(self.chosen[place])]
    }
}
