//! Who makes plans, beside steps.

use std::collections::VecDeque;

use sluice_policy::ids::Nanos;
use sluice_policy::planner::request::{PlanAnswer, PlanRequest};

/// Answers what the policy wants planned. `ask` returns at once; answers come in the order of the questions.
pub trait Planner: Send + std::fmt::Debug {
    /// Begins a plan.
    fn submit(&mut self, now: Nanos, request: PlanRequest);

    /// A plan that is made by `now`.
    fn poll(&mut self, now: Nanos) -> Option<PlanAnswer>;

    /// When there is something to poll at the earliest, if that is known: a planner that works beside wakes its driver.
    fn next_due(&self) -> Option<Nanos> {
        None
    }
}

/// Plans where it is asked, and hands each out when a stated time has passed.
#[derive(Clone, Debug, Default)]
pub struct TimedPlanner {
    latency_ns: u64,
    plans: VecDeque<(Nanos, PlanAnswer)>,
}

impl TimedPlanner {
    /// Each plan takes so long, nanoseconds of the time that it is told.
    pub fn with_latency(takes_ns: u64) -> TimedPlanner {
        TimedPlanner { latency_ns: takes_ns, plans: VecDeque::new() }
    }
}

impl Planner for TimedPlanner {
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
