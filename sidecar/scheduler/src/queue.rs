//! Requests that wait, in the order in which they will be admitted.

use std::collections::BTreeMap;

use sluice_policy::ids::RequestId;

use crate::config::Order;
use crate::sequence::Sequence;

/// The key by which waiting requests are ordered: smallest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    /// Who has waited for as long as it may goes before everybody.
    at_ease: bool,
    /// Higher priorities first.
    priority: std::cmp::Reverse<i32>,
    /// 0 under first come.
    remaining: u32,
    /// Order of arrival. A preempted request keeps its place.
    id: RequestId,
}

/// The waiting line.
#[derive(Debug)]
pub struct Queue {
    order: Order,
    waiting: BTreeMap<Key, Sequence>,
}

impl Queue {
    /// An empty line.
    pub fn new(order: Order) -> Self {
        Queue { order, waiting: BTreeMap::new() }
    }

    fn key(&self, sequence: &Sequence) -> Key {
        let remaining = match self.order {
            Order::FirstCome => 0,
            Order::ShortestRemaining => sequence.remaining(),
        };
        Key {
            at_ease: !sequence.overdue,
            priority: std::cmp::Reverse(sequence.request.priority),
            remaining,
            id: sequence.id(),
        }
    }

    /// Requests waiting.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Nobody waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Puts a request in its place.
    pub fn push(&mut self, sequence: Sequence) {
        self.waiting.insert(self.key(&sequence), sequence);
    }

    /// The next one.
    pub fn front(&self) -> Option<&Sequence> {
        self.waiting.values().next()
    }

    /// Takes the next one.
    pub fn pop(&mut self) -> Option<Sequence> {
        self.waiting.pop_first().map(|(_, sequence)| sequence)
    }

    /// Takes `id` out of the line, wherever it stands.
    pub fn remove(&mut self, id: RequestId) -> Option<Sequence> {
        let key = *self.waiting.iter().find(|(_, s)| s.id() == id)?.0;
        self.waiting.remove(&key)
    }

    /// Puts `id` before everybody else.
    pub fn hurry(&mut self, id: RequestId) {
        if let Some(mut sequence) = self.remove(id) {
            sequence.overdue = true;
            self.push(sequence);
        }
    }

    /// Everyone waiting, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Sequence> {
        self.waiting.values()
    }
}
