//! Owns the waiting requests in admission order.

use std::collections::BTreeMap;

use sluice_policy::ids::{Nanos, RequestId};
use sluice_policy::params::Slo;

use crate::config::QueueOrder;
use crate::sequence::Sequence;

/// Sort key of waiting requests; the smallest is next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    /// False for requests at the pause limit: they are first.
    may_wait: bool,
    /// Higher priorities first.
    priority: std::cmp::Reverse<i32>,
    /// Tokens left to compute; 0 under [`QueueOrder::FirstCome`].
    remaining: u32,
    /// When the next token is due; 0 without objectives.
    deadline: Nanos,
    /// Order of arrival. A preempted request keeps its position among equals.
    id: RequestId,
}

/// The wait queue.
#[derive(Debug)]
pub struct Queue {
    order: QueueOrder,
    /// Objectives that give requests deadlines. `None`: requests have no deadlines.
    objectives: Option<Slo>,
    waiting: BTreeMap<Key, Sequence>,
    /// Requests that were admitted, or planned to be, at least once.
    admissions: u64,
}

impl Queue {
    /// Returns an empty queue.
    pub fn new(order: QueueOrder) -> Self {
        Queue { order, objectives: None, waiting: BTreeMap::new(), admissions: 0 }
    }

    fn key(&self, sequence: &Sequence) -> Key {
        let remaining = match self.order {
            QueueOrder::FirstCome => 0,
            QueueOrder::ShortestRemaining => sequence.remaining(),
        };
        Key {
            may_wait: !sequence.is_overdue,
            priority: std::cmp::Reverse(sequence.request.priority),
            remaining,
            deadline: self.objectives.map_or(Nanos(0), |slo| sequence.deadline(&slo)),
            id: sequence.id(),
        }
    }

    /// Returns the number of waiting requests.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether no request waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Returns a waiting request.
    pub fn get(&self, id: RequestId) -> Option<&Sequence> {
        self.waiting.values().find(|sequence| sequence.id() == id)
    }

    /// Returns the number of places that were given in the order of first admissions.
    pub fn admissions(&self) -> u64 {
        self.admissions
    }

    /// Gives these requests their places in the order of first admissions, unless they have one.
    pub fn number(&mut self, ids: impl Iterator<Item = RequestId>) {
        for id in ids {
            let waiting = self.waiting.values_mut().find(|sequence| sequence.id() == id);
            if let Some(sequence) = waiting.filter(|sequence| sequence.admission.is_none()) {
                self.admissions += 1;
                sequence.admission = Some(self.admissions);
            }
        }
    }

    /// Inserts a request by its key.
    pub fn push(&mut self, sequence: Sequence) {
        self.waiting.insert(self.key(&sequence), sequence);
    }

    /// Returns the next request.
    pub fn front(&self) -> Option<&Sequence> {
        self.waiting.values().next()
    }

    fn pop(&mut self) -> Option<Sequence> {
        self.waiting.pop_first().map(|(_, sequence)| sequence)
    }

    /// Removes `id` from any position.
    pub fn remove(&mut self, id: RequestId) -> Option<Sequence> {
        let key = *self.waiting.iter().find(|(_, s)| s.id() == id)?.0;
        self.waiting.remove(&key)
    }

    /// Moves `id` before all other requests.
    pub fn move_to_front(&mut self, id: RequestId) {
        if let Some(mut sequence) = self.remove(id) {
            sequence.is_overdue = true;
            self.push(sequence);
        }
    }

    /// Extends the deadlines of the first requests by `by_ns` and orders them again, one after the other, until the
    /// first one is not late. `is_late` must not hold for a request that was deferred.
    pub fn defer_front_while(&mut self, by_ns: u64, is_late: impl Fn(&Sequence) -> bool) {
        while self.front().is_some_and(&is_late) {
            let Some(mut late) = self.pop() else { return };
            late.deferred_ns = by_ns;
            self.push(late);
        }
    }

    /// Sets the objectives and reorders the queue: among otherwise equal requests the earliest deadline is first, or
    /// without objectives the earliest arrival.
    pub fn set_objectives(&mut self, objectives: Option<Slo>) {
        if self.objectives != objectives {
            self.objectives = objectives;
            let waiting = std::mem::take(&mut self.waiting);
            waiting.into_values().for_each(|sequence| self.push(sequence));
        }
    }

    /// Returns the waiting requests in order.
    pub fn iter(&self) -> impl Iterator<Item = &Sequence> {
        self.waiting.values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Request;

    const SLO: Slo = Slo { ttft_ns: 100, tbt_ns: 10, allowed_miss_permille: 0 };

    /// A queue of requests 1, 2, ... by deadline, that arrived at these times.
    fn queue(arrivals: &[u64]) -> Queue {
        let mut queue = Queue::new(QueueOrder::FirstCome);
        queue.set_objectives(Some(SLO));
        for (id, arrived) in (1..).zip(arrivals) {
            queue.push(Sequence::new(Request::of_test(id, 3), Nanos(*arrived)));
        }
        queue
    }

    fn order(queue: &Queue) -> Vec<u64> {
        queue.iter().map(|one| one.id().0).collect()
    }

    #[test]
    fn late_requests_are_deferred_until_the_first_is_in_time() {
        let mut queue = queue(&[0, 10, 20, 30]);
        let is_late = |one: &Sequence| one.deferred_ns == 0 && one.arrived < Nanos(20);
        queue.defer_front_while(1000, is_late);
        assert_eq!(order(&queue), [3, 4, 1, 2]);
    }

    #[test]
    fn deferral_ends_when_a_deferred_request_is_first_again() {
        let mut queue = queue(&[0, 10]);
        queue.defer_front_while(5, |one| one.deferred_ns == 0);
        assert_eq!(order(&queue), [1, 2], "its later deadline is still the earliest");
        assert_eq!(queue.iter().map(|one| one.deferred_ns).collect::<Vec<_>>(), [5, 0]);
    }

    #[test]
    fn places_are_given_once_in_the_order_of_admissions() {
        let mut queue = queue(&[0, 10, 20]);
        queue.number([RequestId(2), RequestId(1)].into_iter());
        queue.number([RequestId(1), RequestId(3)].into_iter());
        let places: Vec<_> = queue.iter().map(|one| one.admission).collect();
        assert_eq!((places, queue.admissions()), (vec![Some(2), Some(1), Some(3)], 3));
    }
}
