//! Plans of steps, compared as values.

use sluice_policy::ids::{Nanos, RequestId};
use sluice_policy::params::{Params, Slo};
use sluice_policy::reclaim::PolicyName;

use super::super::commit::{Committed, Refusal};
use super::super::test_tenant::{NOW, STEP_TOKENS, Tenant};
use super::pauses::Overdue;
use crate::step_plan::{Eviction, StepPlan};

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
    let plan = tenant.plan_again(plan, SHORT_ACTIVATIONS);
    assert_eq!(batch(&plan), [(1, 10), (2, STEP_TOKENS / 2 - 10)]);
    assert_eq!((admitted(&plan), plan.evict.len()), (vec![2], 0));
}

#[test]
fn short_activations_first_give_up_whole_prompts() {
    let mut tenant = Tenant::running(PolicyName::Recompute, &[10]);
    tenant.submit(2, 60);
    let mut plan = tenant.plan();
    (plan.limits.usual_tokens, plan.limits.max_tokens) = (32, 100);
    assert_eq!(tenant.plan_again(plan, SHORT_ACTIVATIONS).limits.max_tokens, 32);
}

#[test]
fn short_kv_refuses_the_newest_admission_before_it_evicts() {
    let mut tenant = Tenant::running(PolicyName::Recompute, &[10, 10]);
    [3, 4].into_iter().for_each(|id| tenant.submit(id, 10));
    let before = tenant.scheduler.digest();
    let mut plan = tenant.plan();
    assert_eq!(admitted(&plan), [3, 4]);
    for left in [vec![3], vec![]] {
        plan = tenant.plan_again(plan, SHORT_KV);
        assert_eq!((admitted(&plan), plan.evict.len()), (left, 0));
        assert!(plan.notes.refused_admission);
    }
    plan = tenant.plan_again(plan, SHORT_KV);
    assert_eq!(plan.evict, [Eviction::Preempt(RequestId(2))], "the latest admission");
    assert_eq!(batch(&plan).len(), 1, "the batch is what the eviction leaves");
    assert_eq!(tenant.scheduler.digest(), before, "planning changes nothing");
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
    let plan = tenant.plan_again(tenant.plan(), SHORT_KV);
    assert!(plan.is_starved && plan.evict.is_empty(), "nothing is left to try");
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
    let mut plan = tenant.plan();
    plan.cache_epoch += 1;
    assert_eq!(tenant.scheduler.commit(NOW, &plan), Committed::Refused(Refusal::Changed));
    assert!(!tenant.scheduler.requests.running.contains(RequestId(2)));
    let plan = tenant.plan_again(plan, Refusal::Changed);
    assert_eq!(
        (admitted(&plan), plan.cache_epoch),
        (vec![2], tenant.scheduler.manager.status().cache_epoch())
    );
}

#[test]
fn kept_admissions_are_planned_with_fresh_token_limits() {
    let mut tenant = Tenant::running(PolicyName::Recompute, &[10]);
    tenant.submit(2, 20);
    let mut kept = tenant.plan();
    kept.limits.max_tokens = 1;
    tenant.submit(3, 20);
    let plan = tenant.scheduler.planner(NOW).plan_step(Some(kept));
    assert_eq!(admitted(&plan), [2], "as kept");
    assert_eq!(plan.limits.max_tokens, STEP_TOKENS);
}
