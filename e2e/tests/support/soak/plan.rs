//! The events of a soak: a function of the seed, the number of tenants and the length, so that it can be replayed.

pub mod directive;
pub mod fault;
pub mod gpu;
pub mod sleep;

use std::time::Duration;

use serde_json::{Value, json};

use self::directive::PlannedDirective;
use self::fault::PlannedFault;
use self::gpu::{Gpu, REMAPS, SHARINGS, SleepConfig};
use self::sleep::PlannedSleep;
use super::rng::Rng;
use crate::support::tenant::prompt;

/// Different requests per tenant; each has one right answer.
const REQUESTS: usize = 10;
/// Milliseconds between two requests of a burst.
const BURST_GAP: u64 = 15;
/// Longer than most tenants stay awake without a request, milliseconds.
const LONG_IDLE: (u64, u64) = (2_300, 4_500);

/// Everything that is decided before the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Seed of the plan.
    pub seed: u64,
    /// The GPU and how it is shared.
    pub gpu: Gpu,
    /// Priority of each tenant.
    pub priorities: Vec<u64>,
    /// Requests of each tenant.
    pub questions: Vec<Vec<PlannedRequest>>,
    /// Times at which requests are sent, in order.
    pub visits: Vec<Visit>,
    /// Sleep settings of each tenant.
    pub rests: Vec<SleepConfig>,
    /// Faults, in order.
    pub faults: Vec<PlannedFault>,
    /// Orders to sleep, in order.
    pub sleeps: Vec<PlannedSleep>,
    /// Directives, in order.
    pub directives: Vec<PlannedDirective>,
}

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedRequest {
    /// Prompt number; prompts with the same number have the same prefix.
    pub prompt: u32,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Tokens of the answer.
    pub tokens: usize,
    /// Temperature in percent, and its seed; `None` = greedy.
    pub sampled: Option<(u64, u64)>,
    /// Priority among the requests of its tenant.
    pub priority: u64,
}

/// A request at its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Visit {
    /// After the start.
    pub at: Duration,
    /// Index of the tenant.
    pub tenant: usize,
    /// Index of the request.
    pub question: usize,
    /// Whether the answer is streamed.
    pub streams: bool,
    /// Number of tokens after which the client disconnects.
    pub leaves_after: Option<usize>,
}

impl PlannedRequest {
    fn draw(dice: &mut Rng) -> PlannedRequest {
        let sampled = dice.percent(50);
        PlannedRequest {
            prompt: dice.between(0, 4) as u32,
            prompt_tokens: dice.between(4, 150) as u32,
            tokens: dice.between(4, 80) as usize,
            sampled: sampled.then(|| (dice.between(20, 150), dice.between(0, 1 << 40))),
            priority: dice.between(0, 3),
        }
    }

    /// Returns the request body for the tenant `name`. It asks for tokens and runs to its limit.
    pub fn body(&self, name: &str) -> Value {
        let (temperature, seed) = self.sampled.unwrap_or((0, 0));
        json!({
            // A tenant that took over the port of a killed one refuses another tenant's name.
            "model": name,
            "prompt": prompt(self.prompt, self.prompt_tokens),
            "max_tokens": self.tokens,
            "temperature": temperature as f64 / 100.0,
            "seed": seed,
            "priority": self.priority,
            "logprobs": 0,
            "ignore_eos": true,
        })
    }
}

impl Plan {
    /// The plan of a seed.
    pub fn new(seed: u64, tenants: usize, length: Duration) -> Plan {
        let gpu = Gpu::draw(seed, tenants);
        let mut dice = Rng::of(seed, "priorities");
        let priorities = (0..tenants).map(|_| dice.between(0, 3)).collect();
        let mut dice = Rng::of(seed, "rests");
        let rests = (0..tenants).map(|_| SleepConfig::draw(&mut dice)).collect();
        let mut dice = Rng::of(seed, "questions");
        let mut questions = || (0..REQUESTS).map(|_| PlannedRequest::draw(&mut dice)).collect();
        let questions = (0..tenants).map(|_| questions()).collect();
        let visits = visits(&mut Rng::of(seed, "visits"), tenants, length);
        // Draws depend on the number of tenants, so that runs of one seed cover different events.
        let dice = |what: &str| Rng::of(seed, &format!("{what} of {tenants}"));
        let faults = fault::planned_faults(&mut dice("troubles"), tenants, &gpu, length);
        let sleeps = sleep::planned_sleeps(&mut dice("naps"), tenants, length);
        let directives = directive::planned_directives(&mut dice("decrees"), tenants, length);
        Plan { seed, gpu, priorities, questions, visits, rests, faults, sleeps, directives }
    }

    /// Returns a plan without faults in which memory certainly moves: two tenants that are busy alternately.
    pub fn quiet(seed: u64) -> Plan {
        let mut plan = Plan::new(seed, 2, Duration::from_secs(3));
        plan.gpu = Gpu { link: "2Gi", sharing: SHARINGS[0], remap: REMAPS[0], loan_ms: None, ..plan.gpu };
        plan.priorities = vec![0, 0];
        plan.rests = vec![SleepConfig { host_kv: "2Mi", hibernates_after: 600 }; 2];
        (plan.faults, plan.sleeps, plan.directives) = (Vec::new(), Vec::new(), Vec::new());
        let longest =
            |question: PlannedRequest| PlannedRequest { prompt_tokens: 140, tokens: 60, ..question };
        for questions in &mut plan.questions {
            *questions = questions.drain(..).map(longest).collect();
        }
        let visit = |number: usize| Visit {
            at: Duration::from_millis(number as u64 / 16 * 2_000),
            tenant: number / 16 % 2,
            question: number % REQUESTS,
            streams: true,
            leaves_after: None,
        };
        plan.visits = (0..64).map(visit).collect();
        plan
    }
}

/// Draws bursts: a tenant is idle, then has more work than its own memory holds.
fn visits(dice: &mut Rng, tenants: usize, length: Duration) -> Vec<Visit> {
    let mut visits = Vec::new();
    let length = length.as_millis() as u64;
    for tenant in 0..tenants {
        let mut at = dice.between(0, 2_000);
        while at < length {
            for _ in 0..dice.between(1, 14) {
                visits.push(Visit::draw(dice, tenant, at));
                at += dice.between(0, 2 * BURST_GAP);
            }
            at += match dice.percent(25) {
                true => dice.between(LONG_IDLE.0, LONG_IDLE.1),
                false => dice.between(200, 1_200 * tenants as u64),
            };
        }
    }
    visits.sort_by_key(|visit| visit.at);
    visits
}

impl Visit {
    fn draw(dice: &mut Rng, tenant: usize, at: u64) -> Visit {
        let streams = dice.percent(75);
        let leaves = streams && dice.percent(10);
        Visit {
            at: Duration::from_millis(at),
            tenant,
            question: dice.between(0, REQUESTS as u64) as usize,
            streams,
            leaves_after: leaves.then(|| dice.between(0, 20) as usize),
        }
    }
}
