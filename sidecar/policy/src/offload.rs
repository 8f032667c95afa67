//! KV that leaves the device while its requests run: the placement that is due, the plan that it follows, and what is
//! known of the link to the host tier. `kv::layer_offload` holds the placement in force.

pub mod fetch_failures;
pub mod plans;
pub mod write_back;

use crate::ellm::BufferController;
use crate::kv::layer_offload::Placement;
use crate::params::Params;
use crate::pie::expansion::Expansion;
use crate::planner::replan::ReplanWatch;
use fetch_failures::FetchFailures;
use plans::PlacementPlans;
use write_back::WriteBackLink;

/// State of the offload of a tenant.
#[derive(Clone, Debug)]
pub struct Offload {
    /// Another placement waits until no fetch is under way: the next step orders no early fetches.
    pub due: Option<Placement>,
    /// Layers that may be offloaded (`Pie`).
    pub expansion: Expansion,
    /// The replan triggers of the plan in force (`OrbitFlow`).
    pub watch: Option<ReplanWatch>,
    /// The plan in force, and the requested one.
    pub plans: PlacementPlans,
    /// Sizes the part of the host tier for prompts (eLLM).
    pub prompts: BufferController,
    /// The link to the host tier.
    pub write_back: WriteBackLink,
    /// Fetches that failed in a row.
    pub fetch_failures: FetchFailures,
    fetched_bytes: u64,
    fetched_ns: u64,
}

impl Offload {
    /// Returns the state of a tenant that offloads nothing yet, for a model of `layers` layers and a host tier of
    /// `host_kv_blocks` KV blocks.
    pub fn new(params: &Params, layers: u16, host_kv_blocks: u32) -> Offload {
        Offload {
            due: None,
            expansion: Expansion::new(params.expansion, layers, layers.saturating_sub(1)),
            watch: None,
            plans: PlacementPlans::new(layers),
            prompts: BufferController::new(host_kv_blocks.into()),
            write_back: WriteBackLink::default(),
            fetch_failures: FetchFailures::default(),
            fetched_bytes: 0,
            fetched_ns: 0,
        }
    }

    /// Forgets the plan and the placement that is due.
    pub fn forget_plan(&mut self) {
        self.plans.forget();
        self.due = None;
    }

    /// Records a fetch that ended.
    pub fn record_fetch(&mut self, bytes: u64, duration_ns: u64) {
        self.fetched_bytes = self.fetched_bytes.saturating_add(bytes);
        self.fetched_ns = self.fetched_ns.saturating_add(duration_ns);
    }

    /// Returns the bytes of all fetches.
    pub fn fetched_bytes(&self) -> u64 {
        self.fetched_bytes
    }

    /// Returns the time that the link took for fetches since the last call, nanoseconds.
    pub fn take_fetched_ns(&mut self) -> u64 {
        core::mem::take(&mut self.fetched_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fetched_bytes_add_up_and_fetched_time_is_taken_once() {
        let mut offload = Offload::new(&Params::default(), 4, 8);
        offload.record_fetch(10, 3);
        offload.record_fetch(20, 4);
        assert_eq!((offload.fetched_bytes(), offload.take_fetched_ns()), (30, 7));
        assert_eq!((offload.fetched_bytes(), offload.take_fetched_ns()), (30, 0));
    }

    #[test]
    fn without_a_plan_nothing_is_due() {
        let mut offload = Offload::new(&Params::default(), 4, 8);
        offload.due = Some(Placement::default());
        offload.forget_plan();
        assert_eq!(offload.due, None);
    }
}
