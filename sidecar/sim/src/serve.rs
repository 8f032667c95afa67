//! Serves a load with published models on a published machine, and measures times and throughput.

mod config;
pub mod measure;
mod request_slo;
pub mod tenants;

use sluice_policy::ids::Nanos;
use sluice_policy::peers::time_slice::SliceOrder;

use crate::device::Detail;
use crate::gpu::network::LinkDelays;
use crate::gpu::{Gpu, GpuSetup, GpuSharing};
use crate::profiles::hardware::Hardware;
use crate::profiles::model::ModelProfile;
use crate::workload::{Arrival, request};
pub use config::{ServeConfig, ServeOptions, TenantModel};
pub use measure::ServeStats;
pub use request_slo::RequestSlo;

/// Ten days of virtual time, longer than any load.
const LIMIT: Nanos = Nanos(864_000_000_000_000);

/// Returns round-robin sharing in time slices of `quantum`.
pub const fn round_robin(quantum: sluice_policy::peers::time_slice::Quantum) -> GpuSharing {
    GpuSharing::Temporal { quantum, order: SliceOrder::RoundRobin }
}

/// Returns tenants with these models and shares. A tenant without an entry in `shares_permille` gets its weights plus
/// an equal part of the memory that all weights leave.
pub fn tenant_models(
    hardware: &Hardware,
    models: &[ModelProfile],
    shares_permille: &[u32],
) -> Vec<TenantModel> {
    let weights: u64 = models.iter().map(ModelProfile::weight_bytes).sum();
    let rest = hardware.memory_bytes.saturating_sub(weights) / models.len().max(1) as u64;
    let equal = |model: &ModelProfile| ((model.weight_bytes() + rest) * 1000 / hardware.memory_bytes) as u32;
    let share =
        |at: usize, model: &ModelProfile| shares_permille.get(at).copied().unwrap_or_else(|| equal(model));
    models
        .iter()
        .enumerate()
        .map(|(at, model)| TenantModel { model: *model, share_permille: share(at, model) })
        .collect()
}

/// Serves a load. Calls `progress` periodically with the number of requests that have ended.
///
/// # Errors
/// If the policy refuses a tenant, or if requests wait forever.
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
            return Err(format!("{} requests never finish under {}", gpu.open(), case.policy.name()));
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
    gpu.tenants.iter().map(|tenant| (tenant.outcomes.len() - tenant.open()) as u64).sum()
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

/// Runs until all tenants are loaded. The load starts then.
fn run_until_loaded(gpu: &mut Gpu) -> Result<Nanos, String> {
    let loaded = |gpu: &Gpu| {
        let mut instances = gpu.tenants.iter().filter_map(|tenant| tenant.instance.as_ref());
        instances.all(|instance| instance.driver.scheduler().is_idle())
    };
    while !loaded(gpu) {
        if !gpu.tick(LIMIT) {
            return Err("the weights do not load".to_owned());
        }
    }
    Ok(gpu.now())
}
