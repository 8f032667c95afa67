//! Translates objects into sidecar configurations. Unsupported fields are rejected by file, line and field. Pure.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use sluice_plan::spec_convert::{self, to_u32};
use sluice_types::load::{LoadError, LoadErrors, Object, Path as FieldPath, SpannedObject};
use sluice_types::pool::{HostDevice, Policy};
use sluice_types::tenant::WeightType;
use sluice_types::{GpuPool, ModelTenant, Quantity};
use sluice_wire::config::{DebugConfig, EngineConfig, GpuConfig, ListenConfig, SidecarConfig};

use super::placement::{GpuAssignment, GpuOccupancy};
use super::shared_gpu::{self, SharedGpu};
use super::support_check::{self, UnsupportedFields};

/// An object and the base folder of its relative paths.
#[derive(Clone, Debug)]
pub struct SourceObject {
    /// The object, and its position in the file.
    pub located: SpannedObject,
    /// Folder of its file.
    pub folder: PathBuf,
}

impl SourceObject {
    fn namespace(&self) -> &str {
        self.located.object.namespace()
    }

    fn field_error(&self, field: &str, problem: &str) -> LoadError {
        self.located.error(FieldPath::of_keys(field), problem)
    }
}

/// Choices of the command line.
#[derive(Clone, Debug)]
pub struct UpOptions {
    /// Address to listen at.
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

/// A tenant that runs, and its GPU.
#[derive(Debug)]
pub struct AssignedTenant<'a> {
    /// As written.
    pub tenant: &'a ModelTenant,
    /// Its position in the file.
    source: &'a SourceObject,
    /// Its pool.
    pub pool: &'a GpuPool,
    /// Its GPU.
    pub assignment: GpuAssignment,
    /// Configuration of its sidecar.
    pub config: SidecarConfig,
}

/// Parses `ALPHA:BETA`.
pub fn parse_force_remap(text: &str) -> Result<(u16, u8), String> {
    let parsed = text.split_once(':').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    parsed.ok_or_else(|| format!("`{text}` is not ALPHA:BETA, such as 3:1"))
}

/// Returns one configuration for each tenant to run, in the order of the files. `weigh` returns the bytes of a
/// tenant's weights.
///
/// # Errors
/// All unsupported fields, and all tenants without a GPU.
pub fn plan(
    objects: &[SourceObject],
    options: &UpOptions,
    weigh: &dyn Fn(&SidecarConfig) -> u64,
) -> Result<LaunchPlan, LoadErrors> {
    let UnsupportedFields { errors: mut refused, mut ineffective } = unsupported_fields(objects);
    let (mut seated, homeless) = assign_tenants(objects, options);
    refused.extend(homeless);
    if !refused.is_empty() {
        return Err(refused.into_iter().collect());
    }
    let shared = shared_gpu::assign_shares(&mut seated, weigh);
    ineffective.extend(shared_gpu_warnings(objects, &seated));
    ineffective.extend(host_tier_warnings(&seated));
    let configs = seated.into_iter().map(|seated| seated.config).collect();
    Ok(LaunchPlan { configs, shared, ineffective })
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
fn shared_gpu_warnings(objects: &[SourceObject], seated: &[AssignedTenant<'_>]) -> Vec<LoadError> {
    let sharing = seated.iter().filter(|seated| seated.config.neighbourhood.is_some());
    let name = |seated: &AssignedTenant<'_>, object: &Object| match object {
        Object::Tenant(_) => seated.config.name.clone(),
        Object::Pool(_) => seated.pool.metadata.name.clone().unwrap_or_default(),
    };
    let shares = |placed: &&SourceObject| {
        let (namespace, object) = (placed.namespace(), &placed.located.object);
        sharing.clone().any(|s| s.config.namespace == namespace && name(s, object) == object.name())
    };
    let alone = objects.iter().filter(|placed| !is_stopped(placed) && !shares(placed));
    alone.flat_map(|placed| support_check::shared_gpu_fields(&placed.located)).collect()
}

/// Returns tenants whose policy needs KV in the host tier and that have none.
fn host_tier_warnings(seated: &[AssignedTenant<'_>]) -> Vec<LoadError> {
    let told = seated.iter().filter_map(|seated| {
        let policy = seated.pool.spec.policy;
        let moves_kv = matches!(policy, Policy::FlexGen | Policy::Pie | Policy::OrbitFlow);
        let problem = format!(
            "{} moves KV to host memory, of which this tenant has none: it is as Recompute",
            policy.as_str()
        );
        let in_vain = moves_kv && seated.config.memory.host_kv_bytes == 0;
        in_vain.then(|| seated.source.field_error("spec.memory.hostKv", &problem))
    });
    told.collect()
}

/// Whether this is a tenant that is not to run.
fn is_stopped(placed: &SourceObject) -> bool {
    match &placed.located.object {
        Object::Tenant(tenant) => tenant.spec.suspend || tenant.spec.replicas == 0,
        Object::Pool(_) => false,
    }
}

/// Assigns every tenant that runs to a GPU, and reports those without one.
fn assign_tenants<'a>(
    objects: &'a [SourceObject],
    options: &UpOptions,
) -> (Vec<AssignedTenant<'a>>, Vec<LoadError>) {
    let mut pools = BTreeMap::new();
    for placed in objects {
        if let Object::Pool(pool) = &placed.located.object {
            pools.insert((placed.namespace(), placed.located.object.name()), pool);
        }
    }
    let mut places = GpuOccupancy::default();
    let (mut seated, mut homeless) = (Vec::new(), Vec::new());
    for placed in objects.iter().filter(|placed| !is_stopped(placed)) {
        let Object::Tenant(tenant) = &placed.located.object else { continue };
        let key = (placed.namespace(), tenant.spec.pool_ref.name.as_str());
        let Some(&pool) = pools.get(&key) else {
            homeless.push(placed.field_error("spec.poolRef.name", "no such pool"));
            continue;
        };
        match places.assign(placed.namespace(), pool, tenant.spec.gpu_group.as_deref()) {
            Ok(place) => {
                let config = configure(placed, tenant, pool, place.gpu.clone(), options, seated.len() as u16);
                seated.push(AssignedTenant { tenant, source: placed, pool, assignment: place, config });
            }
            Err(problem) => homeless.push(placed.field_error("spec.gpuGroup", problem)),
        }
    }
    (seated, homeless)
}

fn configure(
    placed: &SourceObject,
    tenant: &ModelTenant,
    pool: &GpuPool,
    gpu: String,
    options: &UpOptions,
    index: u16,
) -> SidecarConfig {
    let spec = &tenant.spec;
    let source = spec.model.source.file.as_ref().map(|f| f.path.as_str()).unwrap_or_default();
    let (namespace, name) = (placed.namespace().to_owned(), placed.located.object.name().to_owned());
    SidecarConfig {
        served_names: spec.model.served_names.clone(),
        model_path: resolve(&placed.folder, source),
        dtype: (spec.model.dtype != WeightType::Auto).then(|| format!("{:?}", spec.model.dtype)),
        max_model_len: spec.model.max_model_len.map(to_u32),
        gpu: gpu_config(gpu, pool),
        // Set for a shared GPU once all tenants are assigned.
        neighbourhood: None,
        policy: format!("{:?}", pool.spec.policy),
        memory: spec_convert::memory(spec),
        slo: spec_convert::slo(spec),
        order: format!("{:?}", spec.scheduling.order),
        pacing: format!("{:?}", spec.pacing.mode),
        limits: spec_convert::limits(spec),
        api_keys_file: spec.access.api_keys_file.as_deref().map(|path| resolve(&placed.folder, path)),
        listen: listen(options, index),
        // Claimed by the caller once all tenants are valid.
        runtime_dir: PathBuf::new(),
        engine: EngineConfig {
            spawn: Some(options.engine.clone()),
            threads: options.threads,
            hang_timeout_seconds: spec.engine.hang_timeout_seconds.map(to_u32),
            ..EngineConfig::default()
        },
        hibernate_after_seconds: Some(to_u32(spec.idle.hibernate_after_seconds)),
        drain_seconds: to_u32(spec.drain_seconds),
        journal: options.journal.as_ref().map(|folder| folder.join(format!("{namespace}.{name}.journal"))),
        tunables: BTreeMap::default(),
        debug: DebugConfig {
            force_remap: options.force_remap,
            poison: options.poison,
            no_prefix_cache: false,
        },
        namespace,
        name,
    }
}

fn resolve(folder: &Path, path: &str) -> PathBuf {
    let joined = folder.join(path);
    std::path::absolute(&joined).unwrap_or(joined)
}

fn gpu_config(name: String, pool: &GpuPool) -> GpuConfig {
    let host = pool.spec.device.as_ref().and_then(|device| device.host.as_ref());
    let bytes = |get: fn(&HostDevice) -> &Quantity| host.map_or(0, |host| get(host).bytes());
    GpuConfig {
        name,
        memory_bytes: bytes(|host| &host.memory),
        chunk_bytes: bytes(|host| &host.chunk_bytes),
        link_bytes_per_second: host.and_then(|h| h.link_bytes_per_second.as_ref()).map(Quantity::bytes),
        link_to_host_bytes_per_second: None,
        host_memory_bytes: Some(pool.spec.host_memory_per_gpu.bytes()),
    }
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
        neighbour_token_file: None,
    }
}

#[cfg(test)]
mod tests;
