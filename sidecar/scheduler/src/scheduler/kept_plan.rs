//! Keeps the admissions of a plan while their memory moves.
//!
//! Memory often moves for one plan over several boundaries. If the plan were made again with the memory that has come so
//! far, it could admit other requests, whose memory would have to move as well. A plan is kept until:
//!
//! - a step runs,
//! - a request comes, ends or changes places,
//! - the planner of placements answers, or its plan no longer admits the requests as it did,
//! - the tenant returns or lends memory,
//! - the policy, the bounds or the order to sleep change.

use sluice_common::hash::fnv1a;
use sluice_policy::ids::Nanos;

use super::Scheduler;
use crate::sequence::Sequence;
use crate::step_plan::{KeptPlan, PlannedAdmission, StepPlan};

impl Scheduler {
    /// Keeps the admissions of a plan that waits for memory. One that offloads a prefill is not kept: it depends on
    /// copies that may begin in the meantime. Nor is one that was made while running requests lacked KV: it may admit
    /// too much.
    pub(super) fn keep_plan(&mut self, plan: &StepPlan) {
        let offloads = plan.admit.iter().any(|one| one.prefill_offloaded);
        self.kept = (!plan.admit.is_empty() && !offloads && !plan.lacked_kv).then(|| KeptPlan {
            admit: plan.admit.clone(),
            sure: plan.limits.sure,
            cache_epoch: plan.cache_epoch,
            stamp: self.plan_stamp(&plan.admit),
            budget_chunks: self.manager.loans().budget_chunks(),
        });
    }

    /// Takes the kept admissions if they are still right. The blocked queue head stays as it was noted.
    pub(super) fn take_kept_plan(&mut self, now: Nanos) -> Option<StepPlan> {
        let kept = self.kept.take()?;
        let fewer_chunks = self.manager.loans().budget_chunks() < kept.budget_chunks;
        if fewer_chunks || kept.stamp != self.plan_stamp(&kept.admit) {
            return None;
        }
        let mut plan = StepPlan { admit: kept.admit, cache_epoch: kept.cache_epoch, ..StepPlan::default() };
        plan.limits.sure = kept.sure;
        self.planner(now).refresh(&mut plan);
        Some(plan)
    }

    /// Returns a fingerprint of the requests, and of what placement plans say of those to admit.
    fn plan_stamp(&self, admit: &[PlannedAdmission]) -> u64 {
        let waiting = |one: &Sequence| one.id().0 << 2 | u64::from(one.kv_suspended) << 1;
        let running = |one: &Sequence| one.id().0 << 2 | 1;
        let requests =
            self.requests.queue.iter().map(waiting).chain(self.requests.running.iter().map(running));
        let offload = self.manager.offload_view();
        let placed = |one: &PlannedAdmission| {
            let layers = offload.admitted_layers(one.id);
            layers.map_or(0, |layers| fnv1a(layers.iter().map(|layer| u64::from(layer.0))))
        };
        fnv1a([self.next_step].into_iter().chain(requests).chain(admit.iter().map(placed)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_tenant::{NOW, Tenant};
    use super::*;
    use crate::event::Event;
    use sluice_policy::ids::RequestId;
    use sluice_policy::reclaim::PolicyName;

    /// Returns a tenant with a step in flight and a waiting request, and a plan that admits it.
    fn waiting() -> (Tenant, StepPlan) {
        let mut tenant = Tenant::running(PolicyName::Recompute, &[10]);
        tenant.submit(2, 20);
        let plan = tenant.scheduler.planner(NOW).plan_admissions();
        assert!(plan.admits(RequestId(2)));
        (tenant, plan)
    }

    #[test]
    fn plan_is_kept_until_a_request_comes_or_ends() {
        let (mut tenant, plan) = waiting();
        tenant.scheduler.keep_plan(&plan);
        assert!(tenant.scheduler.take_kept_plan(NOW).is_some_and(|kept| kept.admits(RequestId(2))));
        assert!(tenant.scheduler.take_kept_plan(NOW).is_none(), "it is taken once");
        tenant.scheduler.keep_plan(&plan);
        tenant.submit(3, 20);
        assert!(tenant.scheduler.take_kept_plan(NOW).is_none(), "another request has come");
        tenant.scheduler.keep_plan(&plan);
        tenant.handle(Event::Cancel(RequestId(2)));
        assert!(tenant.scheduler.take_kept_plan(NOW).is_none(), "its request has ended");
    }

    #[test]
    fn plan_is_dropped_by_a_directive() {
        let (mut tenant, plan) = waiting();
        tenant.scheduler.keep_plan(&plan);
        tenant.handle(Event::Policy(PolicyName::Oneiros));
        assert!(tenant.scheduler.take_kept_plan(NOW).is_none());
    }

    #[test]
    fn plan_that_offloads_a_prefill_is_not_kept() {
        let (mut tenant, mut plan) = waiting();
        plan.admit[0].prefill_offloaded = true;
        tenant.scheduler.keep_plan(&plan);
        assert!(tenant.scheduler.take_kept_plan(NOW).is_none());
    }

    #[test]
    fn plan_made_while_running_requests_lacked_kv_is_not_kept() {
        let (mut tenant, mut plan) = waiting();
        plan.lacked_kv = true;
        tenant.scheduler.keep_plan(&plan);
        assert!(tenant.scheduler.take_kept_plan(NOW).is_none());
    }

    #[test]
    fn plan_is_dropped_when_the_tenant_has_fewer_chunks() {
        let (mut tenant, plan) = waiting();
        tenant.scheduler.keep_plan(&plan);
        let kept = tenant.scheduler.kept.as_mut().expect("a kept plan");
        kept.budget_chunks += 1;
        assert!(tenant.scheduler.take_kept_plan(NOW).is_none());
    }
}
