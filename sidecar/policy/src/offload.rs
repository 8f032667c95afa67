//! KV that leaves the device while its requests run.
//!
//! [`Offload`] is the state: the placement that is due, the plan that it follows, and what is known of the link to the
//! host tier. [`Kv`](crate::kv::Kv) holds the placement in force. [`OffloadView`] decides and changes nothing;
//! [`Offloading`] carries decisions out, and its fields are all that it can change.
//!
//! | file | question |
//! |---|---|
//! | `placement` | which layers of which requests are offloaded; one file for each policy |
//! | `admission` | whether a plan admits one more request, and where its KV goes |
//! | `plan_request` | what a placement plan is asked |
//! | `fetches` | which KV a step fetches into buffers |
//! | `host_copies` | which whole KV blocks are copied |
//! | `paused` | how KV of paused requests makes space |

pub mod admission;
pub mod fetch_failures;
mod fetches;
pub mod host_copies;
mod layouts;
mod offloading;
mod paused;
mod placement;
mod plan_request;
mod plans;
pub mod scheduler_view;
pub mod view;
pub mod write_back;

pub use fetches::FetchesFailed;
pub use offloading::Offloading;
pub use paused::EvictedPaused;
pub use view::OffloadView;

use crate::ellm::{BufferController, Violations};
use crate::ids::RequestId;
use crate::kv::layer_offload::Placement;
use crate::params::Params;
use crate::pie::expansion::Expansion;
use crate::placement_planner::replan::ReplanWatch;
use crate::placement_planner::request::PlanAnswer;
use crate::reclaim::PlacementRule;
use fetch_failures::FetchFailures;
use plans::PlacementPlans;
use write_back::WriteBackLink;

/// The fewest layers that can be offloaded: two that share a buffer.
pub const MIN_MOVING_LAYERS: u16 = 2;

/// State of the offload of a tenant.
#[derive(Clone, Debug)]
pub struct Offload {
    /// Another placement waits until no fetch is under way: the next step orders no early fetches.
    due: Option<Placement>,
    /// Layers that may be offloaded (`Pie`).
    expansion: Expansion,
    /// The replan triggers of the plan in force (`OrbitFlow`).
    watch: Option<ReplanWatch>,
    /// The plan in force, and the requested one.
    plans: PlacementPlans,
    /// Sizes the part of the host tier for prompts (eLLM).
    prompts: BufferController,
    /// The link to the host tier.
    write_back: WriteBackLink,
    /// Fetches that failed in a row.
    fetch_failures: FetchFailures,
    /// Layers can be offloaded: there is a host tier, and two layers can share a buffer while another stays.
    can_move_layers: bool,
    /// What decides where KV resides.
    rule: PlacementRule,
    longest_pause_ns: Option<u64>,
    /// Requests ran when this boundary began.
    had_running: bool,
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
            can_move_layers: false,
            rule: PlacementRule::Device,
            longest_pause_ns: None,
            had_running: false,
            fetched_bytes: 0,
            fetched_ns: 0,
        };
        offload.set_policy(params, layers, host_kv_blocks);
        offload
    }

    /// Puts in force how the policy pauses requests, and what it places KV by as far as the model and the host tier
    /// allow it. The state of what is not in force stays.
    pub fn set_policy(&mut self, params: &Params, layers: u16, host_kv_blocks: u32) {
        self.can_move_layers = host_kv_blocks > 0 && layers > MIN_MOVING_LAYERS;
        let rule = params.placement_rule();
        // Plans also admit and pause requests ([`OffloadView::admits_by_plan`]), which needs a host tier but no moving
        // layer.
        let plans = rule == PlacementRule::PerRequest && host_kv_blocks > 0;
        self.rule = if plans || self.can_move_layers { rule } else { PlacementRule::Device };
        self.longest_pause_ns = params.longest_pause_ns();
    }

    /// The longest total pause of a request, nanoseconds. `None`: no request is paused.
    pub fn longest_pause_ns(&self) -> Option<u64> {
        self.longest_pause_ns
    }

    /// Whether layers can be offloaded at all.
    pub fn can_move_layers(&self) -> bool {
        self.can_move_layers
    }

    /// What decides where KV resides.
    pub fn rule(&self) -> PlacementRule {
        self.rule
    }

    /// The buffer for prompts, if prompts are offloaded.
    pub fn prompts_in_force(&self) -> Option<&BufferController> {
        (self.rule == PlacementRule::Prefills).then_some(&self.prompts)
    }

    /// The controller of the layers to offload, if it is in force.
    pub fn expansion_in_force(&mut self) -> Option<&mut Expansion> {
        (self.rule == PlacementRule::Uniform).then_some(&mut self.expansion)
    }

    /// The plans, if they place KV.
    pub fn plans_in_force(&self) -> Option<&PlacementPlans> {
        (self.rule == PlacementRule::PerRequest).then_some(&self.plans)
    }

    /// Begins a boundary; `has_running`: requests run.
    pub fn on_boundary(&mut self, has_running: bool) {
        self.had_running = has_running;
    }

    /// Records the queue head that admission skipped, and whether the next step orders no fetches early; `None` = as
    /// before, and no if a head is given.
    pub fn note_admission(&mut self, head: Option<Option<RequestId>>, skips_early_fetches: Option<bool>) {
        if let Some(head) = head {
            self.plans.set_blocked_head(head);
        }
        if let Some(skips) = skips_early_fetches {
            self.plans.set_skips_early_fetches(skips);
        }
    }

    /// Requests a measurement of the link.
    pub fn request_probe(&mut self, boundary: u64) {
        self.write_back.request_probe(boundary);
    }

    /// Records the objectives that an iteration of the scheduler missed.
    pub fn on_iteration(&mut self, violations: Violations) {
        self.prompts.iteration(violations);
    }

    /// Whether this answers a plan that was requested.
    pub fn expects_plan(&self, answer: &PlanAnswer) -> bool {
        self.plans.expects(answer)
    }

    /// Handles the answer to a requested plan.
    pub fn on_planned(&mut self, answer: PlanAnswer) {
        self.plans.on_answer(answer);
    }

    /// The pauses of the plan in force are made.
    pub fn clear_pauses(&mut self) {
        self.plans.clear_pauses();
    }

    /// Removes a request that waits no longer from the plan.
    pub fn drop_waiter(&mut self, request: RequestId) {
        self.plans.drop_waiter(request);
    }

    /// Forgets the plan, which another policy made.
    pub fn forget_plans(&mut self) {
        self.plans.forget();
    }

    /// The measured time that one layer block takes to the host tier, nanoseconds.
    pub fn layer_block_ns(&self) -> Option<u64> {
        self.write_back.layer_block_ns()
    }

    /// A number that changes with the plans.
    pub fn plans_digest(&self) -> u64 {
        self.plans.digest_word()
    }

    /// A number that changes with the buffer for prompts and with the link.
    pub fn prompts_digest(&self) -> u64 {
        self.prompts.word()
            ^ self.write_back.digest_word().rotate_left(7)
            ^ self.write_back.layer_block_ns().unwrap_or(0) << 20
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
        let rule =
            |policy, layers, host_kv_blocks| Offload::new(&params(policy), layers, host_kv_blocks).rule();
        assert_eq!(rule(PolicyName::OrbitFlow, 4, 8), PlacementRule::PerRequest);
        assert_eq!(rule(PolicyName::OrbitFlow, 4, 0), PlacementRule::Device);
        assert_eq!(rule(PolicyName::Ellm, 3, 8), PlacementRule::Prefills);
        assert_eq!(rule(PolicyName::Ellm, 2, 8), PlacementRule::Device, "two layers share one buffer");
    }

    #[test]
    fn layers_can_move_only_if_one_stays_and_there_is_a_host_tier() {
        let can = |layers, host_kv_blocks| {
            Offload::new(&params(PolicyName::Pie), layers, host_kv_blocks).can_move_layers()
        };
        assert_eq!([can(3, 8), can(2, 8), can(3, 0)], [true, false, false]);
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
