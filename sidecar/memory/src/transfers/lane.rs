//! One lane: takes its orders in order, each after those it builds on and after the reader it names.

use std::collections::VecDeque;
use std::sync::MutexGuard;
use std::time::Duration;

use super::order::Reader;
use super::{Event, Job, LaneKey, Shared, State};

/// Longest wait for a reader without a look at drops and at the end.
const GATE_WAIT: Duration = Duration::from_millis(10);

impl Shared {
    /// The lane's thread.
    pub(super) fn run(&self, key: LaneKey) {
        super::link::sleep_precisely();
        while let Some(job) = self.next(key) {
            let (number, id) = (job.number, job.id);
            let outcome = self.carry_out(&job.order, job.rank);
            // Told before the next one may start: completions come in the order of ending.
            self.outbox.send(Event::Copied { id, order: job.order, outcome });
            let mut state = self.lock();
            state.copying -= usize::from(key.is_of_slabs());
            state.live.remove(&number);
            drop(state);
            self.changed.notify_all();
        }
    }

    /// Waits for the next order that may start and counts it as started; none at the end.
    fn next(&self, key: LaneKey) -> Option<Job> {
        let mut state = self.lock();
        loop {
            if state.stopping {
                return None;
            }
            state = match state.hindrance(key) {
                Hindrance::Reader(reader) if !self.reader_done(reader) => {
                    drop(state);
                    self.wait_for(reader);
                    self.lock()
                }
                Hindrance::Other => self.wait(state),
                _ if key.is_of_slabs() && (state.copying >= self.threads || self.gives_way(&state, key)) => {
                    self.wait(state)
                }
                _ => {
                    state.copying += usize::from(key.is_of_slabs());
                    if key.is_of_slabs() && state.copying < self.threads {
                        // Who gave way to this one may be next.
                        self.changed.notify_all();
                    }
                    return state.lanes.get_mut(&key)?.pop_front();
                }
            };
        }
    }

    /// Another lane's first slab is more urgent and can start too: its thread takes it, and its start or end is told.
    fn gives_way(&self, state: &State, key: LaneKey) -> bool {
        let starts = |other: LaneKey| match state.hindrance(other) {
            Hindrance::None => true,
            Hindrance::Reader(reader) => self.reader_done(reader),
            Hindrance::Other => false,
        };
        let first = |lane: &VecDeque<Job>| lane.front().map(|job| job.rank);
        let Some(own) = state.lanes.get(&key).and_then(first) else { return false };
        let mut others = state.lanes.iter().filter(|(other, _)| other.is_of_slabs());
        others.any(|(other, lane)| first(lane).is_some_and(|rank| rank < own) && starts(*other))
    }

    fn reader_done(&self, reader: Reader) -> bool {
        self.faults.current().skip_after_wait
            || match reader {
                Reader::Weights(layer, generation) => self.gate.done_reached(layer, generation),
                Reader::Kv(layer, generation) => self.gate.kv_done_reached(layer, generation),
            }
    }

    /// For a moment.
    fn wait_for(&self, reader: Reader) {
        match reader {
            Reader::Weights(layer, generation) => self.gate.wait_done(layer, generation, GATE_WAIT),
            Reader::Kv(layer, generation) => self.gate.wait_kv_done(layer, generation, GATE_WAIT),
        };
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).expect("no lane panics with the state locked")
    }
}

/// What a lane's first order waits for, as far as the state tells.
enum Hindrance {
    /// An earlier order, or there is none.
    Other,
    /// Perhaps this reader.
    Reader(Reader),
    None,
}

impl State {
    fn hindrance(&self, key: LaneKey) -> Hindrance {
        let Some(job) = self.lanes.get(&key).and_then(|lane| lane.front()) else { return Hindrance::Other };
        if job.needs.iter().any(|earlier| self.live.contains(earlier)) {
            return Hindrance::Other;
        }
        job.order.reader().map_or(Hindrance::None, Hindrance::Reader)
    }
}
