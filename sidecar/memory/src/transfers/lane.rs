//! One lane: takes its fills in order, each after those it builds on and after the reader it names.

use std::sync::MutexGuard;
use std::time::Duration;

use sluice_policy::ids::{Generation, LayerId};

use super::{Event, Job, LaneKey, Shared, State};

/// Longest wait for a reader without a look at drops and at the end.
const GATE_WAIT: Duration = Duration::from_millis(10);

impl Shared {
    /// The lane's thread.
    pub(super) fn run(&self, key: LaneKey) {
        super::link::sleep_precisely();
        while let Some(job) = self.next(key) {
            let (number, id) = (job.number, job.id);
            let outcome = self.carry_out(&job.fill);
            // Told before the next one may start: completions come in the order of ending.
            self.outbox.send(Event::Filled { id, chunks: job.fill.chunks, outcome });
            let mut state = self.lock();
            state.copying -= 1;
            state.live.remove(&number);
            drop(state);
            self.changed.notify_all();
        }
    }

    /// Waits for the next fill that may start and counts it as started; none at the end.
    fn next(&self, key: LaneKey) -> Option<Job> {
        let mut state = self.lock();
        loop {
            if state.stopping {
                return None;
            }
            state = match state.hindrance(key) {
                Hindrance::Reader(layer, generation) if !self.reader_done(layer, generation) => {
                    drop(state);
                    self.gate.wait_done(layer, generation, GATE_WAIT);
                    self.lock()
                }
                Hindrance::Other => self.wait(state),
                _ if state.copying >= self.threads => self.wait(state),
                _ => {
                    state.copying += 1;
                    return state.lanes.get_mut(&key)?.pop_front();
                }
            };
        }
    }

    fn reader_done(&self, layer: LayerId, generation: Generation) -> bool {
        self.faults.current().skip_after_wait || self.gate.done_reached(layer, generation)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).expect("no lane panics with the state locked")
    }
}

/// What a lane's first fill waits for, as far as the state tells.
enum Hindrance {
    /// An earlier fill, or there is no fill.
    Other,
    /// Perhaps the engine's reader of this layer and generation.
    Reader(LayerId, Generation),
    None,
}

impl State {
    fn hindrance(&self, key: LaneKey) -> Hindrance {
        let Some(job) = self.lanes.get(&key).and_then(|lane| lane.front()) else { return Hindrance::Other };
        if job.needs.iter().any(|earlier| self.live.contains(earlier)) {
            return Hindrance::Other;
        }
        job.fill.after.map_or(Hindrance::None, |(layer, generation)| Hindrance::Reader(layer, generation))
    }
}
