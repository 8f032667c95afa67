//! A step's time as OrbitFlow has it: every request with its own prefetch buffer, and no step before it.

use sluice_policy::placement_planner::problem::Problem;
use sluice_policy::placement_planner::search::Plan;
use sluice_policy::placement_planner::steps::{FetchStream, Steps};

/// Returns the time of a step with these choices, nanoseconds.
pub fn step_ns(problem: &Problem, chosen: &[u16]) -> u64 {
    let choices = problem.choices_of(chosen);
    let streams = choices.map(|choice| FetchStream { fetches: &choice.fetches, buffers: choice.buffers });
    Steps::new(&problem.link, &problem.compute_ns, streams).step(problem.write_bytes).total_ns
}

/// Returns how much faster another plan could be, permille of this plan's time, rounded up.
pub fn gap_permille(plan: &Plan) -> u64 {
    let slack_ns = plan.cost.time_ns - plan.bound_ns;
    (slack_ns * 1000).div_ceil(plan.cost.time_ns.max(1))
}
