//! The placement planner in virtual time.

use std::collections::VecDeque;

use sluice_policy::ids::Nanos;
use sluice_policy::placement_planner::request::{PlanAnswer, PlanRequest};
use sluice_ports::placement_planner::PlacementPlanner;

/// A planner that solves each request in `submit` and returns the answer after a fixed time.
#[derive(Clone, Debug, Default)]
pub struct TimedPlanner {
    latency_ns: u64,
    plans: VecDeque<(Nanos, PlanAnswer)>,
}

impl TimedPlanner {
    /// Creates a planner with the given latency, nanoseconds of the caller's time.
    pub fn with_latency(takes_ns: u64) -> TimedPlanner {
        TimedPlanner { latency_ns: takes_ns, plans: VecDeque::new() }
    }
}

impl PlacementPlanner for TimedPlanner {
    fn submit(&mut self, now: Nanos, request: PlanRequest) {
        self.plans.push_back((now.plus(self.latency_ns), request.solve()));
    }

    fn poll(&mut self, now: Nanos) -> Option<PlanAnswer> {
        self.plans.pop_front_if(|(due, _)| *due <= now).map(|(_, answer)| answer)
    }

    fn next_due(&self) -> Option<Nanos> {
        self.plans.front().map(|(due, _)| *due)
    }
}
