//! Memory whose copies of weights wait until the engine has loaded them.

use std::collections::VecDeque;

use sluice_policy::action::{Action, Work};
use sluice_policy::event::{Completion, Failure, Outcome};
use sluice_policy::ids::Nanos;
use sluice_ports::Memory;

/// A memory that holds fills back while a worker loads: its loader writes the addresses of all layers, those that share
/// a slot as well, and the first fill of a slab reads what it has written.
#[derive(Debug)]
pub struct HeldFills<M> {
    memory: M,
    /// `None` = the worker has loaded.
    held: Option<Vec<Action>>,
    dropped: VecDeque<Completion>,
}

impl<M: Memory> HeldFills<M> {
    /// Holds fills back until [`HeldFills::release`].
    pub fn new(memory: M) -> HeldFills<M> {
        HeldFills { memory, held: Some(Vec::new()), dropped: VecDeque::new() }
    }

    /// The worker has loaded: fills run from now on.
    pub fn release(&mut self, now: Nanos) {
        for action in self.held.take().into_iter().flatten() {
            self.memory.submit(now, action);
        }
    }

    /// The worker is lost: fills wait for the next one. Those that run end.
    pub fn hold(&mut self) {
        self.held.get_or_insert_default();
    }

    /// Returns the memory.
    pub fn memory(&mut self) -> &mut M {
        &mut self.memory
    }
}

impl<M: Memory> Memory for HeldFills<M> {
    fn submit(&mut self, now: Nanos, action: Action) {
        match (&mut self.held, &action.work) {
            (Some(held), Work::Fill(_)) => held.push(action),
            (Some(held), Work::DropFills) => {
                let dropped = held
                    .drain(..)
                    .map(|fill| Completion { id: fill.id, outcome: Outcome::Failed(Failure::Dropped) });
                self.dropped.extend(dropped);
                self.memory.submit(now, action);
            }
            _ => self.memory.submit(now, action),
        }
    }

    fn poll(&mut self, now: Nanos) -> Option<Completion> {
        self.dropped.pop_front().or_else(|| self.memory.poll(now))
    }

    fn next_due(&self) -> Option<Nanos> {
        self.memory.next_due()
    }

    fn used_bytes(&self) -> u64 {
        self.memory.used_bytes()
    }
}

#[cfg(test)]
mod tests {
    use sluice_policy::action::{Fill, FillTarget};
    use sluice_policy::ids::{ActionId, ChunkId, Generation};
    use sluice_policy::reason::Reason;

    use super::*;

    const NOW: Nanos = Nanos(0);

    /// Ends each action at once.
    #[derive(Debug, Default)]
    struct AtOnce(VecDeque<Completion>);

    impl Memory for AtOnce {
        fn submit(&mut self, _now: Nanos, action: Action) {
            self.0
                .push_back(Completion { id: action.id, outcome: Outcome::Done { bytes: 0, duration_ns: 0 } });
        }

        fn poll(&mut self, _now: Nanos) -> Option<Completion> {
            self.0.pop_front()
        }

        fn used_bytes(&self) -> u64 {
            0
        }
    }

    fn action(id: u64, work: Work) -> Action {
        Action { id: ActionId(id), work, reason: Reason::Load, due: None }
    }

    fn fill(id: u64) -> Action {
        let (target, generation) = (FillTarget::Global, Generation(id));
        action(id, Work::Fill(Fill { target, generation, after: None, chunks: vec![ChunkId(0)] }))
    }

    /// The actions that have ended, and whether each was done.
    fn ended(memory: &mut HeldFills<AtOnce>) -> Vec<(u64, bool)> {
        let next = || memory.poll(NOW);
        let done = |one: Completion| (one.id.0, matches!(one.outcome, Outcome::Done { .. }));
        std::iter::from_fn(next).map(done).collect()
    }

    #[test]
    fn fills_wait_until_the_worker_has_loaded_and_others_do_not() {
        let mut memory = HeldFills::new(AtOnce::default());
        memory.submit(NOW, fill(1));
        memory.submit(NOW, action(2, Work::Create(vec![ChunkId(0)])));
        assert_eq!(ended(&mut memory), [(2, true)]);
        memory.release(NOW);
        assert_eq!(ended(&mut memory), [(1, true)]);
        memory.submit(NOW, fill(3));
        assert_eq!(ended(&mut memory), [(3, true)]);
        memory.hold();
        memory.submit(NOW, fill(4));
        assert_eq!(ended(&mut memory), []);
    }

    #[test]
    fn fills_that_wait_are_dropped_before_the_drop_ends() {
        let mut memory = HeldFills::new(AtOnce::default());
        memory.submit(NOW, fill(1));
        memory.submit(NOW, action(2, Work::DropFills));
        assert_eq!(ended(&mut memory), [(1, false), (2, true)]);
        memory.release(NOW);
        assert_eq!(ended(&mut memory), []);
    }
}
