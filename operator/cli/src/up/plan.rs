//! Plans the tenants of a run on this machine: the GPU, the floor and the share of each are those of the operator
//! ([`sluice_plan`]), and its sidecar's configuration is that of a pod with paths and ports of this machine. Fields that
//! need a cluster are rejected by file, line and field. Pure.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use sluice_plan::objects::{PlacedSlot, sidecar_config};
use sluice_plan::pool_plan::{self, PoolPlan, TenantPlan};
use sluice_types::ModelTenant;
use sluice_types::load::{LoadError, LoadErrors, ManifestObject};
use sluice_types::pool::Policy;
use sluice_wire::config::{CudaConfig, DebugConfig, EngineConfig, ListenConfig, SidecarConfig};
use sluice_wire::config_rejection::ConfigRejection;

use super::config_error::{rejection_fields, unplaced_fields};
use super::cuda_devices::device_words;
use super::shared_gpu::{GpuTenant, SharedGpu};
use super::support_check::{self, UnsupportedFields};
use crate::Misconfigured;
use crate::manifests::SourceObject;
use crate::plan::inputs::{ObjectKey, PlanInputs, PoolInputs};

/// Choices of the command line.
#[derive(Clone, Debug)]
pub struct UpOptions {
    /// Address to listen on.
    pub host: IpAddr,
    /// Port of the first tenant; 0 = free ports.
    pub port: u16,
    /// Threads of each engine.
    pub threads: u32,
    /// Folder for journals.
    pub journal: Option<PathBuf>,
    /// Fixed layout.
    pub force_remap: Option<(u16, u8)>,
    /// Overwrite chunks with NaN at every hand-over.
    pub poison: bool,
    /// The engine's binary.
    pub engine: PathBuf,
}

/// Returns the threads of an engine for the option `asked`: 0 = all cores.
pub fn thread_count(asked: u32) -> u32 {
    match asked {
        0 => std::thread::available_parallelism()
            .map_or(1, |cores| u32::try_from(cores.get()).unwrap_or(u32::MAX)),
        asked => asked,
    }
}

/// The tenants to start, and the ignored fields.
#[derive(Debug)]
pub struct LaunchPlan {
    /// One configuration for each tenant that runs, in the order of the files.
    pub configs: Vec<SidecarConfig>,
    /// GPUs with more than one tenant.
    pub shared: Vec<SharedGpu>,
    /// Ignored fields.
    pub ineffective: Vec<LoadError>,
}

/// Parses `ALPHA:BETA`.
pub fn parse_force_remap(text: &str) -> Result<(u16, u8), String> {
    let parsed = text.split_once(':').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    parsed.ok_or_else(|| format!("`{text}` is not ALPHA:BETA, such as 3:1"))
}

/// Returns the objects that run, as the operator would plan them: an engine has the threads of the command line, as if
/// its pod had as many CPUs. The sizes of their models are still unknown.
///
/// # Errors
/// All unsupported fields.
pub fn inputs(objects: &[SourceObject], options: &UpOptions) -> Result<PlanInputs, LoadErrors> {
    let refused = unsupported_fields(objects).errors;
    if !refused.is_empty() {
        return Err(refused.into_iter().collect());
    }
    let running = objects.iter().filter(|placed| !is_stopped(placed)).cloned();
    Ok(PlanInputs::for_local_run(running, thread_count(options.threads)))
}

/// Returns one configuration for each tenant to run, in the order of the files. `inputs` are those of the objects, with
/// the sizes of their models.
///
/// # Errors
/// All tenants that cannot be served or have no GPU.
pub fn plan(
    objects: &[SourceObject],
    inputs: &PlanInputs,
    options: &UpOptions,
) -> Result<LaunchPlan, Misconfigured> {
    let launch = LaunchOrder::new(objects);
    let (mut refused, mut configs, mut shared) = (Vec::new(), BTreeMap::new(), Vec::new());
    for key in inputs.pools() {
        let pool = inputs.pool(&key);
        let seen = pool.observed();
        let planned = pool_plan::plan(&pool.context(&seen));
        refused.extend(planned.tenants.iter().filter_map(|tenant| unserved(&pool, tenant)));
        for gpu in 0..planned.gpus.len() {
            let placed = launch.configs(&pool, &planned, gpu, inputs, options);
            shared.extend(launch.shared_gpu(&pool, &planned, gpu));
            configs.extend(placed);
        }
    }
    if !refused.is_empty() {
        return Err(Misconfigured(refused.join("\n")));
    }
    let configs: Vec<SidecarConfig> = configs.into_values().collect();
    let mut ineffective = unsupported_fields(objects).ineffective;
    ineffective.extend(shared_gpu_warnings(objects, inputs, &configs));
    ineffective.extend(host_tier_warnings(objects, inputs));
    Ok(LaunchPlan { configs, shared, ineffective })
}

/// Returns why a tenant cannot be served or has no GPU, with the lines of the fields that could help.
fn unserved(pool: &PoolInputs<'_>, planned: &TenantPlan<'_>) -> Option<String> {
    let name = planned.tenant.metadata.name.as_deref().unwrap_or_default();
    let unplaced = || planned.slots.iter().find_map(|slot| slot.gpu_index.as_ref().err());
    let refusal = match (&planned.inspection_error, planned.rejections.first()) {
        (Some(error), _) => ConfigRejection::new("model_path", error.message.clone()),
        (None, Some(one)) => ConfigRejection::new(rejection_fields(one.reason), one.message.clone()),
        (None, None) => {
            let why = unplaced()?;
            ConfigRejection::new(unplaced_fields(why), format!("{why}{}", devices_note(pool)))
        }
    };
    let words = match pool.field_locator(name) {
        Some(locator) if refusal.fields.is_empty() => {
            format!("cannot be served\n{}: {}", locator.location_of(&refusal.problem), refusal.problem)
        }
        Some(locator) => locator.describe(&refusal),
        None => refusal.problem,
    };
    Some(format!("{}/{name}: {words}", pool.key.0))
}

/// Returns what the driver says of the CUDA devices of a pool, which no file states.
fn devices_note(pool: &PoolInputs<'_>) -> String {
    let devices: Vec<String> =
        pool.devices().map(|(gpu, device)| format!("{gpu} is {}", device_words(device))).collect();
    if devices.is_empty() { String::new() } else { format!("; {}", devices.join(", ")) }
}

/// The tenants that run, in the order of the files: each has the port of its place.
struct LaunchOrder<'a>(BTreeMap<ObjectKey, (usize, &'a SourceObject, &'a ModelTenant)>);

impl<'a> LaunchOrder<'a> {
    fn new(objects: &'a [SourceObject]) -> Self {
        let running = objects.iter().filter(|placed| !is_stopped(placed));
        let tenants = running.filter_map(|placed| match &placed.located.object {
            ManifestObject::Tenant(tenant) => Some((placed, tenant)),
            ManifestObject::Pool(_) => None,
        });
        let keyed = tenants.enumerate().map(|(at, (placed, tenant))| (placed.key(), (at, placed, tenant)));
        LaunchOrder(keyed.collect())
    }

    fn tenant(
        &self,
        namespace: &str,
        planned: &TenantPlan<'_>,
    ) -> Option<(usize, &'a SourceObject, &'a ModelTenant)> {
        let name = planned.tenant.metadata.name.clone()?;
        self.0.get(&(namespace.to_owned(), name)).copied()
    }

    /// Returns the configurations of a GPU's tenants, by their places.
    fn configs(
        &self,
        pool: &PoolInputs<'_>,
        plan: &PoolPlan<'_>,
        gpu: usize,
        inputs: &PlanInputs,
        options: &UpOptions,
    ) -> Vec<(usize, SidecarConfig)> {
        let is_shared = is_shared(plan, gpu);
        let slots = plan.slots_on(gpu).filter_map(|(planned, slot)| {
            let (at, source, tenant) = self.tenant(&pool.key.0, planned)?;
            let placed = plan.placed_slot(pool.pool?, planned, slot)?;
            let model = inputs.folders.get(&source.key())?;
            let mut config = configure(&placed, model, options, at);
            config.gpu.memory_bytes = plan.chunk_memory_bytes(gpu)?;
            if let Some(device) = pool.device(&config.gpu.name) {
                config.gpu.cuda = Some(CudaConfig { uuid: Some(device.uuid.clone()) });
            }
            let keys = tenant.spec.access.api_keys_file.as_deref();
            Some((
                at,
                SidecarConfig {
                    api_keys_file: keys.map(|path| absolute(&source.folder.join(path))),
                    // A tenant that has the GPU alone has no peer, and gets none while this runs.
                    gpu_ledger: config.gpu_ledger.filter(|_| is_shared),
                    ..config
                },
            ))
        });
        slots.collect()
    }

    /// Returns the GPU if it has more than one tenant.
    fn shared_gpu(&self, pool: &PoolInputs<'_>, plan: &PoolPlan<'_>, gpu: usize) -> Option<SharedGpu> {
        let (namespace, _) = &pool.key;
        let member =
            |(planned, slot)| Some(GpuTenant::new(self.tenant(namespace, planned)?.0, planned, slot));
        let members = plan.slots_on(gpu).filter_map(member).collect();
        let mut shared = SharedGpu::new(namespace, pool.pool?, plan, gpu, members);
        shared.uuid = pool.device(&shared.name).map(|device| device.uuid.clone());
        is_shared(plan, gpu).then_some(shared)
    }
}

fn is_shared(plan: &PoolPlan<'_>, gpu: usize) -> bool {
    plan.slots_on(gpu).count() > 1
}

/// Returns the unsupported fields of the objects that run.
pub fn unsupported_fields(objects: &[SourceObject]) -> UnsupportedFields {
    let mut all = UnsupportedFields::default();
    for placed in objects.iter().filter(|placed| !is_stopped(placed)) {
        let found = UnsupportedFields::check(&placed.located);
        all.errors.extend(found.errors);
        all.ineffective.extend(found.ineffective);
    }
    all
}

/// Warns about fields for peers of a tenant that has none.
fn shared_gpu_warnings(
    objects: &[SourceObject],
    inputs: &PlanInputs,
    configs: &[SidecarConfig],
) -> Vec<LoadError> {
    let sharing = configs.iter().filter(|config| config.gpu_ledger.is_some());
    let shares = |placed: &&SourceObject| {
        let (namespace, name) = placed.key();
        sharing.clone().filter(|config| config.namespace == namespace).any(|config| {
            match &placed.located.object {
                ManifestObject::Tenant(_) => config.name == name,
                ManifestObject::Pool(_) => inputs
                    .tenant(&(namespace.clone(), config.name.clone()))
                    .is_some_and(|tenant| tenant.spec.pool_ref.name == name),
            }
        })
    };
    let unshared = objects.iter().filter(|placed| !is_stopped(placed) && !shares(placed));
    let fields = |placed: &SourceObject| {
        let tenant = inputs.tenant(&placed.key());
        let pool = tenant.map(|tenant| (placed.namespace().to_owned(), tenant.spec.pool_ref.name.clone()));
        let is_only_tenant = pool.is_none_or(|pool| inputs.pool(&pool).tenants.len() == 1);
        support_check::shared_gpu_fields(&placed.located, is_only_tenant)
    };
    unshared.flat_map(fields).collect()
}

/// Returns tenants whose policy needs KV in the host tier and that have none.
fn host_tier_warnings(objects: &[SourceObject], inputs: &PlanInputs) -> Vec<LoadError> {
    let warning = |placed: &SourceObject| {
        let tenant = inputs.tenant(&placed.key())?;
        let pool = inputs.pool(&(placed.namespace().to_owned(), tenant.spec.pool_ref.name.clone())).pool?;
        let policy = pool.spec.policy;
        let moves_kv = matches!(policy, Policy::FlexGen | Policy::Pie | Policy::OrbitFlow);
        let problem = format!(
            "{} moves KV to host memory, but this tenant has none (memory.hostKv is 0), so it works like Recompute",
            policy.as_str()
        );
        let in_vain = moves_kv && tenant.spec.memory.host_kv.bytes() == 0;
        in_vain.then(|| placed.field_error("spec.memory.hostKv", &problem))
    };
    let tenants = objects.iter().filter(|placed| matches!(placed.located.object, ManifestObject::Tenant(_)));
    tenants.filter(|placed| !is_stopped(placed)).filter_map(warning).collect()
}

/// Whether this is a tenant that is not to run.
fn is_stopped(placed: &SourceObject) -> bool {
    match &placed.located.object {
        ManifestObject::Tenant(tenant) => tenant.spec.suspend || tenant.spec.replicas == 0,
        ManifestObject::Pool(_) => false,
    }
}

/// Returns the configuration of a pod's sidecar with the paths and ports of this machine. `model` is the folder of its
/// model; `at` is its place in the order of the files.
fn configure(placed: &PlacedSlot<'_>, model: &Path, options: &UpOptions, at: usize) -> SidecarConfig {
    let config = sidecar_config(placed);
    let journal = format!("{}.{}.journal", config.namespace, config.name);
    SidecarConfig {
        model_path: absolute(model),
        listen: listen(options, u16::try_from(at).unwrap_or(u16::MAX)),
        // Claimed by the caller once all tenants are valid.
        runtime_dir: PathBuf::new(),
        engine: EngineConfig { spawn: Some(options.engine.clone()), ..config.engine },
        journal: options.journal.as_ref().map(|folder| folder.join(journal)),
        debug: DebugConfig {
            force_remap: options.force_remap,
            poison: options.poison,
            no_prefix_cache: false,
        },
        ..config
    }
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

fn listen(options: &UpOptions, index: u16) -> ListenConfig {
    let port = if options.port == 0 { 0 } else { options.port.saturating_add(index) };
    let free = SocketAddr::from(([127, 0, 0, 1], 0));
    ListenConfig {
        serve: SocketAddr::new(options.host, port),
        admin: free,
        probes: free,
        drain_hook: false,
        drain_key: None,
        admin_tls: None,
        peer_token_file: None,
    }
}

#[cfg(test)]
pub mod tests;
