//! Plans of steps, compared as values.

use sluice_policy::ids::{Nanos, RequestId};
use sluice_policy::memory_manager::{Prepared, StepNeed, SuspendReason};
use sluice_policy::params::{Bounds, Params, Slo};
use sluice_policy::reclaim::PolicyName;

use super::super::commit::{Committed, Refusal};
use super::super::test_tenant::{NOW, STEP_TOKENS, Tenant};
use super::pauses::Overdue;
use crate::event::Event;
use crate::step_plan::{Eviction, PlanLimits, PlanNotes, StepPlan};

/// Memory lacks a KV block.
const SHORT_KV: Refusal = Refusal::Short { missing_kv_blocks: 1, activation: false };
/// Memory lacks activation space.
const SHORT_ACTIVATIONS: Refusal = Refusal::Short { missing_kv_blocks: 1, activation: true };

impl Tenant {
    fn plan(&self) -> StepPlan {
        self.scheduler.planner(NOW).plan_step(None)
    }

    fn plan_again(&self, plan: StepPlan, refusal: Refusal) -> StepPlan {
        self.scheduler.planner(NOW).plan_again(plan, refusal)
    }
}

fn admitted(plan: &StepPlan) -> Vec<u64> {
    plan.admit.iter().map(|one| one.id.0).collect()
}

/// Requests of the batch, with their tokens.
fn batch(plan: &StepPlan) -> Vec<(u64, u32)> {
    plan.batch.scheduled.iter().map(|part| (part.request.0, part.tokens)).collect()
}

#[test]
fn plan_admits_in_order_of_arrival_within_tokens_of_a_step() {
    let mut tenant = Tenant::running(PolicyName::Recompute, &[10]);
    // The step in flight holds request 1; the others wait for the next one.
    [(2, 20), (3, 40), (4, 10)].into_iter().for_each(|(id, tokens)| tenant.submit(id, tokens));
    let before = tenant.scheduler.digest();
    let plan = tenant.plan();
    assert_eq!(admitted(&plan), [2, 3], "both fill the budget of prompt tokens, so 4 waits");
    assert_eq!(tenant.scheduler.digest(), before, "planning changes nothing");
}

#[test]
fn plan_admits_at_most_one_request_for_each_free_row() {
    let mut tenant = Tenant::running(PolicyName::Recompute, &[2, 2, 2]);
    (4..8).for_each(|id| tenant.submit(id, 2));
    assert_eq!(admitted(&tenant.plan()), [4], "three of four rows are taken");
}

#[test]
fn batch_has_each_decode_and_prompt_tokens_up_to_the_limit() {
    let mut tenant = Tenant::running(PolicyName::Recompute, &[10, 10]);
    tenant.finish_step();
    tenant.submit(3, 60);
    let plan = tenant.plan();
    assert_eq!(admitted(&plan), [3]);
    assert_eq!(batch(&plan), [(1, 1), (2, 1), (3, STEP_TOKENS - 2)]);
}

#[test]
fn short_activations_halve_the_tokens_of_the_step_and_evict_nothing() {
    let mut tenant = Tenant::running(PolicyName::Recompute, &[10]);
    tenant.submit(2, 60);
    let plan = tenant.plan();
    assert_eq!(batch(&plan), [(1, 10), (2, STEP_TOKENS - 10)]);
    let smaller = tenant.plan_again(plan.clone(), SHORT_ACTIVATIONS);
    assert_eq!(batch(&smaller), [(1, 10), (2, STEP_TOKENS / 2 - 10)]);
    let limits = PlanLimits { max_tokens: STEP_TOKENS / 2, keeps_layers: true, ..plan.limits.clone() };
    let expected = StepPlan { limits, batch: smaller.batch.clone(), notes: PlanNotes::default(), ..plan };
    assert_eq!(smaller, expected, "nothing else changes");
}

#[test]
fn short_activations_first_give_up_whole_prompts() {
    let mut tenant = Tenant::running(PolicyName::Recompute, &[10]);
    tenant.submit(2, 60);
    let mut plan = tenant.plan();
    (plan.limits.usual_tokens, plan.limits.max_tokens) = (32, 100);
    let expected = PlanLimits { max_tokens: 32, keeps_layers: true, ..plan.limits.clone() };
    assert_eq!(tenant.plan_again(plan, SHORT_ACTIVATIONS).limits, expected);
}

#[test]
fn short_kv_refuses_the_newest_admission_before_it_evicts() {
    let mut tenant = Tenant::running(PolicyName::Recompute, &[10, 10]);
    [3, 4].into_iter().for_each(|id| tenant.submit(id, 10));
    let before = tenant.scheduler.digest();
    let mut plan = tenant.plan();
    assert_eq!(admitted(&plan), [3, 4]);
    let refused = PlanNotes { refused_admission: true, ..PlanNotes::default() };
    for left in [vec![3], vec![]] {
        plan = tenant.plan_again(plan, SHORT_KV);
        assert_eq!((admitted(&plan), &plan.evict[..], &plan.notes), (left, &[][..], &refused));
    }
    plan = tenant.plan_again(plan, SHORT_KV);
    assert_eq!(plan.evict, [Eviction::Preempt(RequestId(2))], "the latest admission");
    assert_eq!(batch(&plan).len(), 1, "the batch is what the eviction leaves");
    assert_eq!(tenant.scheduler.digest(), before, "planning changes nothing");
}

#[test]
fn plan_whose_cache_was_evicted_is_planned_again_without_it() {
    let mut tenant = Tenant::running(PolicyName::Recompute, &[40, 10]);
    tenant.handle(Event::Cancel(RequestId(1)));
    // The same prompt: the KV of the cancelled request is its cache.
    tenant.submit_as(3, 1, 40);
    tenant.retire_step();
    let plan = tenant.plan();
    assert_eq!(plan.cached_kv_blocks(RequestId(3)), Some(2));
    let manager = &mut tenant.scheduler.manager;
    let need = StepNeed { kv_blocks: vec![(RequestId(2), 1)], ..StepNeed::default() };
    while manager.status().cache_epoch() == plan.cache_epoch {
        assert_eq!(manager.prepare(NOW, &need, &mut Vec::new()), Prepared::Ready, "free memory goes first");
    }
    let again = tenant.plan_again(plan, Refusal::Changed);
    assert_eq!((admitted(&again), again.cached_kv_blocks(RequestId(3))), (vec![3], Some(1)));
}

#[test]
fn lowest_priority_is_preempted_first_and_among_equals_the_latest_admission() {
    let mut tenant = Tenant::running(PolicyName::Recompute, &[10, 10, 10]);
    let preempted = |tenant: &Tenant| tenant.plan_again(tenant.plan(), SHORT_KV).evict;
    assert_eq!(preempted(&tenant), [Eviction::Preempt(RequestId(3))]);
    tenant.scheduler.requests.running.get_mut(RequestId(3)).expect("it runs").request.priority = 1;
    assert_eq!(preempted(&tenant), [Eviction::Preempt(RequestId(2))]);
}

#[test]
fn policy_with_host_memory_pauses_the_request_with_the_most_kv() {
    let params = Params { policy: PolicyName::OrbitFlow, host_kv_bytes: 1 << 20, ..Params::default() };
    let tenant = Tenant::with(params).run(&[10, 60, 10]);
    let plan = tenant.plan_again(tenant.plan(), SHORT_KV);
    assert_eq!(plan.evict, [Eviction::pause(RequestId(2))]);
    assert!(batch(&plan).iter().all(|(id, _)| *id != 2));
}

#[test]
fn oldest_request_is_never_evicted() {
    let tenant = Tenant::running(PolicyName::Recompute, &[10]);
    let plan = tenant.plan();
    let limits = PlanLimits { has_made_room: false, ..plan.limits.clone() };
    let expected = StepPlan { is_starved: true, notes: PlanNotes::default(), limits, ..plan.clone() };
    assert_eq!(tenant.plan_again(plan, SHORT_KV), expected, "nothing is left to try");
}

#[test]
fn request_at_the_pause_limit_goes_first_and_gets_a_row() {
    let params = Params {
        policy: PolicyName::OrbitFlow,
        host_kv_bytes: 1 << 20,
        pause_bound_ns: 100,
        ..Params::default()
    };
    let mut tenant = Tenant::with(params).run(&[10, 10, 60, 10]);
    tenant.scheduler.evict(NOW, &Eviction::Preempt(RequestId(2)));
    tenant.scheduler.evict(NOW, &Eviction::pause(RequestId(4)));
    let overdue = |tenant: &Tenant, at| tenant.scheduler.planner(Nanos(at)).plan_overdue();
    assert_eq!(overdue(&tenant, 99), None, "its pause may go on");
    let expected = Overdue { first: Some(RequestId(4)), evict: None };
    assert_eq!(overdue(&tenant, 100), Some(expected), "2 waits before it, and rows are free");
    tenant.scheduler.requests.running.hide_free_rows();
    let evict = Some(Eviction::pause(RequestId(3)));
    assert_eq!(overdue(&tenant, 100), Some(Overdue { first: Some(RequestId(4)), evict }));
}

#[test]
fn request_that_is_due_first_gets_a_row_only_if_none_is_free() {
    let params = Params {
        policy: PolicyName::Unified,
        host_kv_bytes: 1 << 20,
        layer_compute_ns: 1000,
        slo: Slo { ttft_ns: 1000, tbt_ns: 1000, allowed_miss_permille: 10 },
        ..Params::default()
    };
    let mut tenant = Tenant::with(params).run(&[10, 10]);
    // Their clients have tokens to read for a long time.
    for sequence in tenant.scheduler.requests.running.iter_mut() {
        sequence.read_until = Some(Nanos(1 << 40));
    }
    tenant.finish_step();
    tenant.submit(3, 10);
    assert_eq!(tenant.scheduler.planner(NOW).plan_row(), [], "two rows are free");
    tenant.scheduler.requests.running.hide_free_rows();
    assert_eq!(tenant.scheduler.planner(NOW).plan_row(), [Eviction::pause(RequestId(2))]);
}

#[test]
fn commit_evicts_then_runs_what_is_left() {
    let mut tenant = Tenant::running(PolicyName::Recompute, &[10, 10]);
    tenant.retire_step();
    let plan = tenant.plan_again(tenant.plan(), SHORT_KV);
    assert_eq!(tenant.scheduler.commit(NOW, &plan), Committed::Done);
    assert!(!tenant.scheduler.requests.running.contains(RequestId(2)));
    let step = tenant.scheduler.in_flight.as_ref().expect("a step");
    assert_eq!(step.batch, plan.batch);
}

#[test]
fn plan_for_another_cache_is_refused_and_admits_nothing() {
    let mut tenant = Tenant::running(PolicyName::Recompute, &[10]);
    tenant.submit(2, 20);
    let fresh = StepPlan { notes: PlanNotes::default(), ..tenant.plan() };
    let stale = StepPlan { cache_epoch: fresh.cache_epoch + 1, ..fresh.clone() };
    assert_eq!(tenant.scheduler.commit(NOW, &stale), Committed::Refused(Refusal::Changed));
    assert!(!tenant.scheduler.requests.running.contains(RequestId(2)));
    assert_eq!(admitted(&fresh), [2]);
    assert_eq!(tenant.plan_again(stale, Refusal::Changed), fresh);
}

#[test]
fn kept_admissions_are_planned_with_fresh_token_limits() {
    let mut tenant = Tenant::running(PolicyName::Recompute, &[10]);
    tenant.submit(2, 20);
    let kept = tenant.plan();
    let limits = PlanLimits { max_tokens: 1, usual_tokens: 1, ..kept.limits.clone() };
    tenant.submit(3, 20);
    let limited = StepPlan { limits, ..kept.clone() };
    let plan = tenant.scheduler.planner(NOW).plan_step(Some(limited));
    assert_eq!((plan.limits.max_tokens, admitted(&plan)), (STEP_TOKENS, vec![2]), "3 came later");
    assert_eq!(plan, kept);
}

/// A tenant whose share is cut to its floor, which has KV for one of its requests. It owes memory to the device.
fn indebted(params: Params, prompts: &[usize]) -> Tenant {
    let mut tenant = Tenant::guaranteed(params, 256 << 10).run(prompts);
    tenant.retire_step();
    let loans = tenant.scheduler.manager.loans();
    let bounds = Bounds { share_chunks: loans.floor_chunks(), remap_cap_permille: 0 };
    tenant.scheduler.manager.set_bounds(bounds).expect("the floor is enough");
    tenant.settle_memory();
    tenant
}

#[test]
fn debt_takes_running_requests_then_layers_then_kv_of_waiting_requests() {
    let params = Params { policy: PolicyName::Recompute, ..Params::default() };
    let mut tenant = indebted(params, &[60, 60, 60]);
    assert!(tenant.scheduler.manager.loans().debt_lacks_room(), "its requests hold the memory");
    let debt = |tenant: &Tenant, asked| tenant.scheduler.planner(NOW).plan_debt(asked);
    tenant.scheduler.evict(NOW, &Eviction::pause(RequestId(2)));
    assert_eq!(debt(&tenant, false), Some(Eviction::Preempt(RequestId(3))), "not the oldest");
    tenant.scheduler.evict(NOW, &Eviction::Preempt(RequestId(3)));
    assert_eq!(debt(&tenant, false), Some(Eviction::ReclaimLayers));
    assert_eq!(debt(&tenant, true), Some(Eviction::DropSuspended(RequestId(2))));
    tenant.scheduler.evict(NOW, &Eviction::DropSuspended(RequestId(2)));
    assert_eq!(debt(&tenant, true), None, "nothing is left");
}

#[test]
fn debt_drops_no_waiting_request_without_kv_on_the_device() {
    let params = Params { policy: PolicyName::Recompute, ..Params::default() };
    let mut tenant = indebted(params, &[60, 60, 60]);
    tenant.scheduler.evict_all(NOW, &[Eviction::pause(RequestId(2)), Eviction::Preempt(RequestId(3))]);
    // The last one waits as if its KV were in the host tier.
    let mut last = tenant.scheduler.requests.queue.remove(RequestId(3)).expect("it waits");
    last.kv_suspended = true;
    tenant.scheduler.requests.queue.push(last);
    let debt = tenant.scheduler.planner(NOW).plan_debt(true);
    assert_eq!(debt, Some(Eviction::DropSuspended(RequestId(2))));
}

#[test]
fn each_boundary_evicts_only_until_memory_can_go() {
    let params = Params { policy: PolicyName::Recompute, ..Params::default() };
    let mut tenant = indebted(params, &[60, 60, 60]);
    for left in [vec![1, 2], vec![1], vec![1]] {
        tenant.scheduler.evict_for_debt(NOW);
        assert!(!tenant.scheduler.manager.loans().debt_lacks_room());
        let running = tenant.scheduler.requests.running.iter().map(|one| one.id().0);
        assert_eq!(running.collect::<Vec<_>>(), left);
        tenant.settle_memory();
    }
    assert_eq!(tenant.scheduler.planner(NOW).plan_debt(false), None, "the debt is paid");
}

#[test]
fn request_whose_offloaded_prompt_is_computed_waits() {
    let mut tenant = Tenant::running(PolicyName::Recompute, &[10, 10]);
    assert_eq!(tenant.scheduler.planner(NOW).plan_offloaded(), []);
    let computed = tenant.scheduler.requests.running.get_mut(RequestId(2)).expect("it runs");
    computed.waiting_offloaded = true;
    let waits = Eviction::Suspend(RequestId(2), SuspendReason::PrefillOffloaded);
    assert_eq!(tenant.scheduler.planner(NOW).plan_offloaded(), [waits]);
}

#[test]
fn tenant_that_falls_asleep_suspends_all_requests_and_drops_kv_without_a_place_in_the_host_tier() {
    let mut tenant = Tenant::running(PolicyName::Recompute, &[60, 60]);
    assert_eq!(tenant.scheduler.planner(NOW).plan_sleep(), [], "it is awake");
    tenant.retire_step();
    tenant.scheduler.manager.sleep(true);
    let asleep = |id| Eviction::Suspend(RequestId(id), SuspendReason::Sleep);
    let planned = tenant.scheduler.planner(NOW).plan_sleep();
    assert_eq!(planned, [asleep(1), asleep(2)]);
    tenant.scheduler.evict_all(NOW, &planned);
    tenant.scheduler.manager.boundary(NOW, &mut Vec::new());
    let debt = tenant.scheduler.planner(NOW).plan_debt(true);
    assert_eq!(debt, Some(Eviction::DropSuspended(RequestId(2))), "the last that waits");
}
