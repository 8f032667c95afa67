//! One lane: runs its orders in submission order, each after the orders that it depends on and after its
//! reader.

use std::collections::VecDeque;
use std::sync::MutexGuard;
use std::time::{Duration, Instant};

use super::transfer_order::Reader;
use super::{Event, Job, LaneContext, LaneKey, LaneState};
use crate::pool_lane::PoolLane;

/// Longest wait for a reader before the lane checks for drops and for shutdown.
const GATE_WAIT: Duration = Duration::from_millis(10);
/// Time between two reads of a word that the device writes: 1 % of the copy of a layer of 100 MB over 50 GB/s.
const POLL_INTERVAL: Duration = Duration::from_micros(20);

impl LaneContext {
    /// Runs the lane's thread.
    pub(super) fn run(&self, key: LaneKey) {
        super::link::set_timer_slack();
        let pool = self.pool.clone();
        let mut lane = PoolLane::new(&pool);
        while let Some(job) = self.next_job(key) {
            let (number, id) = (job.number, job.id);
            let outcome = self.execute(&mut lane, &job.order, job.priority);
            // Reported before the next order may start, so that completions arrive in the order of ending.
            self.completions.send(Event::CopyDone { id, order: job.order, outcome });
            let mut state = self.lock();
            state.copying -= usize::from(key.is_weights());
            state.active.remove(&number);
            drop(state);
            self.changed.notify_all();
        }
    }

    /// Waits for the next order that may start and counts it as started. Returns `None` on shutdown.
    fn next_job(&self, key: LaneKey) -> Option<Job> {
        let mut state = self.lock();
        loop {
            if state.stopping {
                return None;
            }
            state = match state.blocked_on(key) {
                BlockedOn::Reader(reader) if !self.is_reader_done(reader) => {
                    drop(state);
                    self.wait_for_reader(reader);
                    self.lock()
                }
                BlockedOn::EarlierJob => self.wait(state),
                _ if key.is_weights()
                    && (state.copying >= self.threads || self.should_yield(&state, key)) =>
                {
                    self.wait(state)
                }
                _ => {
                    state.copying += usize::from(key.is_weights());
                    if key.is_weights() && state.copying < self.threads {
                        // A lane that yielded to this one may be next.
                        self.changed.notify_all();
                    }
                    return state.lanes.get_mut(&key)?.pop_front();
                }
            };
        }
    }

    /// Whether the first slab of another lane is more urgent and can start too. The other lane's thread takes
    /// it and notifies this one when it starts or ends.
    fn should_yield(&self, state: &LaneState, key: LaneKey) -> bool {
        let starts = |other: LaneKey| match state.blocked_on(other) {
            BlockedOn::None => true,
            BlockedOn::Reader(reader) => self.is_reader_done(reader),
            BlockedOn::EarlierJob => false,
        };
        let first = |lane: &VecDeque<Job>| lane.front().map(|job| job.priority);
        let Some(own) = state.lanes.get(&key).and_then(first) else { return false };
        let mut others = state.lanes.iter().filter(|(other, _)| other.is_weights());
        others.any(|(other, lane)| first(lane).is_some_and(|rank| rank < own) && starts(*other))
    }

    fn is_reader_done(&self, reader: Reader) -> bool {
        self.faults.current().skip_after_wait
            || match reader {
                Reader::Weights(layer, generation) => self.gate.is_done(layer, generation),
                Reader::Kv(layer, generation) => self.gate.is_kv_done(layer, generation),
            }
    }

    /// Waits at most `GATE_WAIT` for the reader.
    fn wait_for_reader(&self, reader: Reader) {
        if self.pool.signals() {
            return self.poll_reader(reader);
        }
        match reader {
            Reader::Weights(layer, generation) => self.gate.wait_done(layer, generation, GATE_WAIT),
            Reader::Kv(layer, generation) => self.gate.wait_kv_done(layer, generation, GATE_WAIT),
        };
    }

    /// As [`LaneContext::wait_for_reader`] for a word that the device writes, which wakes no thread.
    fn poll_reader(&self, reader: Reader) {
        let begun = Instant::now();
        while !self.is_reader_done(reader) && begun.elapsed() < GATE_WAIT {
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    fn wait<'a>(&self, state: MutexGuard<'a, LaneState>) -> MutexGuard<'a, LaneState> {
        self.changed.wait(state).expect("no lane panics with the state locked")
    }
}

/// What the first order of a lane waits for, according to the state.
enum BlockedOn {
    /// An earlier order, or the lane is empty.
    EarlierJob,
    /// This reader, unless it is done already.
    Reader(Reader),
    None,
}

impl LaneState {
    fn blocked_on(&self, key: LaneKey) -> BlockedOn {
        let Some(job) = self.lanes.get(&key).and_then(|lane| lane.front()) else {
            return BlockedOn::EarlierJob;
        };
        if job.depends_on.iter().any(|earlier| self.active.contains(earlier)) {
            return BlockedOn::EarlierJob;
        }
        job.order.reader().map_or(BlockedOn::None, BlockedOn::Reader)
    }
}
