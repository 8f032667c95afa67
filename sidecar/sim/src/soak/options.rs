//! The options that a seed determines.

use std::sync::Arc;

use sluice_common::random::Rng;
use sluice_policy::geometry::{ActivationCost, Geometry, StepShape};
use sluice_policy::ids::RequestId;
use sluice_policy::loan_negotiator::NegotiationPolicy;
use sluice_policy::params::{Params, Slo};
use sluice_policy::peers::time_slice::{Quantum, SliceOrder};
use sluice_policy::peers::victim::VictimRule;
use sluice_policy::placement_planner::pause::DEFAULT_BOUND_NS;
use sluice_policy::reclaim::{Ablations, PolicyName};
use sluice_ports::sampling::Sampling;
use sluice_scheduler::{Config, Request};

use super::faults::{self, Fault};
use super::policies;
use crate::device::{Detail, Profile, SimFaults};
use crate::gpu::network::LinkDelays;
use crate::gpu::tenant::TenantSetup;
use crate::gpu::{Gpu, GpuSetup, GpuSharing};

const MS: u64 = 1_000_000;
const CHUNK_BYTES: u64 = 1 << 16;
/// Longest request, tokens.
const MODEL_TOKENS: u32 = 96;
/// Largest number of prompt tokens apart from a common prefix.
const OWN_TOKENS: u64 = 24;
/// Largest number of output tokens.
const ANSWER_TOKENS: u64 = 36;
/// Size of the vocabulary, tokens.
pub(super) const VOCAB: u32 = 50_000;

/// Mechanisms that are disabled.
#[derive(Clone, Copy, Debug, Default)]
pub struct DisabledMechanisms {
    /// Mapping memory for the next tokens in advance.
    pub premap: bool,
    /// Deferred unmapping.
    pub late_unmaps: bool,
    /// Link order by deadline.
    pub deadlines: bool,
    /// Reclaim options ordered by cost.
    pub losses: bool,
    /// Prediction of the next use from arrivals.
    pub next_uses: bool,
}

impl DisabledMechanisms {
    /// Disables each mechanism with a probability of one quarter.
    fn draw(rng: &mut Rng) -> DisabledMechanisms {
        let mut off = || rng.chance(250);
        DisabledMechanisms {
            premap: off(),
            late_unmaps: off(),
            deadlines: off(),
            losses: off(),
            next_uses: off(),
        }
    }
}

/// Everything that a seed determines before the run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Number of tenants of the GPU.
    pub tenants: usize,
    /// Layers of each model.
    pub layers: u16,
    /// KV KV blocks of each tenant with all layers resident.
    pub kv_blocks: u32,
    /// Policy of all tenants.
    pub policy: PolicyName,
    /// Objectives of all tenants, if any.
    pub slo: Slo,
    /// Longest pause of a request, nanoseconds.
    pub pause_bound_ns: u64,
    /// Share of the layers that may be remapped, permille.
    pub remap_cap_permille: u32,
    /// Whether plans admit first come, first served, ignoring deadlines.
    pub plan_first_come: bool,
    /// Whether plans offload the same layers of all requests.
    pub plan_alike: bool,
    /// Disabled mechanisms.
    pub disabled: DisabledMechanisms,
    /// How the tenants share the GPU.
    pub sharing: GpuSharing,
    /// Size of each tenant's host tier, bytes.
    pub host_kv_bytes: u64,
    /// Whether prompts with a common prefix share KV.
    pub prefix_caching: bool,
    /// Stall that the policy allows, permille.
    pub stall_allowance_permille: u32,
    /// Terms of loans.
    pub terms: NegotiationPolicy,
    /// Link bandwidth, bytes per second.
    pub link_bytes_per_second: u64,
    /// Delays and losses of messages during the fault phase.
    pub link_delays: LinkDelays,
    /// Device faults during the fault phase.
    pub faults: SimFaults,
    /// Faults in time order, nanoseconds after the start of the load.
    pub fault_schedule: Vec<(u64, Fault)>,
    /// Length of the fault phase, nanoseconds.
    pub span_ns: u64,
    /// Number of requests of each tenant.
    pub requests: Vec<u64>,
    /// Whether all requests arrive early, so that memory is short while they are served.
    pub is_burst: bool,
    /// Additional tokens of each prompt, and of the largest output.
    pub extra_tokens: [u32; 2],
    /// Whether journals are recorded and replayed.
    pub recorded: bool,
}

/// Returns 0 in half of the cases, else a number up to `most`.
fn zero_or_up_to(rng: &mut Rng, most: u64) -> u64 {
    if rng.chance(500) { rng.below(most + 1) } else { 0 }
}

impl Options {
    /// Draws the options of a seed. What is added has its own random streams.
    pub fn of_seed(seed: u64, rng: &mut Rng) -> Options {
        let mut options = Options::draw(rng);
        options.add_share_changes(seed);
        options.add_objectives(seed);
        options.add_bursts(seed);
        options
    }

    fn draw(rng: &mut Rng) -> Options {
        let tenants = rng.between(1, 4) as usize;
        let layers = rng.between(3, 8) as u16;
        let span_ns = rng.between(200, 1_500) * MS;
        let layer_block_kv_block = u64::from(layers) * BLOCK_BYTES;
        Options {
            tenants,
            layers,
            kv_blocks: rng.between(8, 24) as u32,
            policy: policies::draw(rng),
            slo: Slo::default(),
            pause_bound_ns: DEFAULT_BOUND_NS,
            remap_cap_permille: Params::default().remap_cap_permille,
            plan_first_come: false,
            plan_alike: false,
            disabled: DisabledMechanisms::default(),
            sharing: draw_sharing(rng),
            host_kv_bytes: layer_block_kv_block * zero_or_up_to(rng, 40),
            prefix_caching: rng.chance(700),
            stall_allowance_permille: 50 + zero_or_up_to(rng, 950) as u32,
            terms: draw_terms(rng),
            link_bytes_per_second: 1 << rng.between(26, 34),
            link_delays: LinkDelays {
                spread_ns: rng.between(0, 30) * MS,
                lost_permille: zero_or_up_to(rng, 100),
                duplicate_permille: zero_or_up_to(rng, 50),
                ..LinkDelays::default()
            },
            faults: SimFaults {
                copy_fails_permille: zero_or_up_to(rng, 40),
                copy_slow_permille: zero_or_up_to(rng, 60),
                refused_permille: zero_or_up_to(rng, 40),
                create_fails_permille: zero_or_up_to(rng, 40),
                ..SimFaults::default()
            },
            fault_schedule: faults::draw(rng, tenants, span_ns),
            span_ns,
            requests: (0..tenants).map(|_| rng.between(1, 12)).collect(),
            is_burst: false,
            extra_tokens: [0; 2],
            recorded: rng.chance(125),
        }
    }

    /// Adds changes of shares. A separate random stream keeps the seed's other options unchanged.
    fn add_share_changes(&mut self, seed: u64) {
        self.fault_schedule.extend(faults::draw_share_changes(seed ^ 0xdea1, self.span_ns));
        self.fault_schedule.sort_by_key(|(at, _)| *at);
    }

    /// Adds objectives to half of the seeds, from a separate random stream.
    fn add_objectives(&mut self, seed: u64) {
        let mut rng = Rng::new(seed ^ 0x510);
        if rng.chance(500) {
            let (ttft_ns, tbt_ns) = (rng.between(1, 200) * MS, rng.between(1, 40) * MS);
            self.slo = Slo { ttft_ns, tbt_ns, allowed_miss_permille: rng.below(100) as u32 };
            self.pause_bound_ns = zero_or_up_to(&mut rng, 500) * MS;
            self.remap_cap_permille *= rng.below(4).min(1) as u32;
            self.plan_first_come = rng.chance(500);
            self.plan_alike = rng.chance(250);
            self.disabled = DisabledMechanisms::draw(&mut rng);
        }
    }

    /// In a quarter of the seeds, adds a burst of requests for little memory, with a host tier for all of them; some of
    /// these have long requests. Uses a separate random stream.
    fn add_bursts(&mut self, seed: u64) {
        let mut rng = Rng::new(seed ^ 0xc60d);
        if rng.chance(250) {
            self.is_burst = true;
            self.layers = rng.between(8, 16) as u16;
            self.kv_blocks = rng.between(8, 14) as u32;
            self.host_kv_bytes = u64::from(self.layers) * BLOCK_BYTES * rng.between(20, 120);
            self.requests.iter_mut().for_each(|count| *count += rng.between(8, 16));
            if rng.chance(300) {
                self.admit_by_plans(&mut rng);
            } else if rng.chance(400) {
                self.exceed_memory(&mut rng);
            }
        }
    }

    /// Draws long prompts, of which few fit, and a fast link: new requests join with part of their KV offloaded.
    fn admit_by_plans(&mut self, rng: &mut Rng) {
        (self.policy, self.plan_first_come) = (PolicyName::OrbitFlow, true);
        self.slo.tbt_ns = rng.between(1, 4) * MS;
        self.extra_tokens = [64, 0];
        self.kv_blocks = rng.between(24, 36) as u32;
        self.host_kv_bytes = u64::from(self.layers) * BLOCK_BYTES * rng.between(80, 200);
        self.link_bytes_per_second = 1 << rng.between(30, 34);
    }

    /// Draws long outputs, whose requests fit on arrival, and layers whose copies take a few times their compute:
    /// layers stall where that costs less than other reclaim options.
    fn exceed_memory(&mut self, rng: &mut Rng) {
        self.policy = PolicyName::Unified;
        self.remap_cap_permille = Params::default().remap_cap_permille;
        self.extra_tokens = [0, 64];
        self.kv_blocks = rng.between(16, 26) as u32;
        self.link_bytes_per_second = 1 << rng.between(28, 32);
    }

    fn model_tokens(&self) -> u32 {
        MODEL_TOKENS + self.extra_tokens.iter().sum::<u32>()
    }

    /// Returns the requests of each tenant with their arrival times.
    pub(super) fn loads(&self, rng: &mut Rng) -> Vec<Vec<(u64, Request)>> {
        let load = |count: &u64| {
            let within_ns = if self.is_burst { self.span_ns / 16 } else { self.span_ns * 3 / 4 };
            let mut times: Vec<u64> = (0..*count).map(|_| rng.below(within_ns)).collect();
            times.sort_unstable();
            times
                .into_iter()
                .zip(1..)
                .map(|(at, id)| (at, request(id, self.extra_tokens.map(u64::from), rng)))
                .collect()
        };
        self.requests.iter().map(load).collect()
    }

    pub(super) fn gpu(&self, seed: u64) -> Result<Gpu, (String, String)> {
        let tenants: Vec<_> = (0..self.tenants).map(|at| self.tenant(at)).collect();
        let setup = GpuSetup {
            sharing: self.sharing,
            capacity_chunks: self.share_chunks() * self.tenants as u32,
            link_delays: self.link_delays,
            detail: Detail::Fingerprints,
            restart_ns: 40 * MS,
            recorded: self.recorded,
            seed,
        };
        Gpu::new(setup, tenants)
    }

    /// Returns a tenant. Its share of the GPU is enough when it runs alone.
    pub(super) fn tenant(&self, at: usize) -> TenantSetup {
        let geometry =
            Geometry { capacity_chunks: self.share_chunks() * self.tenants as u32, ..self.geometry() };
        let guaranteed = geometry.kv_chunks_for(self.model_tokens().div_ceil(16));
        let without = self.disabled;
        let params = Params {
            policy: self.policy,
            slo: self.slo,
            pause_bound_ns: self.pause_bound_ns,
            remap_cap_permille: self.remap_cap_permille,
            plan_first_come: self.plan_first_come,
            plan_alike: self.plan_alike,
            premap_bytes: if without.premap { 0 } else { Params::default().premap_bytes },
            defers_unmap: !without.late_unmaps,
            link_by_deadline: !without.deadlines,
            ablations: Ablations {
                reclaim_by_cost: !without.losses,
                next_use_by_arrivals: !without.next_uses,
            },
            share_chunks: self.share_chunks(),
            max_model_tokens: self.model_tokens(),
            guaranteed_kv_bytes: u64::from(guaranteed) * CHUNK_BYTES,
            host_kv_bytes: self.host_kv_bytes,
            max_step: STEP,
            min_step: StepShape { tokens: 8, ..STEP },
            revert_patience_steps: 8,
            prefix_caching: self.prefix_caching,
            stall_allowance_permille: self.stall_allowance_permille,
            ..Params::default()
        };
        TenantSetup {
            name: format!("tenant-{at}"),
            config: self.config(),
            params,
            geometry,
            profile: self.profile(),
            vocab: VOCAB,
            terms: NegotiationPolicy { priority: (at % 2) as i32, ..self.terms.clone() },
        }
    }

    pub(super) fn config(&self) -> Config {
        let max_model_tokens = self.model_tokens();
        Config { max_model_tokens, max_step_tokens: 64, max_sequences: 8, ..Config::default() }
    }

    pub(super) fn profile(&self) -> Profile {
        Profile {
            link_bytes_per_second: self.link_bytes_per_second,
            out_bytes_per_second: self.link_bytes_per_second,
            coupled_permille: 850,
            ..Profile::default()
        }
    }

    fn geometry(&self) -> Geometry {
        // Unequal layer sizes.
        let slab = |layer: u64| (3 + layer % 3) * CHUNK_BYTES - 7;
        Geometry {
            chunk_bytes: CHUNK_BYTES,
            capacity_chunks: 0,
            global_bytes: 3 * CHUNK_BYTES - 100,
            slab_bytes: (0..u64::from(self.layers)).map(slab).collect(),
            layer_block_bytes: BLOCK_BYTES,
            activation: ActivationCost {
                fixed_bytes: 1000,
                stream_per_token_bytes: 500,
                chunk_per_token_bytes: 3500,
                chunk_tokens: 64,
                per_sequence_bytes: 100,
                per_logit_row_bytes: 2000,
            },
            staging_chunks: 0,
        }
    }

    fn share_chunks(&self) -> u32 {
        let geometry = self.geometry();
        let weights: u32 = (0..geometry.slab_bytes.len()).map(|layer| geometry.slab_chunks(layer)).sum();
        let activation = geometry.chunks_for(geometry.activation.bytes(STEP));
        3 + weights + activation + geometry.kv_chunks_for(self.kv_blocks)
    }
}

const BLOCK_BYTES: u64 = 12_000;
const STEP: StepShape = StepShape { tokens: 64, sequences: 8, logit_rows: 8 };

fn draw_sharing(rng: &mut Rng) -> GpuSharing {
    match rng.below(8) {
        0 => GpuSharing::Isolated,
        1 | 2 => GpuSharing::Spatial,
        _ => {
            let max_ns = rng.between(1, 12) * MS;
            let order = if rng.chance(300) {
                SliceOrder::Priority { aging_slices: rng.between(1, 64) }
            } else {
                SliceOrder::RoundRobin
            };
            GpuSharing::Temporal { quantum: Quantum::new(max_ns / rng.between(1, 10), max_ns), order }
        }
    }
}

fn draw_terms(rng: &mut Rng) -> NegotiationPolicy {
    let rules = [VictimRule::MostRecentlyUsed, VictimRule::LeastRecentlyUsed];
    NegotiationPolicy {
        rule: rules[rng.below(2) as usize],
        min_residence_ns: zero_or_up_to(rng, 20) * MS,
        revoke_bound_ns: rng.between(20, 200) * MS,
        ask_patience_ns: rng.between(4, 40) * MS,
        ttl_ns: rng.between(200, 10_000) * MS,
        retry_ns: rng.between(5, 100) * MS,
        ..NegotiationPolicy::default()
    }
}

/// Draws a request. Its prompt begins with one of a few common prefixes.
fn request(id: u64, longer: [u64; 2], rng: &mut Rng) -> Request {
    let (common, shared) = (rng.below(3), 16 * rng.below(3));
    let prefix = (0..shared).map(|i| (common * 1000 + i) as u32);
    let own = longer[0] + rng.between(1, OWN_TOKENS);
    let prompt: Vec<u32> = prefix.chain((0..own).map(|_| rng.below(u64::from(VOCAB)) as u32)).collect();
    let sampling = Arc::new(Sampling::default());
    let (max_tokens, priority) = (rng.between(1, ANSWER_TOKENS + longer[1]) as u32, rng.below(2) as i32);
    let (id, salt, paced) = (RequestId(id), rng.below(2), id.is_multiple_of(2));
    Request { id, prompt, max_tokens, sampling, priority, salt, paced }
}
