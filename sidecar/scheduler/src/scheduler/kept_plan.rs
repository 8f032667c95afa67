//! Keeps the admissions of a plan while their memory moves.
//!
//! Memory often moves for one plan over several boundaries. If the plan were made again with the memory that has come
//! so far, it could admit other requests, whose memory would have to move as well. A plan is kept until:
//!
//! - a step runs,
//! - a request comes, ends or changes places,
//! - the placement planner answers, or its plan no longer admits the requests as it did,
//! - the tenant returns or lends memory,
//! - the policy, the bounds or the order to sleep change.
//!
//! A change of the prefix cache does not end it: the cached prefixes of its requests are found again.

use sluice_common::hash::fnv1a;
use sluice_policy::ids::Nanos;

use super::Scheduler;
use crate::event::Event;
use crate::sequence::Sequence;
use crate::step_plan::{KeptPlan, PlannedAdmission, StepPlan};

impl Scheduler {
    /// Ends the kept plan if the event alone does so.
    pub(super) fn end_kept_plan(&mut self, event: &Event) {
        if matches!(event, Event::Sleep(_) | Event::Policy(_) | Event::Bounds(_) | Event::Plan(_)) {
            self.kept = None;
        }
    }

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
    use super::super::commit::Committed;
    use super::super::test_tenant::{NOW, Tenant};
    use super::*;
    use crate::event::{Finish, Request, Sleep};
    use crate::step_plan::Eviction;
    use sluice_policy::ids::RequestId;
    use sluice_policy::memory_manager::{MemoryNotes, RunningRequest, SchedulerView, WaitingRequest};
    use sluice_policy::params::{Bounds, Params};
    use sluice_policy::placement_planner::request::{PlanAnswer, PlanResult};
    use sluice_policy::reclaim::PolicyName;

    /// Returns a tenant with a step in flight and a waiting request, and a plan that admits it.
    fn waiting() -> (Tenant, StepPlan) {
        let mut tenant = Tenant::running(PolicyName::Recompute, &[10]);
        tenant.submit(2, 20);
        let plan = tenant.scheduler.planner(NOW).plan_admissions();
        assert!(plan.admits(RequestId(2)));
        (tenant, plan)
    }

    /// Returns that tenant, which keeps the plan.
    fn kept() -> Tenant {
        let (mut tenant, plan) = waiting();
        tenant.scheduler.keep_plan(&plan);
        tenant
    }

    fn taken(tenant: &mut Tenant) -> Option<StepPlan> {
        tenant.scheduler.take_kept_plan(NOW)
    }

    #[test]
    fn kept_admissions_are_taken_once_as_they_were_planned() {
        let (mut tenant, plan) = waiting();
        tenant.scheduler.keep_plan(&plan);
        // Notes and the batch belong to the boundary that planned them.
        let StepPlan { admit, planned, limits, cache_epoch, .. } = plan;
        let expected = StepPlan { admit, planned, limits, cache_epoch, ..StepPlan::default() };
        assert_eq!(taken(&mut tenant), Some(expected));
        assert_eq!(taken(&mut tenant), None);
    }

    #[test]
    fn directive_order_to_sleep_or_answer_of_the_planner_ends_the_plan() {
        let events = [
            Event::Policy(PolicyName::Oneiros),
            Event::Bounds(Bounds { share_chunks: 64, remap_cap_permille: 500 }),
            Event::Sleep(Sleep::Ordered),
            Event::Sleep(Sleep::WakeUp),
            Event::Plan(PlanAnswer { id: 1, result: None }),
        ];
        for event in events {
            let mut tenant = kept();
            tenant.handle(event.clone());
            assert_eq!(taken(&mut tenant), None, "{event:?}");
        }
    }

    #[test]
    fn event_that_changes_nothing_leaves_the_plan() {
        for event in [Event::Tick, Event::Cancel(RequestId(9))] {
            let mut tenant = kept();
            tenant.handle(event.clone());
            assert!(taken(&mut tenant).is_some_and(|plan| plan.admits(RequestId(2))), "{event:?}");
        }
    }

    #[test]
    fn plan_ends_when_a_request_comes() {
        let mut tenant = kept();
        tenant.submit(3, 20);
        assert_eq!(taken(&mut tenant), None);
    }

    #[test]
    fn plan_ends_when_a_request_of_it_or_another_one_is_cancelled() {
        for cancelled in [2, 3] {
            let (mut tenant, plan) = waiting();
            tenant.submit(3, 20);
            tenant.scheduler.keep_plan(&plan);
            tenant.handle(Event::Cancel(RequestId(cancelled)));
            assert_eq!(taken(&mut tenant), None, "{cancelled}");
        }
    }

    #[test]
    fn plan_ends_when_a_running_request_ends() {
        let mut tenant = kept();
        tenant.scheduler.end(RequestId(1), Finish::Length);
        assert_eq!(taken(&mut tenant), None);
    }

    #[test]
    fn plan_ends_when_a_running_request_waits() {
        let mut tenant = kept();
        let pause = Eviction::pause(RequestId(1));
        assert!(tenant.scheduler.evict(NOW, &pause));
        assert_eq!(taken(&mut tenant), None);
    }

    #[test]
    fn plan_ends_when_a_waiting_request_loses_its_kv() {
        let (mut tenant, plan) = waiting();
        tenant.scheduler.evict(NOW, &Eviction::pause(RequestId(1)));
        tenant.scheduler.keep_plan(&plan);
        assert!(tenant.scheduler.evict(NOW, &Eviction::DropSuspended(RequestId(1))));
        assert_eq!(taken(&mut tenant), None);
    }

    #[test]
    fn step_that_begins_ends_the_plan() {
        let (mut tenant, plan) = waiting();
        tenant.retire_step();
        tenant.scheduler.keep_plan(&plan);
        let step = StepPlan { admit: Vec::new(), ..tenant.scheduler.planner(NOW).plan_step(None) };
        let batch = step.batch.without(|id| id == RequestId(2));
        assert_eq!(tenant.scheduler.commit(NOW, &StepPlan { batch, ..step }), Committed::Done);
        assert!(tenant.scheduler.in_flight.is_some(), "a step without the request began");
        assert_eq!(tenant.scheduler.kept, None);
    }

    #[test]
    fn plan_of_an_earlier_step_is_not_taken() {
        let mut tenant = kept();
        tenant.scheduler.next_step += 1;
        assert_eq!(taken(&mut tenant), None);
    }

    #[test]
    fn plan_ends_when_the_tenant_has_fewer_chunks_not_when_it_has_more() {
        for (more, is_taken) in [(1, false), (0, true), (-1, true)] {
            let mut tenant = kept();
            let kept = tenant.scheduler.kept.as_mut().expect("a kept plan");
            kept.budget_chunks = kept.budget_chunks.saturating_add_signed(more);
            assert_eq!(taken(&mut tenant).is_some(), is_taken, "{more} more chunks when it was made");
        }
    }

    #[test]
    fn prefixes_are_found_again_when_the_cache_has_changed() {
        let mut tenant = Tenant::running(PolicyName::Recompute, &[40]);
        // The same prompt as that of request 1, whose KV is not written yet.
        let twin = Request { prompt: vec![1; 40], max_tokens: 64, salt: 1, ..Request::of_test(2, 40) };
        tenant.handle(Event::Submit(twin));
        let plan = tenant.scheduler.planner(NOW).plan_admissions();
        assert_eq!(plan.cached_kv_blocks(RequestId(2)), Some(0));
        tenant.retire_step();
        let stale = StepPlan { cache_epoch: plan.cache_epoch + 1, ..plan };
        tenant.scheduler.keep_plan(&stale);
        let fresh = taken(&mut tenant).expect("the kept plan");
        assert_eq!(fresh.cached_kv_blocks(RequestId(2)), Some(2), "two full blocks of 40 tokens");
        assert_eq!(fresh.cache_epoch, tenant.scheduler.manager.status().cache_epoch());
    }

    /// A placement plan comes into force that admits this number of the waiting requests.
    fn place(tenant: &mut Tenant, admitted: u16) {
        let running = RunningRequest { request: RequestId(1), kv_blocks: 1, deposit: 0, immune: true };
        let waiting = WaitingRequest { request: RequestId(2), kv_blocks: 2, deposit: 0, fresh: true };
        let manager = &mut tenant.scheduler.manager;
        // A plan holds while its first waiting request is not admitted.
        manager.note(&MemoryNotes { blocked_head: Some(Some(RequestId(2))), ..MemoryNotes::default() });
        let asked = manager.ask_plan(&SchedulerView { running: vec![running], waiting: vec![waiting] });
        let chosen = vec![0; 1 + usize::from(admitted)];
        let result = PlanResult { paused: 0, admitted, chosen, step_ns: 1, bound_ns: 1 };
        manager.planned(PlanAnswer { id: asked.id, result: Some(result) });
        manager.boundary(NOW, &mut Vec::new());
    }

    #[test]
    fn plan_ends_when_the_placement_plan_no_longer_admits_its_request() {
        let params = Params { policy: PolicyName::OrbitFlow, host_kv_bytes: 1 << 20, ..Params::default() };
        let mut tenant = Tenant::with(params).run(&[10]);
        tenant.retire_step();
        tenant.scheduler.requests.queue.push(Sequence::new(Request::of_test(2, 20), NOW));
        place(&mut tenant, 1);
        let layers = tenant.scheduler.manager.offload_view().admitted_layers(RequestId(2));
        assert_eq!(layers, Some(&[][..]), "all of its KV on the device");
        let plan = tenant.scheduler.planner(NOW).plan_admissions();
        tenant.scheduler.keep_plan(&plan);
        assert!(taken(&mut tenant).is_some_and(|plan| plan.admits(RequestId(2))));
        tenant.scheduler.keep_plan(&plan);
        place(&mut tenant, 0);
        assert_eq!(taken(&mut tenant), None);
    }

    #[test]
    fn plan_that_offloads_a_prefill_is_not_kept() {
        let (mut tenant, mut plan) = waiting();
        plan.admit[0].prefill_offloaded = true;
        tenant.scheduler.keep_plan(&plan);
        assert_eq!(tenant.scheduler.kept, None);
    }

    #[test]
    fn plan_made_while_running_requests_lacked_kv_is_not_kept() {
        let (mut tenant, mut plan) = waiting();
        plan.lacked_kv = true;
        tenant.scheduler.keep_plan(&plan);
        assert_eq!(tenant.scheduler.kept, None);
    }

    #[test]
    fn plan_without_admissions_is_not_kept() {
        let (mut tenant, mut plan) = waiting();
        plan.admit.clear();
        tenant.scheduler.keep_plan(&plan);
        assert_eq!(tenant.scheduler.kept, None);
    }
}
