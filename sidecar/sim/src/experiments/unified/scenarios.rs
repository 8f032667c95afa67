//! Loads and machines that policies are compared on.
//!
//! Memory is short in each of them while somebody is busy, and is not when nobody is. In those that we made up requests come in
//! bursts (gaps of a gamma distribution), by the hours of each tenant: stretches of time with a rate of their own. The others are
//! the papers': the sets of Oneiros under Azure's arrivals, and the machine and long contexts of OrbitFlow's ablation.

use std::collections::BTreeSet;

use sluice_policy::params::PolicyName;
use sluice_policy::peers::time_slice::Quantum;

use crate::experiments::{Lab, ladder};
use crate::gpu::Sharing;
use crate::profiles::hardware::{self, Hardware};
use crate::profiles::model;
use crate::serve::{self, Case};
use crate::workload::arrivals::Arrivals;
use crate::workload::table::Table;
use crate::workload::{self, Coming, Deal, Limits, Source, cut};

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

/// The files of lengths, and Azure's arrivals.
pub struct Sources {
    lengths: [Source; 3],
    azure: Table,
}

impl Sources {
    /// # Errors
    /// A file that cannot be read.
    pub fn read(lab: &Lab<'_>) -> Result<Sources, String> {
        let source = |file: &str| (lab.read)(file).map(|table| Source::new(&table));
        let azure = (lab.read)("azure_llm_2023_code.csv")?;
        let lengths = [source("sharegpt_lengths.csv")?, source("alpaca_lengths.csv")?, Source::new(&azure)];
        Ok(Sources { lengths, azure })
    }

    fn of(&self, lengths: Lengths) -> &Source {
        &self.lengths[lengths as usize]
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
    /// Requests per second in each stretch of a round; none where requests come in another way.
    pub rates: &'static [f64],
}

/// How requests come.
#[derive(Clone, Copy, Debug)]
enum Load {
    /// In bursts, by stretches of so many seconds.
    Bursts { stretch_s: f64 },
    /// As in Azure's trace, of which each tenant has a part: so many a second of all, so many times as many requests, so that
    /// short ones fill the memory too, and prompts cut to so many tokens (Oneiros' sets).
    Azure { rate: f64, times: usize, prompt_tokens: u32 },
    /// Long ones, of which few fit (OrbitFlow's ablation), with an objective of so many times the step of one.
    Long { scale: f64 },
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
    load: Load,
    /// Its tenants. They take turns.
    pub tenants: &'static [Tenant],
    /// Layers of an active model must not be given away.
    declines: bool,
}

const fn tenant(model: &'static str, share_permille: u32, lengths: Lengths, rates: &'static [f64]) -> Tenant {
    Tenant { model, share_permille, lengths, rates }
}

/// All scenarios.
pub const ALL: [Scenario; 12] = [
    Scenario {
        name: "alone",
        about: "one OPT-13B whose KV is short in bursts",
        profile: "gh200",
        load: Load::Bursts { stretch_s: 30.0 },
        tenants: &[tenant("opt-13b", 300, Lengths::ShareGpt, &[2.0])],
        declines: false,
    },
    Scenario {
        name: "turns",
        about: "three models of which one at a time is busy",
        profile: "gh200",
        load: Load::Bursts { stretch_s: 8.0 },
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
        load: Load::Bursts { stretch_s: 20.0 },
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
        load: Load::Bursts { stretch_s: 12.0 },
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
        load: Load::Bursts { stretch_s: 30.0 },
        tenants: &[tenant("opt-30b", 500, Lengths::ShareGpt, &[1.2])],
        declines: true,
    },
    Scenario {
        name: "pcie-mix",
        about: "conversations on OPT-30B beside code on Llama-3-8B behind PCIe 5, rates changing by a factor of eight",
        profile: "h200-pcie5",
        load: Load::Bursts { stretch_s: 12.0 },
        tenants: &[
            tenant("opt-30b", 500, Lengths::ShareGpt, &[2.0, 0.25]),
            tenant("llama-3-8b", 140, Lengths::Code, &[0.5, 4.0]),
        ],
        declines: true,
    },
    azure("c1-sharegpt", "Oneiros' first set, conversations", &C1_SHARE_GPT, (2.0, 1, 200)),
    azure("c1-alpaca", "Oneiros' first set, instructions", &C1_ALPACA, (200.0, 3, 512)),
    azure("c2-sharegpt", "Oneiros' second set, conversations", &C2_SHARE_GPT, (2.0, 1, 200)),
    azure("c2-alpaca", "Oneiros' second set, instructions", &C2_ALPACA, (60.0, 3, 512)),
    long("flow-1", "OrbitFlow's ablation, SLO scale 1", 1.0),
    long("flow-2.5", "OrbitFlow's ablation, SLO scale 2.5", 2.5),
];

const C1_SHARE_GPT: [Tenant; 3] = first_set(Lengths::ShareGpt);
const C1_ALPACA: [Tenant; 3] = first_set(Lengths::Alpaca);
const C2_SHARE_GPT: [Tenant; 2] = second_set(Lengths::ShareGpt);
const C2_ALPACA: [Tenant; 2] = second_set(Lengths::Alpaca);

const FLOW: [Tenant; 1] = [tenant("llama-3-8b", 1000, Lengths::ShareGpt, &[])];

const fn first_set(lengths: Lengths) -> [Tenant; 3] {
    [
        tenant("opt-13b", 350, lengths, &[]),
        tenant("llama-2-13b", 350, lengths, &[]),
        tenant("llama-3-8b", 200, lengths, &[]),
    ]
}

const fn second_set(lengths: Lengths) -> [Tenant; 2] {
    [tenant("opt-30b", 650, lengths, &[]), tenant("opt-6.7b", 150, lengths, &[])]
}

const fn azure(
    name: &'static str,
    about: &'static str,
    tenants: &'static [Tenant],
    (rate, times, prompt_tokens): (f64, usize, u32),
) -> Scenario {
    let load = Load::Azure { rate, times, prompt_tokens };
    Scenario { name, about, profile: "gh200", load, tenants, declines: false }
}

const fn long(name: &'static str, about: &'static str, scale: f64) -> Scenario {
    let load = Load::Long { scale };
    Scenario { name, about, profile: "a5000-pcie3", load, tenants: &FLOW, declines: false }
}

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
        let max_sequences = match self.load {
            Load::Long { scale } => return ladder::served_by(policy, scale, seed),
            Load::Azure { .. } => 256,
            Load::Bursts { .. } => 64,
        };
        let shares: Vec<_> = self.tenants.iter().map(|tenant| tenant.share_permille).collect();
        let turns = serve::round_robin(Quantum::new(5 * MS, 50 * MS));
        let sharing = if self.tenants.len() > 1 { turns } else { Sharing::Isolated };
        let places = serve::places(&self.hardware(), &self.models(), &shares);
        Case { seed, max_sequences, ..Case::new(self.hardware(), places, sharing, policy) }
    }

    /// Its requests by a seed: in bursts no more than so many of each tenant in each stretch.
    pub fn load(&self, sources: &Sources, most: usize, seed: u64) -> Vec<Coming> {
        match self.load {
            Load::Bursts { stretch_s } => self.bursts(sources, (most, stretch_s), seed),
            Load::Azure { rate, times, prompt_tokens } => {
                let arrivals = Arrivals::Trace { table: sources.azure.clone(), rate: Some(rate) };
                let lengths: Vec<_> =
                    self.tenants.iter().map(|tenant| sources.of(tenant.lengths).clone()).collect();
                let limits = self.limits(prompt_tokens, most * times);
                workload::load(&arrivals, &lengths, &limits, Deal::Stretches, seed)
            }
            Load::Long { .. } => ladder::drawn(sources.of(Lengths::ShareGpt).clone(), most, seed),
        }
    }

    fn limits(&self, prompt_tokens: u32, requests: usize) -> Limits {
        let model_tokens = self.models().iter().map(|model| model.context_tokens).collect();
        Limits { model_tokens, prompt_tokens, requests }
    }

    fn bursts(&self, sources: &Sources, (most, stretch_s): (usize, f64), seed: u64) -> Vec<Coming> {
        let limits = self.limits(PROMPT_TOKENS, most);
        let mut load = Vec::new();
        for (at, tenant) in self.tenants.iter().enumerate() {
            let mut lengths = sources.of(tenant.lengths).drawn(seed ^ at as u64);
            let rates = tenant.rates.repeat(ROUNDS);
            for (stretch, rate) in rates.iter().enumerate() {
                let times = times(stretch_s, *rate, most, seed ^ ((stretch * 16 + at) as u64) << 8);
                let begin_ns = (stretch as f64 * stretch_s * 1e9) as u64;
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
}

/// Arrivals within one stretch.
fn times(stretch_s: f64, rate: f64, most: usize, seed: u64) -> Vec<u64> {
    let end_ns = (stretch_s * 1e9) as u64;
    let times = Arrivals::Gamma { rate, cv: CV }.times(most, seed);
    times.into_iter().map(|(at_ns, _)| at_ns).take_while(|at_ns| *at_ns < end_ns).collect()
}
