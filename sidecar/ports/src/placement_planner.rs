//! The placement planner, which makes plans concurrently with steps.

use sluice_policy::ids::Nanos;
use sluice_policy::placement_planner::request::{PlanAnswer, PlanRequest};

/// Answers the policy's plan requests. `submit` returns immediately; answers arrive in the order of the
/// requests.
pub trait PlacementPlanner: Send + std::fmt::Debug {
    /// Starts a plan.
    fn submit(&mut self, now: Nanos, request: PlanRequest);

    /// Returns a plan that is finished by `now`.
    fn poll(&mut self, now: Nanos) -> Option<PlanAnswer>;

    /// Returns the earliest time at which there is an answer to poll, if known. A planner that works in a
    /// thread wakes its driver instead.
    fn next_due(&self) -> Option<Nanos> {
        None
    }
}
