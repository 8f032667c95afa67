//! Planning: everything that decides what the next step does. It reads and changes nothing.
//!
//! [`Planner::plan_step`] plans a step, and [`Planner::plan_again`] plans it again after memory refused it. Other
//! functions plan before that which requests leave the device:
//!
//! | function | for |
//! |---|---|
//! | [`Planner::plan_sleep`] | a tenant that falls asleep |
//! | [`Planner::plan_debt`] | memory that is owed |
//! | [`Planner::plan_pauses`] | the plan of placements |
//! | [`Planner::plan_offloaded`] | prompts whose KV is in the host tier |
//! | [`Planner::plan_overdue`] | a request at the pause limit |
//! | [`Planner::plan_row`] | the first waiting request, by deadline |
//!
//! `super::commit` carries out all plans.

mod admission;
mod admissions;
mod deadlines;
mod departures;
mod facts;
mod pacing;
mod pauses;
mod prefill_offload;
mod step;
#[cfg(test)]
mod tests;
mod victims;

use sluice_policy::ids::Nanos;
use sluice_policy::memory_manager::MemoryManager;
use sluice_policy::params::Slo;

use super::requests::Requests;
use crate::config::Config;
use crate::time_slice::TimeSlice;

/// What planning sees at one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Planner<'a> {
    /// The time.
    pub now: Nanos,
    /// Steps that have begun.
    pub step: u64,
    /// The limits.
    pub config: &'a Config,
    /// The memory.
    pub manager: &'a MemoryManager,
    /// The requests.
    pub requests: &'a Requests,
    /// The right to run steps.
    pub slice: &'a TimeSlice,
}

impl Planner<'_> {
    /// Returns the objectives for deadline scheduling; `None` under other policies.
    pub(super) fn objectives(&self) -> Option<Slo> {
        self.manager.params().deadlines()
    }
}
