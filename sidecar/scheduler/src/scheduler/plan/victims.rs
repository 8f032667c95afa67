//! Names the options that cost requests tokens, with their prices, and plans the one that the policy chooses.
//!
//! The memory manager knows what remapping own layers frees. The cost of a pause or a preemption depends on the tokens
//! that the client has buffered, which the scheduler knows. The choice is
//! [`sluice_policy::reclaim::CostRule::choose`].

use sluice_policy::cost::price::{Clients, ReclaimCost, ReclaimKind, ReclaimOption};
use sluice_policy::ids::RequestId;
use sluice_policy::memory_manager::StallingRemap;
use sluice_policy::reclaim::PreemptionCandidate;

use super::Planner;
use crate::config::TimeSharing;
use crate::sequence::Sequence;
use crate::step_plan::{Eviction, StepPlan};
use crate::step_request::StepRequest;

impl Planner<'_> {
    /// Plans a remap of own layers, with stalls, if the policy prefers that to a pause or a preemption. Never for
    /// requests that could be admitted later, or for a request that runs alone.
    pub(super) fn plan_stalling_remap(&self, kv_blocks: u32, plan: &mut StepPlan) -> Option<StallingRemap> {
        let requests = self.step_requests(plan);
        let later = plan.admit.iter().any(|one| !self.is_overdue(one.id));
        if plan.limits.keeps_layers || later || requests.len() <= 1 {
            return None;
        }
        let stalling = match self.manager.stalling_remap(kv_blocks)? {
            Ok(stalling) => stalling,
            Err(declined) => {
                plan.notes.memory.stalls_too_long = Some(declined);
                return None;
            }
        };
        let buffered = self.buffered_tokens(&requests);
        let clients = self.clients(&buffered, plan);
        let mut options = self.victim_options(plan, &clients, self.manager.offload_view().can_pause_help());
        if options.is_empty() {
            return None;
        }
        let cost = self.manager.prices(&clients).layers(&stalling);
        let priority = requests.iter().map(|one| one.request.priority).max().unwrap_or(0);
        options.push(ReclaimOption { kind: ReclaimKind::OwnWeights, request: None, priority, cost });
        let chosen = self.manager.params().cost_rule().choose(&options);
        chosen.is_some_and(|option| option.kind == ReclaimKind::OwnWeights).then_some(stalling)
    }

    /// Chooses the request that the policy pauses or preempts for requests that grow.
    pub(super) fn choose_victim(&self, plan: &StepPlan) -> Option<Eviction> {
        self.choose(plan, self.manager.offload_view().can_pause_help())
    }

    /// Chooses the request that the policy pauses or preempts for memory that is owed. A pause helps only if the KV of
    /// the paused request can leave the device.
    pub(super) fn choose_debt_victim(&self) -> Option<Eviction> {
        let offload = self.manager.offload_view();
        self.choose(&StepPlan::default(), offload.can_pause_help() && offload.can_evict_paused())
    }

    fn choose(&self, plan: &StepPlan, may_pause: bool) -> Option<Eviction> {
        let requests = self.step_requests(plan);
        let buffered = self.buffered_tokens(&requests);
        let options = self.victim_options(plan, &self.clients(&buffered, plan), may_pause);
        match self.manager.params().cost_rule().choose(&options) {
            Some(ReclaimOption { kind: ReclaimKind::Pause, request: Some(id), .. }) => {
                Some(Eviction::pause(id))
            }
            _ => self.preemption_victim(&requests).map(Eviction::Preempt),
        }
    }

    /// Returns the options: pausing the first pause victim, and pausing or preempting the preemption victim.
    fn victim_options(&self, plan: &StepPlan, clients: &Clients<'_>, may_pause: bool) -> Vec<ReclaimOption> {
        let requests = self.step_requests(plan);
        let host_places = self.manager.after(&plan.planned).host_capacity_blocks();
        let victim = self.preemption_victim(&requests);
        let pausable = |id: &RequestId| {
            may_pause
                && self.victims(&requests).contains(id)
                && self.manager.kv_of(*id).exclusive_kv_blocks() <= host_places
        };
        let first = self.pause_victim(&requests, host_places).filter(pausable);
        let instead = victim.filter(pausable);
        let prices = self.manager.prices(clients);
        let pause = |one: &Sequence| prices.pause(one.id(), self.buffered_tokens_of(one));
        let again = |one: &Sequence| {
            let buffered = self.buffered_tokens_of(one);
            prices.preemption(one.id(), buffered, one.computed_tokens)
        };
        let pauses = first
            .into_iter()
            .chain(instead)
            .filter_map(|id| self.reclaim_option(id, ReclaimKind::Pause, pause));
        let all = pauses.chain(victim.and_then(|id| self.reclaim_option(id, ReclaimKind::Preempt, again)));
        all.filter(|option| option.cost.freed_bytes > 0).collect()
    }

    /// Returns the request to preempt: the lowest priority, then the highest rank of the policy. Requests at the pause
    /// limit are last, and the oldest request of the step is none.
    pub(super) fn preemption_victim(&self, requests: &[StepRequest<'_>]) -> Option<RequestId> {
        let policy = self.manager.params().policy();
        let key = |one: &&StepRequest<'_>| {
            let admission = one.admission.unwrap_or(u64::MAX);
            let candidate =
                PreemptionCandidate { admission, kv_blocks: self.manager.kv_of(one.id()).kv_blocks() };
            let rank = policy.preemption_rank(&candidate);
            (self.is_immune(one.id()), one.request.priority, core::cmp::Reverse(rank))
        };
        requests.iter().skip(1).filter(|one| !one.is_admitted).min_by_key(key).map(|one| one.id())
    }

    fn reclaim_option(
        &self,
        id: RequestId,
        kind: ReclaimKind,
        price: impl Fn(&Sequence) -> ReclaimCost,
    ) -> Option<ReclaimOption> {
        let one = self.requests.running.get(id)?;
        Some(ReclaimOption { kind, request: Some(id), priority: one.request.priority, cost: price(one) })
    }

    /// Under time or space sharing, peers use spare GPU time and link bandwidth, so a request is assumed to wait.
    fn clients<'a>(&self, buffered_tokens: &'a [u32], plan: &StepPlan) -> Clients<'a> {
        let shared = self.config.sharing != TimeSharing::Exclusive;
        Clients { buffered_tokens, waiting: shared || self.requests.queue.len() > plan.admit.len() }
    }

    fn buffered_tokens(&self, requests: &[StepRequest<'_>]) -> Vec<u32> {
        requests.iter().map(|one| self.buffered_tokens_of(one.sequence())).collect()
    }

    /// Returns the tokens that the client has not read yet.
    fn buffered_tokens_of(&self, one: &Sequence) -> u32 {
        let left_ns = one.buffered_until(self.now).since(self.now);
        left_ns
            .checked_div(self.manager.params().slo.tbt_ns)
            .map_or(0, |tokens| tokens.min(u32::MAX.into()) as u32)
    }
}
