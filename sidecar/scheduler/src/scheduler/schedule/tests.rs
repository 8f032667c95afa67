//! Plans of steps, compared as values.

use sluice_policy::ids::RequestId;
use sluice_policy::reclaim::PolicyName;

use super::super::test_tenant::{NOW, STEP_TOKENS, Tenant};
use super::{Eviction, StepPlan};

impl Tenant {
    /// The plan of the next step, with its batch.
    fn plan(&self) -> StepPlan {
        let mut plan = self.scheduler.plan_step(NOW, None);
        plan.batch = self.scheduler.plan_batch(&plan);
        plan
    }

    fn smaller(&self, plan: &mut StepPlan, activation: bool) -> bool {
        self.scheduler.plan_smaller(NOW, plan, 1, activation)
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
    let mut plan = tenant.plan();
    let tokens = plan.limits.max_tokens;
    assert!(tokens > 1 && tenant.smaller(&mut plan, true));
    assert_eq!(plan.limits.max_tokens, tokens / 2);
    assert_eq!((admitted(&plan), plan.evict.len()), (vec![2], 0));
}

#[test]
fn short_activations_first_give_up_whole_prompts() {
    let mut tenant = Tenant::running(PolicyName::Recompute, &[10]);
    tenant.submit(2, 60);
    let mut plan = tenant.plan();
    (plan.limits.usual_tokens, plan.limits.max_tokens) = (32, 100);
    assert!(tenant.smaller(&mut plan, true));
    assert_eq!(plan.limits.max_tokens, 32);
}

#[test]
fn short_kv_refuses_the_newest_admission_before_it_evicts() {
    let mut tenant = Tenant::running(PolicyName::Recompute, &[10, 10]);
    [3, 4].into_iter().for_each(|id| tenant.submit(id, 10));
    let mut plan = tenant.plan();
    assert_eq!(admitted(&plan), [3, 4]);
    for left in [vec![3], vec![]] {
        assert!(tenant.smaller(&mut plan, false));
        assert_eq!((admitted(&plan), plan.evict.len()), (left, 0));
        assert!(plan.notes.refused_admission);
    }
    assert!(tenant.smaller(&mut plan, false));
    assert_eq!(plan.evict, [Eviction::Preempt(RequestId(2))], "the latest admission");
}

#[test]
fn oldest_request_is_never_evicted() {
    let tenant = Tenant::running(PolicyName::Recompute, &[10]);
    let mut plan = tenant.plan();
    assert!(!tenant.smaller(&mut plan, false), "nothing is left to try");
    assert!(plan.evict.is_empty());
}

#[test]
fn kept_admissions_are_planned_with_fresh_token_limits() {
    let mut tenant = Tenant::running(PolicyName::Recompute, &[10]);
    tenant.submit(2, 20);
    let mut kept = tenant.plan();
    kept.limits.max_tokens = 1;
    tenant.submit(3, 20);
    let plan = tenant.scheduler.plan_step(NOW, Some(kept));
    assert_eq!(admitted(&plan), [2], "as kept");
    assert_eq!(plan.limits.max_tokens, STEP_TOKENS);
}
