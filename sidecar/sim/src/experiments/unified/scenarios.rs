//! Loads and machines that policies are compared on.
//!
//! Memory is short in each of them while somebody is busy, and is not when nobody is. Requests come in bursts (gaps of a gamma
//! distribution), by the hours of each tenant: stretches of time with a rate of their own.

use std::collections::BTreeSet;

use sluice_policy::neighbours::turn::Quantum;
use sluice_policy::params::PolicyName;

use crate::experiments::Lab;
use crate::gpu::Sharing;
use crate::profiles::hardware::{self, Hardware};
use crate::profiles::model;
use crate::serve::{self, Case};
use crate::workload::arrivals::Arrivals;
use crate::workload::{Coming, Limits, Source, cut};

const MS: u64 = 1_000_000;

/// So many times the stretches of a scenario follow each other: the longest answers take half a minute by themselves, and a run
/// that ends with them measures nothing else.
const ROUNDS: usize = 4;

/// Standard deviation of gaps over their mean.
const CV: f64 = 3.0;

/// Longer prompts are cut to so many tokens: near those of single turns.
const PROMPT_TOKENS: u32 = 400;

/// Where lengths come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lengths {
    /// Of conversations.
    ShareGpt,
    /// Of instructions: short.
    Alpaca,
    /// Of a coding service: long prompts, short answers.
    Code,
}

/// The files of lengths.
pub struct Sources([Source; 3]);

impl Sources {
    /// # Errors
    /// A file that cannot be read.
    pub fn read(lab: &Lab<'_>) -> Result<Sources, String> {
        let source = |file: &str| (lab.read)(file).map(|table| Source::new(&table));
        let files = ["sharegpt_lengths.csv", "alpaca_lengths.csv", "azure_llm_2023_code.csv"];
        let [share, alpaca, code] = files.map(source);
        Ok(Sources([share?, alpaca?, code?]))
    }

    fn of(&self, lengths: Lengths) -> &Source {
        &self.0[lengths as usize]
    }
}

/// A tenant of a scenario.
#[derive(Clone, Copy, Debug)]
pub struct Tenant {
    /// Its model.
    pub model: &'static str,
    /// Its share of the memory, permille.
    pub share_permille: u32,
    /// Of its requests.
    pub lengths: Lengths,
    /// Requests per second in each stretch of a round.
    pub rates: &'static [f64],
}

/// A machine, its tenants and their load.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// As it is called in reports.
    pub name: &'static str,
    /// What it is.
    pub about: &'static str,
    /// The machine.
    pub profile: &'static str,
    /// Seconds of each stretch.
    pub stretch_s: f64,
    /// Its tenants. They take turns.
    pub tenants: &'static [Tenant],
    /// Layers of an active model must not be given away.
    declines: bool,
}

const fn tenant(model: &'static str, share_permille: u32, lengths: Lengths, rates: &'static [f64]) -> Tenant {
    Tenant { model, share_permille, lengths, rates }
}

/// All scenarios.
pub const ALL: [Scenario; 6] = [
    Scenario {
        name: "alone",
        about: "one OPT-13B whose KV is short in bursts",
        profile: "gh200",
        stretch_s: 30.0,
        tenants: &[tenant("opt-13b", 300, Lengths::ShareGpt, &[2.0])],
        declines: false,
    },
    Scenario {
        name: "turns",
        about: "three models of which one at a time is busy",
        profile: "gh200",
        stretch_s: 8.0,
        tenants: &[
            tenant("opt-13b", 330, Lengths::ShareGpt, &[6.0, 0.2, 0.2]),
            tenant("llama-2-13b", 330, Lengths::ShareGpt, &[0.2, 6.0, 0.2]),
            tenant("llama-3-8b", 200, Lengths::ShareGpt, &[0.2, 0.2, 6.0]),
        ],
        declines: false,
    },
    Scenario {
        name: "lengths",
        about: "conversations on OPT-30B beside instructions on OPT-6.7B",
        profile: "gh200",
        stretch_s: 20.0,
        tenants: &[
            tenant("opt-30b", 650, Lengths::ShareGpt, &[1.0]),
            tenant("opt-6.7b", 150, Lengths::Alpaca, &[12.0]),
        ],
        declines: false,
    },
    Scenario {
        name: "rates",
        about: "two models whose rates change against each other by a factor of eight",
        profile: "gh200",
        stretch_s: 12.0,
        tenants: &[
            tenant("opt-13b", 310, Lengths::ShareGpt, &[4.0, 0.5]),
            tenant("llama-2-13b", 310, Lengths::ShareGpt, &[0.5, 4.0]),
        ],
        declines: false,
    },
    Scenario {
        name: "pcie-alone",
        about: "one OPT-30B behind PCIe 5: a layer's copy takes about seventy times its compute",
        profile: "h200-pcie5",
        stretch_s: 30.0,
        tenants: &[tenant("opt-30b", 500, Lengths::ShareGpt, &[1.2])],
        declines: true,
    },
    Scenario {
        name: "pcie-mix",
        about: "conversations on OPT-30B beside code on Llama-3-8B behind PCIe 5, rates changing by a factor of eight",
        profile: "h200-pcie5",
        stretch_s: 12.0,
        tenants: &[
            tenant("opt-30b", 500, Lengths::ShareGpt, &[2.0, 0.25]),
            tenant("llama-3-8b", 140, Lengths::Code, &[0.5, 4.0]),
        ],
        declines: true,
    },
];

impl Scenario {
    /// At least two tenants whose lengths come from different sources, or whose rates change by a factor of four or more.
    pub fn is_mix(&self) -> bool {
        let sources: BTreeSet<_> = self.tenants.iter().map(|tenant| tenant.lengths).collect();
        let changes = |tenant: &Tenant| {
            let (least, most) =
                tenant.rates.iter().fold((f64::MAX, 0.0_f64), |(l, m), r| (l.min(*r), m.max(*r)));
            most >= 4.0 * least
        };
        self.tenants.len() >= 2 && (sources.len() >= 2 || self.tenants.iter().any(changes))
    }

    /// The machine.
    pub fn hardware(&self) -> Hardware {
        *hardware::named(self.profile).expect("a machine of the list")
    }

    /// Layers of an active model must not be given away.
    pub fn declines(&self) -> bool {
        self.declines
    }

    fn models(&self) -> Vec<model::Model> {
        self.tenants.iter().map(|one| *model::named(one.model).expect("a model of the list")).collect()
    }

    /// The scenario under a policy.
    pub fn case(&self, policy: PolicyName, seed: u64) -> Case {
        let shares: Vec<_> = self.tenants.iter().map(|tenant| tenant.share_permille).collect();
        let turns = serve::round_robin(Quantum::new(5 * MS, 50 * MS));
        let sharing = if self.tenants.len() > 1 { turns } else { Sharing::Isolated };
        let places = serve::places(&self.hardware(), &self.models(), &shares);
        Case { seed, ..Case::new(self.hardware(), places, sharing, policy) }
    }

    /// Its requests by a seed, no more than so many of each tenant in each stretch.
    pub fn load(&self, sources: &Sources, most: usize, seed: u64) -> Vec<Coming> {
        let limits = Limits {
            model_tokens: self.models().iter().map(|model| model.context_tokens).collect(),
            prompt_tokens: PROMPT_TOKENS,
            requests: most,
        };
        let mut load = Vec::new();
        for (at, tenant) in self.tenants.iter().enumerate() {
            let mut lengths = sources.of(tenant.lengths).drawn(seed ^ at as u64);
            let rates = tenant.rates.repeat(ROUNDS);
            for (stretch, rate) in rates.iter().enumerate() {
                let times = self.times(*rate, most, seed ^ ((stretch * 16 + at) as u64) << 8);
                let begin_ns = (stretch as f64 * self.stretch_s * 1e9) as u64;
                let coming = |at_ns| Coming {
                    at_ns: begin_ns + at_ns,
                    tenant: at,
                    lengths: cut(lengths.next().expect("a file has lengths"), &limits, at),
                };
                load.extend(times.into_iter().map(coming));
            }
        }
        load.sort_by_key(|coming| coming.at_ns);
        load
    }

    /// Arrivals within one stretch.
    fn times(&self, rate: f64, most: usize, seed: u64) -> Vec<u64> {
        let end_ns = (self.stretch_s * 1e9) as u64;
        let times = Arrivals::Gamma { rate, cv: CV }.times(most, seed);
        times.into_iter().map(|(at_ns, _)| at_ns).take_while(|at_ns| *at_ns < end_ns).collect()
    }
}
