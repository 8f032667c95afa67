//! What will happen in a soak: a function of the seed, the number of tenants and the length, so that it can be replayed.

use std::time::Duration;

use serde_json::{Value, json};

use super::dice::Dice;
use crate::support::tenant::prompt;

/// Requests of one tenant that differ; each has one right answer.
const QUESTIONS: usize = 10;
/// Milliseconds between two requests that come at once.
const BURST_GAP: u64 = 15;
/// After the start, before the first trouble, milliseconds.
const CALM: u64 = 1_000;

/// Everything that is decided before the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Where it comes from.
    pub seed: u64,
    /// The GPU and how it is shared.
    pub gpu: Gpu,
    /// Priority of each tenant.
    pub priorities: Vec<u64>,
    /// For each tenant, what it is asked.
    pub questions: Vec<Vec<Question>>,
    /// Who asks what and when, in order.
    pub visits: Vec<Visit>,
    /// What happens to whom and when, in order.
    pub troubles: Vec<Trouble>,
}

/// A GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// Options of each tenant's model, without a seed.
    pub model: &'static str,
    /// Device memory, MiB.
    pub memory_mib: u64,
    /// Bandwidth of the link.
    pub link: &'static str,
    /// How time is shared.
    pub sharing: &'static str,
    /// Victims.
    pub remap: &'static str,
}

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// Prompts of one seed begin alike.
    pub prompt: u32,
    /// Its tokens.
    pub prompt_tokens: u32,
    /// Tokens of the answer.
    pub tokens: usize,
    /// Temperature in percent, and its seed; `None` = greedy.
    pub sampled: Option<(u64, u64)>,
    /// Among the requests of its tenant.
    pub priority: u64,
}

/// A question is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Visit {
    /// After the start.
    pub at: Duration,
    /// Whom.
    pub tenant: usize,
    /// Which of its questions.
    pub question: usize,
    /// Whether the answer comes token by token.
    pub streams: bool,
    /// The client goes away after so many tokens.
    pub leaves_after: Option<usize>,
}

/// Who is hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The sidecar.
    Sidecar,
    /// The process that computes.
    Engine,
}

/// Something bad happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// After the start.
    pub at: Duration,
    /// To whom.
    pub tenant: usize,
    /// To which of its processes.
    pub side: Side,
    /// It stands still so long; `None` = it is killed.
    pub stops_for: Option<Duration>,
}

/// 21.3 MiB of weights; a sequence of 256 tokens has 2 MiB of KV.
const LARGE: &str = "--layers 16 --hidden 256 --heads 8 --kv-heads 4 --intermediate 640";
/// 2.9 MiB of weights; a sequence of 256 tokens has 0.5 MiB of KV.
const SMALL: &str = "--layers 8 --hidden 128 --heads 4 --kv-heads 2 --intermediate 320";

const SHARINGS: [&str; 4] = [
    "{mode: Temporal, temporal: {order: RoundRobin}}",
    "{mode: Temporal, temporal: {order: RoundRobin, minQuantumMilliseconds: 1, maxQuantumMilliseconds: 10}}",
    "{mode: Temporal, temporal: {order: Priority}}",
    "{mode: Spatial}",
];

const REMAPS: [&str; 6] = [
    "{victim: MostRecentlyUsed, minResidenceMilliseconds: 0}",
    "{victim: MostRecentlyUsed, minResidenceMilliseconds: 200}",
    "{victim: LeastRecentlyUsed, minResidenceMilliseconds: 0}",
    "{victim: LeastRecentlyUsed, minResidenceMilliseconds: 50}",
    "{victim: FixedOrder, minResidenceMilliseconds: 0}",
    "{victim: FixedOrder, minResidenceMilliseconds: 50}",
];

impl Gpu {
    fn draw(dice: &mut Dice, tenants: usize) -> Gpu {
        let small = tenants > 3;
        // The slowest take a second for the weights of one tenant.
        let links = if small { ["1Gi", "64Mi", "16Mi", "8Mi"] } else { ["2Gi", "512Mi", "64Mi", "16Mi"] };
        Gpu {
            model: if small { SMALL } else { LARGE },
            memory_mib: tenants as u64 * if small { 6 } else { 29 },
            link: dice.pick(&links),
            sharing: dice.pick(&SHARINGS),
            remap: dice.pick(&REMAPS),
        }
    }

    /// Bytes of device memory.
    pub fn capacity_bytes(&self) -> u64 {
        self.memory_mib << 20
    }
}

impl Question {
    fn draw(dice: &mut Dice) -> Question {
        let sampled = dice.percent(50);
        Question {
            prompt: dice.between(0, 4) as u32,
            prompt_tokens: dice.between(4, 150) as u32,
            tokens: dice.between(4, 80) as usize,
            sampled: sampled.then(|| (dice.between(20, 150), dice.between(0, 1 << 40))),
            priority: dice.between(0, 3),
        }
    }

    /// As sent to the tenant `name`. It shows its tokens and runs to its limit.
    pub fn body(&self, name: &str) -> Value {
        let (temperature, seed) = self.sampled.unwrap_or((0, 0));
        json!({
            // Refused by whoever has taken over the port of a tenant that was killed.
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
        let mut dice = Dice::of(seed, "gpu");
        let gpu = Gpu::draw(&mut dice, tenants);
        let priorities = (0..tenants).map(|_| dice.between(0, 3)).collect();
        let mut dice = Dice::of(seed, "questions");
        let mut questions = || (0..QUESTIONS).map(|_| Question::draw(&mut dice)).collect();
        let questions = (0..tenants).map(|_| questions()).collect();
        let visits = visits(&mut Dice::of(seed, "visits"), tenants, length);
        let troubles = troubles(&mut Dice::of(seed, "troubles"), tenants, length);
        Plan { seed, gpu, priorities, questions, visits, troubles }
    }

    /// A plan in which nothing goes wrong and memory is sure to change hands: two tenants that are busy in turn.
    pub fn quiet(seed: u64) -> Plan {
        let mut plan = Plan::new(seed, 2, Duration::from_secs(3));
        plan.gpu = Gpu { link: "2Gi", sharing: SHARINGS[0], remap: REMAPS[0], ..plan.gpu };
        plan.priorities = vec![0, 0];
        plan.troubles.clear();
        let longest = |question: Question| Question { prompt_tokens: 140, tokens: 60, ..question };
        for questions in &mut plan.questions {
            *questions = questions.drain(..).map(longest).collect();
        }
        let visit = |number: usize| Visit {
            at: Duration::from_millis(number as u64 / 16 * 2_000),
            tenant: number / 16 % 2,
            question: number % QUESTIONS,
            streams: true,
            leaves_after: None,
        };
        plan.visits = (0..64).map(visit).collect();
        plan
    }
}

/// Bursts: a tenant is idle, then has more to do than its own memory has room for.
fn visits(dice: &mut Dice, tenants: usize, length: Duration) -> Vec<Visit> {
    let mut visits = Vec::new();
    let length = length.as_millis() as u64;
    for tenant in 0..tenants {
        let mut at = dice.between(0, 2_000);
        while at < length {
            for _ in 0..dice.between(1, 14) {
                visits.push(Visit::draw(dice, tenant, at));
                at += dice.between(0, 2 * BURST_GAP);
            }
            at += dice.between(200, 1_200 * tenants as u64);
        }
    }
    visits.sort_by_key(|visit| visit.at);
    visits
}

impl Visit {
    fn draw(dice: &mut Dice, tenant: usize, at: u64) -> Visit {
        let streams = dice.percent(75);
        let leaves = streams && dice.percent(10);
        Visit {
            at: Duration::from_millis(at),
            tenant,
            question: dice.between(0, QUESTIONS as u64) as usize,
            streams,
            leaves_after: leaves.then(|| dice.between(0, 20) as usize),
        }
    }
}

fn troubles(dice: &mut Dice, tenants: usize, length: Duration) -> Vec<Trouble> {
    let mut troubles = Vec::new();
    let (mut at, length) = (CALM, length.as_millis() as u64);
    loop {
        at += dice.between(100, 3_000);
        if at >= length {
            return troubles;
        }
        let (side, stops) = match dice.between(0, 100) {
            0..35 => (Side::Engine, false),
            35..60 => (Side::Sidecar, false),
            60..80 => (Side::Engine, true),
            _ => (Side::Sidecar, true),
        };
        troubles.push(Trouble {
            at: Duration::from_millis(at),
            tenant: dice.between(0, tenants as u64) as usize,
            side,
            stops_for: stops.then(|| Duration::from_millis(dice.between(50, 900))),
        });
    }
}
