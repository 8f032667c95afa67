//! Plans of steps, compared as values. Memory ends each action at once.

use sluice_policy::event::{Completion, Outcome};
use sluice_policy::geometry::{ActivationCost, Geometry};
use sluice_policy::ids::{Nanos, RequestId};
use sluice_policy::memory_manager::MemoryManager;
use sluice_policy::params::Params;
use sluice_policy::reclaim::PolicyName;
use sluice_ports::compute::{ComputeEvent, EngineHello, Sampled, Step, StepDone};

use super::{Eviction, Scheduler, StepPlan};
use crate::config::Config;
use crate::event::{Command, Event, Request};

const NOW: Nanos = Nanos(0);
const LAYERS: usize = 4;
/// Tokens of a step in these tests.
const STEP_TOKENS: u32 = 48;

/// A loaded tenant with an engine, and the step that the engine computes.
struct Tenant {
    scheduler: Scheduler,
    step: Option<Step>,
}

impl Tenant {
    fn new(policy: PolicyName) -> Tenant {
        let geometry = Geometry {
            chunk_bytes: 64 << 10,
            capacity_chunks: 64,
            global_bytes: 64 << 10,
            slab_bytes: vec![256 << 10; LAYERS],
            layer_block_bytes: 8 << 10,
            activation: ActivationCost::default(),
            staging_chunks: 1,
        };
        let params =
            Params { policy, max_model_tokens: 128, guaranteed_kv_bytes: 1 << 20, ..Params::default() };
        let manager = MemoryManager::new(params, geometry).expect("a tenant that fits");
        let config = Config {
            max_model_tokens: 128,
            max_step_tokens: STEP_TOKENS,
            max_sequences: 4,
            ..Config::default()
        };
        let mut tenant = Tenant { scheduler: Scheduler::new(config, manager), step: None };
        tenant.scheduler.start(NOW);
        tenant.settle();
        tenant.handle(Event::Compute(ComputeEvent::Attached(EngineHello::default())));
        tenant
    }

    /// A tenant whose requests of these lengths run, and whose step has finished.
    fn running(policy: PolicyName, prompts: &[usize]) -> Tenant {
        let mut tenant = Tenant::new(policy);
        for (id, tokens) in (1..).zip(prompts) {
            tenant.submit(id, *tokens);
            while tenant.scheduler.running_request(RequestId(id)).is_none() {
                tenant.finish_step();
            }
        }
        tenant
    }

    fn handle(&mut self, event: Event) {
        self.scheduler.handle(NOW, event);
        self.settle();
    }

    fn settle(&mut self) {
        loop {
            let commands = self.scheduler.take_commands();
            if commands.is_empty() {
                return;
            }
            for command in commands {
                match command {
                    Command::Memory(action) => {
                        let outcome = Outcome::Done { bytes: 1, duration_ns: 1 };
                        let done = Completion { id: action.id, outcome };
                        self.scheduler.handle(NOW, Event::Memory(done));
                    }
                    Command::Compute(step) => self.step = Some(step),
                    other => panic!("these tests have no peers and no placement plans: {other:?}"),
                }
            }
        }
    }

    fn submit(&mut self, id: u64, tokens: usize) {
        let (id, sampling) = (RequestId(id), std::sync::Arc::default());
        // Equal prompts of one salt would share their KV.
        let request = Request {
            id,
            prompt: vec![id.0 as u32; tokens],
            max_tokens: 64,
            sampling,
            priority: 0,
            salt: id.0,
            paced: true,
        };
        self.handle(Event::Submit(request));
    }

    fn finish_step(&mut self) {
        let step = self.step.take().expect("a step in flight");
        let sampled = step.sequences.iter().filter(|one| one.sample.is_some());
        let done = StepDone {
            id: step.id,
            attempt: step.attempt,
            sampled: sampled.map(|one| Sampled { row: one.row, token: 5, logprobs: None }).collect(),
            layer_ns: vec![1000; LAYERS],
            stall_ns: vec![0; LAYERS],
            kv_stall_ns: vec![0; LAYERS],
            total_ns: 4000,
            ..StepDone::default()
        };
        self.handle(Event::Compute(ComputeEvent::Done(done)));
    }

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
