//! Requests that wait, in the order in which they will be admitted.

use std::collections::BTreeMap;

use sluice_policy::ids::{Nanos, RequestId};
use sluice_policy::params::Slo;

use crate::config::QueueOrder;
use crate::sequence::Sequence;

/// The key by which waiting requests are ordered: smallest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    /// Who has waited for as long as it may goes before everybody.
    is_deferred: bool,
    /// Higher priorities first.
    priority: std::cmp::Reverse<i32>,
    /// 0 under first come.
    remaining: u32,
    /// When its next token is due; 0 where requests have no deadlines.
    deadline: Nanos,
    /// Order of arrival. A preempted request keeps its place among equals.
    id: RequestId,
}

/// The waiting line.
#[derive(Debug)]
pub struct Queue {
    order: QueueOrder,
    /// Objectives by which requests have deadlines; none = they have none.
    objectives: Option<Slo>,
    waiting: BTreeMap<Key, Sequence>,
}

impl Queue {
    /// An empty line.
    pub fn new(order: QueueOrder) -> Self {
        Queue { order, objectives: None, waiting: BTreeMap::new() }
    }

    fn key(&self, sequence: &Sequence) -> Key {
        let remaining = match self.order {
            QueueOrder::FirstCome => 0,
            QueueOrder::ShortestRemaining => sequence.remaining(),
        };
        Key {
            is_deferred: !sequence.is_overdue,
            priority: std::cmp::Reverse(sequence.request.priority),
            remaining,
            deadline: self.objectives.map_or(Nanos(0), |slo| sequence.deadline(&slo)),
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
    pub fn move_to_front(&mut self, id: RequestId) {
        if let Some(mut sequence) = self.remove(id) {
            sequence.is_overdue = true;
            self.push(sequence);
        }
    }

    /// Requests that are equal otherwise go by their deadlines from now on, earliest first, or without objectives by who came first.
    pub fn set_objectives(&mut self, objectives: Option<Slo>) {
        if self.objectives != objectives {
            self.objectives = objectives;
            let waiting = std::mem::take(&mut self.waiting);
            waiting.into_values().for_each(|sequence| self.push(sequence));
        }
    }

    /// Everyone waiting, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Sequence> {
        self.waiting.values()
    }
}
