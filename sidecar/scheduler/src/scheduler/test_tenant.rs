//! A loaded tenant for unit tests of the scheduler. Memory ends each action at once.

use sluice_policy::action::Action;
use sluice_policy::event::{Completion, Outcome};
use sluice_policy::geometry::{ActivationCost, Geometry};
use sluice_policy::ids::{Nanos, RequestId};
use sluice_policy::memory_manager::MemoryManager;
use sluice_policy::params::Params;
use sluice_policy::reclaim::PolicyName;
use sluice_ports::compute::{ComputeEvent, EngineHello, Sampled, Step, StepDone};

use super::Scheduler;
use crate::config::Config;
use crate::event::{Command, Event, Request};

/// The time of each event in these tests.
pub const NOW: Nanos = Nanos(0);
const LAYERS: usize = 4;
/// Tokens of a step in these tests.
pub const STEP_TOKENS: u32 = 48;

/// A loaded tenant with an engine, and the step that the engine computes.
pub struct Tenant {
    pub scheduler: Scheduler,
    step: Option<Step>,
}

impl Tenant {
    pub fn new(policy: PolicyName) -> Tenant {
        Tenant::with(Params { policy, ..Params::default() })
    }

    /// A tenant with these tunables. Its floor has KV for all requests that can run.
    pub fn with(params: Params) -> Tenant {
        Tenant::guaranteed(params, 1 << 20)
    }

    /// A tenant with these tunables, and a floor with these bytes of KV.
    pub fn guaranteed(params: Params, guaranteed_kv_bytes: u64) -> Tenant {
        let geometry = Geometry {
            chunk_bytes: 64 << 10,
            capacity_chunks: 64,
            global_bytes: 64 << 10,
            slab_bytes: vec![256 << 10; LAYERS],
            layer_block_bytes: 8 << 10,
            activation: ActivationCost::default(),
            staging_chunks: 1,
        };
        let params = Params { max_model_tokens: 128, guaranteed_kv_bytes, ..params };
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
    pub fn running(policy: PolicyName, prompts: &[usize]) -> Tenant {
        Tenant::new(policy).run(prompts)
    }

    /// Runs requests of these lengths, with ids from 1, until their last step has finished.
    pub fn run(self, prompts: &[usize]) -> Tenant {
        let mut tenant = self;
        for (id, tokens) in (1..).zip(prompts) {
            tenant.submit(id, *tokens);
            while tenant.scheduler.requests.running.get(RequestId(id)).is_none() {
                tenant.finish_step();
            }
        }
        tenant
    }

    pub fn handle(&mut self, event: Event) {
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
                    Command::Memory(action) => self.scheduler.handle(NOW, Event::Memory(done(&action))),
                    Command::Compute(step) => self.step = Some(step),
                    other => panic!("these tests have no peers and no placement plans: {other:?}"),
                }
            }
        }
    }

    /// Boundaries of memory alone, until one of them orders nothing. The scheduler plans and evicts nothing.
    pub fn settle_memory(&mut self) {
        loop {
            let mut actions = core::mem::take(&mut self.scheduler.actions);
            self.scheduler.manager.boundary(NOW, &mut actions);
            if actions.is_empty() {
                return;
            }
            while let Some(action) = actions.pop() {
                self.scheduler.manager.complete(NOW, &done(&action), &mut actions);
            }
        }
    }

    /// Submits a request whose prompt no other has.
    pub fn submit(&mut self, id: u64, tokens: usize) {
        self.submit_as(id, id, tokens);
    }

    /// Submits a request that shares its KV with those of the same `prompt`.
    pub fn submit_as(&mut self, id: u64, prompt: u64, tokens: usize) {
        let request = Request {
            prompt: vec![prompt as u32; tokens],
            max_tokens: 64,
            salt: prompt,
            ..Request::of_test(id, tokens)
        };
        self.handle(Event::Submit(request));
    }

    /// Ends the step in flight; the next one begins.
    pub fn finish_step(&mut self) {
        let done = self.step_done();
        self.handle(Event::Compute(ComputeEvent::Done(done)));
    }

    /// Ends the step in flight; no other one begins.
    pub fn retire_step(&mut self) {
        let done = self.step_done();
        self.scheduler.retire(NOW, done);
    }

    fn step_done(&mut self) -> StepDone {
        let step = self.step.take().expect("a step in flight");
        let sampled = step.sequences.iter().filter(|one| one.sample.is_some());
        StepDone {
            id: step.id,
            attempt: step.attempt,
            sampled: sampled.map(|one| Sampled { row: one.row, token: 5, logprobs: None }).collect(),
            layer_ns: vec![1000; LAYERS],
            stall_ns: vec![0; LAYERS],
            kv_stall_ns: vec![0; LAYERS],
            total_ns: 4000,
            ..StepDone::default()
        }
    }
}

fn done(action: &Action) -> Completion {
    Completion { id: action.id, outcome: Outcome::Done { bytes: 1, duration_ns: 1 } }
}
