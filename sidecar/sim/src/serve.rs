//! A load served by models of published size on a published machine, under one policy: what it would take, and how well.

pub mod measure;
pub mod tenants;

use sluice_policy::ids::Nanos;
use sluice_policy::params::PolicyName;
use sluice_policy::peers::time_slice::TurnOrder;
use sluice_policy::tunables::Tuned;

use crate::device::Detail;
use crate::gpu::network::LinkDelays;
use crate::gpu::{Gpu, GpuSetup, Sharing};
use crate::profiles::cost::Launch;
use crate::profiles::hardware::Hardware;
use crate::profiles::model::Model;
use crate::workload::{Arrival, request};
pub use measure::{ServeStats, Slo};

/// Ten days of virtual time: no load lasts so long.
const LIMIT: Nanos = Nanos(864_000_000_000_000);

/// A model and the memory that is its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TenantModel {
    /// The model.
    pub model: Model,
    /// Its share of the GPU's memory, permille.
    pub share_permille: u32,
}

/// What a run sets beside the name of the policy; everything else is production's default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServeOptions {
    /// KV that each tenant holds on the device at most, bytes; as much as there is when left out.
    pub kv_bytes: Option<u64>,
    /// Host memory for KV of each tenant, bytes; equal parts of what the machine has beside all weights when left out.
    pub host_kv_bytes: Option<u64>,
    /// Nobody waits with its KV: who is one too many is computed again.
    pub never_pauses: bool,
    /// Tokens are written as they are made: nothing is in store for clients.
    pub unpaced: bool,
}

/// What serves a load.
#[derive(Clone, Debug)]
pub struct ServeConfig {
    /// The machine.
    pub hardware: Hardware,
    /// Its tenants.
    pub tenants: Vec<TenantModel>,
    /// How they share it.
    pub sharing: Sharing,
    /// By which policy.
    pub policy: PolicyName,
    /// How kernels are launched.
    pub launch: Launch,
    /// Bytes of a chunk.
    pub chunk_bytes: u64,
    /// Sequences that run at once in each tenant, at most.
    pub max_sequences: u32,
    /// Prompts that begin alike share KV.
    pub prefix_caching: bool,
    /// Which neighbour is asked for memory first.
    pub rule: sluice_policy::peers::victim::VictimRule,
    /// What a good answer is.
    pub slo: Slo,
    /// What else is set.
    pub options: ServeOptions,
    /// Numbers of the policy that are not its defaults.
    pub tunables: Tuned,
    /// Of letters and prompts.
    pub seed: u64,
}

/// Equal turns for all.
pub const fn round_robin(quantum: sluice_policy::peers::time_slice::Quantum) -> Sharing {
    Sharing::Temporal { quantum, order: TurnOrder::RoundRobin }
}

impl ServeConfig {
    /// These tenants with everything else as it usually is: captured graphs, chunks of 16 MiB, 64 sequences at once, no shared
    /// prefixes, seed 1.
    pub fn new(
        hardware: Hardware,
        tenants: Vec<TenantModel>,
        sharing: Sharing,
        policy: PolicyName,
    ) -> ServeConfig {
        ServeConfig {
            hardware,
            tenants,
            sharing,
            policy,
            launch: Launch::Graph,
            chunk_bytes: 16 << 20,
            max_sequences: 64,
            prefix_caching: false,
            rule: sluice_policy::peers::victim::VictimRule::default(),
            slo: Slo::default(),
            options: ServeOptions::default(),
            tunables: Tuned::default(),
            seed: 1,
        }
    }

    /// Host memory for KV of each tenant, bytes.
    pub fn host_kv_bytes(&self) -> u64 {
        let weights: u64 = self.tenants.iter().map(|place| place.model.weight_bytes()).sum();
        let rest = self.hardware.host_bytes.saturating_sub(weights);
        self.options.host_kv_bytes.unwrap_or(rest / self.tenants.len().max(1) as u64)
    }
}

/// Places of these models with shares in proportion to what `shares_permille` says, or, where that is empty, with everybody's
/// weights and equal parts of the rest.
pub fn tenant_models(hardware: &Hardware, models: &[Model], shares_permille: &[u32]) -> Vec<TenantModel> {
    let weights: u64 = models.iter().map(Model::weight_bytes).sum();
    let rest = hardware.memory_bytes.saturating_sub(weights) / models.len().max(1) as u64;
    let equal = |model: &Model| ((model.weight_bytes() + rest) * 1000 / hardware.memory_bytes) as u32;
    let share = |at: usize, model: &Model| shares_permille.get(at).copied().unwrap_or_else(|| equal(model));
    models
        .iter()
        .enumerate()
        .map(|(at, model)| TenantModel { model: *model, share_permille: share(at, model) })
        .collect()
}

/// Serves a load. `progress` hears now and then how many requests have ended.
///
/// # Errors
/// Which tenant the policy refuses, and why; or that requests wait for ever.
pub fn serve(
    case: &ServeConfig,
    load: &[Arrival],
    progress: &mut dyn FnMut(u64),
) -> Result<ServeStats, String> {
    let mut gpu = start(case)?;
    let begin = run_until_loaded(&mut gpu)?;
    let loaded_bytes = gpu.machine.borrow().transferred_bytes();
    for (id, coming) in (1..).zip(load) {
        let vocab = case.tenants[coming.tenant].model.vocab as u32;
        let request = request(id, coming.lengths, vocab, case.seed, !case.options.unpaced);
        gpu.submit_at(coming.tenant, begin.plus(coming.at_ns), request);
    }
    let mut ticks = 0_u64;
    while !gpu.is_done() {
        if !gpu.tick(LIMIT) {
            return Err(format!("{} requests wait for ever under {}", gpu.open(), case.policy.name()));
        }
        ticks += 1;
        if ticks.is_multiple_of(4096) {
            progress(ended_requests(&gpu));
        }
    }
    progress(ended_requests(&gpu));
    Ok(measure::measure(case, &gpu, begin, loaded_bytes))
}

fn ended_requests(gpu: &Gpu) -> u64 {
    gpu.tenants.iter().map(|seat| (seat.outcomes.len() - seat.open()) as u64).sum()
}

fn start(case: &ServeConfig) -> Result<Gpu, String> {
    let setup = GpuSetup {
        sharing: case.sharing,
        capacity_chunks: tenants::capacity_chunks(case),
        link_delays: LinkDelays::default(),
        detail: Detail::Times,
        restart_ns: 0,
        recorded: false,
        seed: case.seed,
    };
    let refused = |(name, why): (String, String)| format!("{name} under {}: {why}", case.policy.name());
    Gpu::new(setup, tenants::setups(case)).map_err(refused)
}

/// Until everybody is loaded; the load begins then.
fn run_until_loaded(gpu: &mut Gpu) -> Result<Nanos, String> {
    let loaded = |gpu: &Gpu| {
        let mut lives = gpu.tenants.iter().filter_map(|seat| seat.instance.as_ref());
        lives.all(|life| life.driver.scheduler().is_idle())
    };
    while !loaded(gpu) {
        if !gpu.tick(LIMIT) {
            return Err("the weights do not come".to_owned());
        }
    }
    Ok(gpu.now())
}
