//! The requests of the tenant: those that wait, those that run, and what holds them back.

use sluice_policy::ids::{Nanos, RequestId};
use sluice_policy::placement_planner::pause::Pauses;

use super::admission_hold::AdmissionHold;
use super::running::Running;
use crate::config::Config;
use crate::queue::Queue;
use crate::sequence::Sequence;

/// All requests that have not ended.
#[derive(Debug)]
pub(super) struct Requests {
    /// Those that wait.
    pub queue: Queue,
    /// Those that run.
    pub running: Running,
    /// Which are paused, and for how long they were (OrbitFlow).
    pub pauses: Pauses,
    /// Whether memory refused an admission a short time ago.
    pub hold: AdmissionHold,
}

impl Requests {
    /// Returns the state without requests; one request may be paused for `pause_bound_ns` in total.
    pub fn new(config: &Config, pause_bound_ns: u64) -> Requests {
        Requests {
            queue: Queue::new(config.order),
            running: Running::new(config.max_sequences),
            pauses: Pauses::new(pause_bound_ns),
            hold: AdmissionHold::default(),
        }
    }

    /// Whether a request waits or runs.
    pub fn any(&self) -> bool {
        !self.queue.is_empty() || !self.running.is_empty()
    }

    /// Whether the request waits or runs.
    pub fn contains(&self, id: RequestId) -> bool {
        self.running.contains(id) || self.queue.get(id).is_some()
    }

    /// Returns the running requests, then the waiting ones, each in their order.
    pub fn iter(&self) -> impl Iterator<Item = &Sequence> {
        self.running.iter().chain(self.queue.iter())
    }

    /// Returns the requests that wait with their KV, the last that matches.
    pub fn last_suspended(&self, which: impl Fn(RequestId) -> bool) -> Option<RequestId> {
        self.queue.iter().filter(|one| one.kv_suspended && which(one.id())).last().map(Sequence::id)
    }

    /// Whether memory refused an admission in the last steps before `step` ([`AdmissionHold::holds`]).
    pub fn are_on_hold(&self, step: u64) -> bool {
        self.hold.holds(step, self.running.is_empty())
    }

    /// Whether the request has reached the pause limit; `None`: the policy does not pause.
    pub fn is_immune(&self, now: Nanos, id: RequestId, longest_pause_ns: Option<u64>) -> bool {
        longest_pause_ns.is_some_and(|longest_ns| self.pauses.total_ns(id, now) >= longest_ns)
    }

    /// Ends the pause of a request that runs again.
    pub fn end_pause(&mut self, now: Nanos, id: RequestId) {
        if self.pauses.is_paused(id) {
            self.pauses.resume(id, now);
            if let Some(sequence) = self.running.get_mut(id) {
                sequence.is_overdue = false;
            }
        }
    }
}
