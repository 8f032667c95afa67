//! The running requests and their rows.

use std::collections::BTreeMap;

use sluice_policy::ids::{RequestId, RowId};

use crate::sequence::Sequence;

/// The running requests by the order of first admissions. Each has a row of the shared tables.
#[derive(Debug)]
pub(super) struct Running {
    /// The first is never a victim.
    by_place: BTreeMap<u64, Sequence>,
    /// Key in `by_place` of each request.
    places: BTreeMap<RequestId, u64>,
    free_rows: Vec<RowId>,
    rows: u32,
}

impl Running {
    /// Returns an empty set that takes `rows` requests.
    pub fn new(rows: u32) -> Running {
        Running {
            by_place: BTreeMap::new(),
            places: BTreeMap::new(),
            free_rows: (0..rows).rev().map(RowId).collect(),
            rows,
        }
    }

    /// Returns the number of running requests.
    pub fn len(&self) -> usize {
        self.by_place.len()
    }

    /// Whether no request runs.
    pub fn is_empty(&self) -> bool {
        self.by_place.is_empty()
    }

    /// Returns the number of requests that could run too.
    pub fn free_rows(&self) -> usize {
        self.free_rows.len()
    }

    /// Returns the requests in the order of first admissions.
    pub fn iter(&self) -> impl Iterator<Item = &Sequence> {
        self.by_place.values()
    }

    /// Returns the requests in the order of first admissions, to change them.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Sequence> {
        self.by_place.values_mut()
    }

    /// Whether the request runs.
    pub fn contains(&self, id: RequestId) -> bool {
        self.places.contains_key(&id)
    }

    /// Returns a running request.
    pub fn get(&self, id: RequestId) -> Option<&Sequence> {
        self.by_place.get(self.places.get(&id)?)
    }

    /// Returns a running request to change it.
    pub fn get_mut(&mut self, id: RequestId) -> Option<&mut Sequence> {
        self.by_place.get_mut(self.places.get(&id)?)
    }

    /// Returns the request that runs in the row.
    pub fn in_row(&self, row: RowId) -> Option<&Sequence> {
        self.iter().find(|one| one.row == Some(row))
    }

    /// Returns the pending tokens of all requests.
    pub fn pending_tokens(&self) -> u32 {
        self.iter().map(Sequence::pending).fold(0, u32::saturating_add)
    }

    /// Gives a request a row. It runs from now on, at its place in the order of first admissions.
    ///
    /// # Panics
    /// If it has no place, or no row is free.
    pub fn add(&mut self, mut sequence: Sequence) {
        let place = sequence.admission.expect("a request that runs has a place in the order of admissions");
        let row = self.free_rows.pop().expect("a request runs only if a row is free");
        (sequence.row, sequence.row_is_new) = (Some(row), true);
        self.places.insert(sequence.id(), place);
        self.by_place.insert(place, sequence);
    }

    /// Removes a request and frees its row.
    pub fn take(&mut self, id: RequestId) -> Option<Sequence> {
        let mut sequence = self.by_place.remove(&self.places.remove(&id)?)?;
        self.free_rows.extend(sequence.row.take());
        Some(sequence)
    }

    /// Checks that every request has one place and one row; panics with a message if not.
    pub fn check(&self) {
        assert_eq!(self.places.len(), self.by_place.len(), "every running request has one place");
        let taken = self.iter().filter(|one| one.row.is_some()).count();
        assert_eq!(taken, self.len(), "every running request has a row");
        assert_eq!(taken + self.free_rows.len(), self.rows as usize, "each row is taken or free");
    }

    /// Hides the free rows from tests of plans that lack one.
    #[cfg(test)]
    pub fn hide_free_rows(&mut self) {
        self.free_rows.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Request;
    use sluice_policy::ids::Nanos;

    fn request(id: u64, place: u64) -> Sequence {
        Sequence { admission: Some(place), ..Sequence::new(Request::of_test(id, 3), Nanos(0)) }
    }

    #[test]
    fn requests_run_in_the_order_of_first_admissions() {
        let mut running = Running::new(3);
        [(7, 2), (8, 1), (9, 3)].into_iter().for_each(|(id, place)| running.add(request(id, place)));
        running.check();
        assert_eq!(running.iter().map(|one| one.id().0).collect::<Vec<_>>(), [8, 7, 9]);
        assert_eq!((running.free_rows(), running.pending_tokens()), (0, 9));
    }

    #[test]
    fn row_of_a_request_that_leaves_is_free_again() {
        let mut running = Running::new(2);
        [(7, 1), (8, 2)].into_iter().for_each(|(id, place)| running.add(request(id, place)));
        let row = running.get(RequestId(7)).and_then(|one| one.row).expect("a row");
        assert_eq!(running.in_row(row).map(Sequence::id), Some(RequestId(7)));
        let left = running.take(RequestId(7)).expect("it runs");
        assert_eq!(
            (left.row, running.contains(RequestId(7)), running.in_row(row).is_none()),
            (None, false, true)
        );
        running.add(request(9, 3));
        assert_eq!(running.get(RequestId(9)).and_then(|one| one.row), Some(row));
        running.check();
        assert!(running.take(RequestId(7)).is_none(), "it has left");
    }
}
