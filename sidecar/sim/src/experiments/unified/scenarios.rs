//! Loads and machines on which policies are compared.
//!
//! In each scenario memory is short while a tenant is busy, and is not when all tenants are idle. Our own scenarios
//! have bursty arrivals (gamma-distributed gaps) with a rate per tenant and stretch of time. The others are the
//! papers': the sets of Oneiros with Azure's arrivals, and the machine and long contexts of OrbitFlow's ablation.

use std::collections::BTreeSet;

use sluice_policy::peers::time_slice::Quantum;
use sluice_policy::reclaim::PolicyName;

use crate::experiments::{ExperimentContext, ablation};
use crate::gpu::GpuSharing;
use crate::profiles::hardware::{self, Hardware};
use crate::profiles::model;
use crate::serve::{self, ServeConfig};
use crate::workload::arrivals::ArrivalProcess;
use crate::workload::table::Table;
use crate::workload::{self, Arrival, LengthSource, Limits, TenantAssignment, clamp_lengths};

const MS: u64 = 1_000_000;

/// Number of rounds through the stretches of a scenario. The longest outputs alone take half a minute, and would
/// dominate a shorter run.
const ROUNDS: usize = 4;

/// Standard deviation of the gaps divided by their mean.
const CV: f64 = 3.0;

/// Largest prompt, tokens; longer ones are cut. Near the length of single-turn prompts.
const PROMPT_TOKENS: u32 = 400;

/// Source of lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LengthDataset {
    /// Conversations.
    ShareGpt,
    /// Instructions: short.
    Alpaca,
    /// A coding service: long prompts, short outputs.
    Code,
}

/// Length sources, and Azure's arrivals.
pub struct Sources {
    lengths: [LengthSource; 3],
    azure: Table,
}

impl Sources {
    /// Reads the trace files.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn read(lab: &ExperimentContext<'_>) -> Result<Sources, String> {
        let source = |file: &str| (lab.read)(file).map(|table| LengthSource::new(&table));
        let azure = (lab.read)("azure_llm_2023_code.csv")?;
        let lengths =
            [source("sharegpt_lengths.csv")?, source("alpaca_lengths.csv")?, LengthSource::new(&azure)];
        Ok(Sources { lengths, azure })
    }

    fn of(&self, lengths: LengthDataset) -> &LengthSource {
        &self.lengths[lengths as usize]
    }
}

/// A tenant of a scenario.
#[derive(Clone, Copy, Debug)]
pub struct ScenarioTenant {
    /// Name of the model.
    pub model: &'static str,
    /// Share of device memory, permille.
    pub share_permille: u32,
    /// Source of its request lengths.
    pub lengths: LengthDataset,
    /// Requests per second in each stretch of a round; empty if the scenario has other arrivals.
    pub rates: &'static [f64],
}

/// How requests arrive.
#[derive(Clone, Copy, Debug)]
enum ArrivalPattern {
    /// In bursts, with stretches of `stretch_s` seconds.
    Bursts { stretch_s: f64 },
    /// As in Azure's trace, with a segment per tenant (Oneiros' sets): `rate` requests per second in total, and `times`
    /// the number of requests, so that short ones fill the memory too. Prompts are cut to `prompt_tokens`.
    Azure { rate: f64, times: usize, prompt_tokens: u32 },
    /// Long requests, of which few fit (OrbitFlow's ablation). The objective is `scale` times the decode step of one.
    Long { scale: f64 },
}

/// A machine, its tenants and their load.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// Name in reports.
    pub name: &'static str,
    /// Description of the scenario.
    pub about: &'static str,
    /// Name of the machine.
    pub profile: &'static str,
    load: ArrivalPattern,
    /// The tenants, which run in time slices.
    pub tenants: &'static [ScenarioTenant],
    /// Whether layers of an active model must stay resident.
    declines: bool,
}

const fn tenant(
    model: &'static str,
    share_permille: u32,
    lengths: LengthDataset,
    rates: &'static [f64],
) -> ScenarioTenant {
    ScenarioTenant { model, share_permille, lengths, rates }
}

/// All scenarios.
pub const ALL: [Scenario; 12] = [
    Scenario {
        name: "alone",
        about: "one OPT-13B whose KV is short in bursts",
        profile: "gh200",
        load: ArrivalPattern::Bursts { stretch_s: 30.0 },
        tenants: &[tenant("opt-13b", 300, LengthDataset::ShareGpt, &[2.0])],
        declines: false,
    },
    Scenario {
        name: "turns",
        about: "three models of which one at a time is busy",
        profile: "gh200",
        load: ArrivalPattern::Bursts { stretch_s: 8.0 },
        tenants: &[
            tenant("opt-13b", 330, LengthDataset::ShareGpt, &[6.0, 0.2, 0.2]),
            tenant("llama-2-13b", 330, LengthDataset::ShareGpt, &[0.2, 6.0, 0.2]),
            tenant("llama-3-8b", 200, LengthDataset::ShareGpt, &[0.2, 0.2, 6.0]),
        ],
        declines: false,
    },
    Scenario {
        name: "lengths",
        about: "conversations on OPT-30B together with instructions on OPT-6.7B",
        profile: "gh200",
        load: ArrivalPattern::Bursts { stretch_s: 20.0 },
        tenants: &[
            tenant("opt-30b", 650, LengthDataset::ShareGpt, &[1.0]),
            tenant("opt-6.7b", 150, LengthDataset::Alpaca, &[12.0]),
        ],
        declines: false,
    },
    Scenario {
        name: "rates",
        about: "two models whose rates change against each other by a factor of eight",
        profile: "gh200",
        load: ArrivalPattern::Bursts { stretch_s: 12.0 },
        tenants: &[
            tenant("opt-13b", 310, LengthDataset::ShareGpt, &[4.0, 0.5]),
            tenant("llama-2-13b", 310, LengthDataset::ShareGpt, &[0.5, 4.0]),
        ],
        declines: false,
    },
    Scenario {
        name: "pcie-alone",
        about: "one OPT-30B behind PCIe 5: a layer's copy takes about seventy times its compute",
        profile: "h200-pcie5",
        load: ArrivalPattern::Bursts { stretch_s: 30.0 },
        tenants: &[tenant("opt-30b", 500, LengthDataset::ShareGpt, &[1.2])],
        declines: true,
    },
    Scenario {
        name: "pcie-mix",
        about: "conversations on OPT-30B together with code on Llama-3-8B behind PCIe 5, rates changing by \
                a factor of eight",
        profile: "h200-pcie5",
        load: ArrivalPattern::Bursts { stretch_s: 12.0 },
        tenants: &[
            tenant("opt-30b", 500, LengthDataset::ShareGpt, &[2.0, 0.25]),
            tenant("llama-3-8b", 140, LengthDataset::Code, &[0.5, 4.0]),
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

const C1_SHARE_GPT: [ScenarioTenant; 3] = first_set(LengthDataset::ShareGpt);
const C1_ALPACA: [ScenarioTenant; 3] = first_set(LengthDataset::Alpaca);
const C2_SHARE_GPT: [ScenarioTenant; 2] = second_set(LengthDataset::ShareGpt);
const C2_ALPACA: [ScenarioTenant; 2] = second_set(LengthDataset::Alpaca);

const FLOW: [ScenarioTenant; 1] = [tenant("llama-3-8b", 1000, LengthDataset::ShareGpt, &[])];

const fn first_set(lengths: LengthDataset) -> [ScenarioTenant; 3] {
    [
        tenant("opt-13b", 350, lengths, &[]),
        tenant("llama-2-13b", 350, lengths, &[]),
        tenant("llama-3-8b", 200, lengths, &[]),
    ]
}

const fn second_set(lengths: LengthDataset) -> [ScenarioTenant; 2] {
    [tenant("opt-30b", 650, lengths, &[]), tenant("opt-6.7b", 150, lengths, &[])]
}

const fn azure(
    name: &'static str,
    about: &'static str,
    tenants: &'static [ScenarioTenant],
    (rate, times, prompt_tokens): (f64, usize, u32),
) -> Scenario {
    let load = ArrivalPattern::Azure { rate, times, prompt_tokens };
    Scenario { name, about, profile: "gh200", load, tenants, declines: false }
}

const fn long(name: &'static str, about: &'static str, scale: f64) -> Scenario {
    let load = ArrivalPattern::Long { scale };
    Scenario { name, about, profile: "a5000-pcie3", load, tenants: &FLOW, declines: false }
}

impl Scenario {
    /// Whether at least two tenants have lengths of different sources, or rates that change by a factor of four or
    /// more.
    pub fn is_mix(&self) -> bool {
        let sources: BTreeSet<_> = self.tenants.iter().map(|tenant| tenant.lengths).collect();
        let changes = |tenant: &ScenarioTenant| {
            let (least, most) =
                tenant.rates.iter().fold((f64::MAX, 0.0_f64), |(l, m), r| (l.min(*r), m.max(*r)));
            most >= 4.0 * least
        };
        self.tenants.len() >= 2 && (sources.len() >= 2 || self.tenants.iter().any(changes))
    }

    /// Returns the machine.
    pub fn hardware(&self) -> Hardware {
        *hardware::find(self.profile).expect("a machine of the list")
    }

    /// Whether layers of an active model must stay resident.
    pub fn declines(&self) -> bool {
        self.declines
    }

    fn models(&self) -> Vec<model::ModelProfile> {
        self.tenants.iter().map(|one| *model::find(one.model).expect("a model of the list")).collect()
    }

    /// Returns the configuration of the scenario under a policy.
    pub fn case(&self, policy: PolicyName, seed: u64) -> ServeConfig {
        let max_sequences = match self.load {
            ArrivalPattern::Long { scale } => return ablation::policy_case(policy, scale, seed),
            ArrivalPattern::Azure { .. } => 256,
            ArrivalPattern::Bursts { .. } => 64,
        };
        let shares: Vec<_> = self.tenants.iter().map(|tenant| tenant.share_permille).collect();
        let round_robin = serve::round_robin(Quantum::new(5 * MS, 50 * MS));
        let sharing = if self.tenants.len() > 1 { round_robin } else { GpuSharing::Isolated };
        let places = serve::tenant_models(&self.hardware(), &self.models(), &shares);
        ServeConfig { seed, max_sequences, ..ServeConfig::new(self.hardware(), places, sharing, policy) }
    }

    /// Returns the requests for a seed. In bursts, each tenant has at most `most` requests per stretch.
    pub fn load(&self, sources: &Sources, most: usize, seed: u64) -> Vec<Arrival> {
        match self.load {
            ArrivalPattern::Bursts { stretch_s } => self.bursts(sources, (most, stretch_s), seed),
            ArrivalPattern::Azure { rate, times, prompt_tokens } => {
                let arrivals = ArrivalProcess::Trace { table: sources.azure.clone(), rate: Some(rate) };
                let lengths: Vec<_> =
                    self.tenants.iter().map(|tenant| sources.of(tenant.lengths).clone()).collect();
                let limits = self.limits(prompt_tokens, most * times);
                workload::load(&arrivals, &lengths, &limits, TenantAssignment::Segments, seed)
            }
            ArrivalPattern::Long { .. } => {
                ablation::draw_load(sources.of(LengthDataset::ShareGpt).clone(), most, seed)
            }
        }
    }

    fn limits(&self, prompt_tokens: u32, requests: usize) -> Limits {
        let model_tokens = self.models().iter().map(|model| model.context_tokens).collect();
        Limits { model_tokens, prompt_tokens, requests }
    }

    fn bursts(&self, sources: &Sources, (most, stretch_s): (usize, f64), seed: u64) -> Vec<Arrival> {
        let limits = self.limits(PROMPT_TOKENS, most);
        let mut load = Vec::new();
        for (at, tenant) in self.tenants.iter().enumerate() {
            let mut lengths = sources.of(tenant.lengths).samples(seed ^ at as u64);
            let rates = tenant.rates.repeat(ROUNDS);
            for (stretch, rate) in rates.iter().enumerate() {
                let times = times(stretch_s, *rate, most, seed ^ ((stretch * 16 + at) as u64) << 8);
                let begin_ns = (stretch as f64 * stretch_s * 1e9) as u64;
                let coming = |at_ns| Arrival {
                    at_ns: begin_ns + at_ns,
                    tenant: at,
                    lengths: clamp_lengths(lengths.next().expect("a file has lengths"), &limits, at),
                };
                load.extend(times.into_iter().map(coming));
            }
        }
        load.sort_by_key(|coming| coming.at_ns);
        load
    }
}

/// Returns the arrival times within one stretch.
fn times(stretch_s: f64, rate: f64, most: usize, seed: u64) -> Vec<u64> {
    let end_ns = (stretch_s * 1e9) as u64;
    let times = ArrivalProcess::Gamma { rate, cv: CV }.times(most, seed);
    times.into_iter().map(|(at_ns, _)| at_ns).take_while(|at_ns| *at_ns < end_ns).collect()
}
