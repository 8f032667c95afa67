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
use crate::reclaim::KvPlacementMode;
use fetch_failures::FetchFailures;
use plans::PlacementPlans;
use write_back::WriteBackLink;

/// The fewest layers that can be offloaded: two that share a buffer.
pub const MIN_MOVING_LAYERS: u16 = 2;

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
    /// What places KV.
    placer: KvPlacementMode,
    longest_pause_ns: Option<u64>,
    fetched_bytes: u64,
    fetched_ns: u64,
}

impl Offload {
    /// Returns the state of a tenant that offloads nothing yet, for a model of `layers` layers and a host tier of
    /// `host_kv_blocks` KV blocks.
    pub fn new(params: &Params, layers: u16, host_kv_blocks: u32) -> Offload {
        let mut offload = Offload {
            due: None,
            expansion: Expansion::new(params.expansion, layers, layers.saturating_sub(1)),
            watch: None,
            plans: PlacementPlans::new(layers),
            prompts: BufferController::new(host_kv_blocks.into()),
            write_back: WriteBackLink::default(),
            fetch_failures: FetchFailures::default(),
            placer: KvPlacementMode::Device,
            longest_pause_ns: None,
            fetched_bytes: 0,
            fetched_ns: 0,
        };
        offload.set_policy(params, layers, host_kv_blocks);
        offload
    }

    /// Puts in force how the policy pauses requests, and what it places KV by as far as the model and the host tier
    /// allow it. The state of what is not in force stays.
    pub fn set_policy(&mut self, params: &Params, layers: u16, host_kv_blocks: u32) {
        let wanted = params.kv_placement();
        let impossible =
            host_kv_blocks == 0 || (wanted == KvPlacementMode::Prompts && layers <= MIN_MOVING_LAYERS);
        self.placer = if impossible { KvPlacementMode::Device } else { wanted };
        self.longest_pause_ns = params.longest_pause_ns();
    }

    /// The longest total pause of a request, nanoseconds. `None`: no request is paused.
    pub fn longest_pause_ns(&self) -> Option<u64> {
        self.longest_pause_ns
    }

    /// What places KV.
    pub fn placer(&self) -> KvPlacementMode {
        self.placer
    }

    /// The buffer for prompts, if prompts are offloaded.
    pub fn prompts_in_force(&self) -> Option<&BufferController> {
        (self.placer == KvPlacementMode::Prompts).then_some(&self.prompts)
    }

    /// The controller of the layers to offload, if it is in force.
    pub fn expansion_in_force(&mut self) -> Option<&mut Expansion> {
        (self.placer == KvPlacementMode::Uniform).then_some(&mut self.expansion)
    }

    /// The plans, if they place KV.
    pub fn plans_in_force(&self) -> Option<&PlacementPlans> {
        (self.placer == KvPlacementMode::PerRequest).then_some(&self.plans)
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
    use crate::reclaim::PolicyName;

    #[test]
    fn fetched_bytes_add_up_and_fetched_time_is_taken_once() {
        let mut offload = Offload::new(&Params::default(), 4, 8);
        offload.record_fetch(10, 3);
        offload.record_fetch(20, 4);
        assert_eq!((offload.fetched_bytes(), offload.take_fetched_ns()), (30, 7));
        assert_eq!((offload.fetched_bytes(), offload.take_fetched_ns()), (30, 0));
    }

    fn params(policy: PolicyName) -> Params {
        Params { policy, ..Params::default() }
    }

    #[test]
    fn policy_places_kv_only_in_a_host_tier() {
        let placer =
            |policy, layers, host_kv_blocks| Offload::new(&params(policy), layers, host_kv_blocks).placer();
        assert_eq!(placer(PolicyName::OrbitFlow, 4, 8), KvPlacementMode::PerRequest);
        assert_eq!(placer(PolicyName::OrbitFlow, 4, 0), KvPlacementMode::Device);
        assert_eq!(placer(PolicyName::Ellm, 3, 8), KvPlacementMode::Prompts);
        assert_eq!(placer(PolicyName::Ellm, 2, 8), KvPlacementMode::Device, "two layers share one buffer");
    }

    #[test]
    fn only_kv_placing_policy_is_in_force() {
        let mut offload = Offload::new(&Params::default(), 4, 8);
        let in_force = |offload: &mut Offload| {
            let (prompts, plans) = (offload.prompts_in_force().is_some(), offload.plans_in_force().is_some());
            [prompts, plans, offload.expansion_in_force().is_some()]
        };
        assert_eq!(in_force(&mut offload), [false; 3]);
        offload.set_policy(&params(PolicyName::Ellm), 4, 8);
        assert_eq!(in_force(&mut offload), [true, false, false]);
        offload.set_policy(&params(PolicyName::OrbitFlow), 4, 8);
        assert_eq!(in_force(&mut offload), [false, true, false]);
        offload.set_policy(&params(PolicyName::Pie), 4, 8);
        assert_eq!(in_force(&mut offload), [false, false, true]);
    }

    #[test]
    fn without_a_plan_nothing_is_due() {
        let mut offload = Offload::new(&Params::default(), 4, 8);
        offload.due = Some(Placement::default());
        offload.forget_plan();
        assert_eq!(offload.due, None);
    }
}
