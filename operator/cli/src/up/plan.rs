//! Objects to sidecar configurations. Pure: what is not built yet is refused here, by name and field.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use sluice_types::load::Object;
use sluice_types::pool::{GpuGroup, HostDevice, Policy};
use sluice_types::tenant::{EngineKind, SourceType, WeightType};
use sluice_types::{GpuPool, HOST_DEVICE_CLASS, ModelTenant, Quantity};
use sluice_wire::config::{
    DebugConfig, EngineConfig, GpuConfig, LimitsConfig, ListenConfig, MemoryConfig, SidecarConfig, SloConfig,
};

/// An object and the folder that its relative paths start from.
#[derive(Clone, Debug)]
pub struct Placed {
    /// The object.
    pub object: Object,
    /// Folder of its file.
    pub folder: PathBuf,
}

/// What the command line decides.
#[derive(Clone, Debug)]
pub struct Options {
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
    /// NaN at every hand-over.
    pub poison: bool,
    /// The engine's binary.
    pub engine: PathBuf,
}

/// Something that the YAML allows and `sluice up` cannot do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind} {namespace}/{name}: {field}: {problem}")]
pub struct NotBuilt {
    kind: &'static str,
    namespace: String,
    name: String,
    field: String,
    problem: String,
}

/// Reads `ALPHA:BETA`.
pub fn parse_forced(text: &str) -> Result<(u16, u8), String> {
    let parsed = text.split_once(':').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    parsed.ok_or_else(|| format!("`{text}` is not ALPHA:BETA, such as 3:1"))
}

fn refuse(object: &Object, field: &str, problem: impl Into<String>) -> NotBuilt {
    NotBuilt {
        kind: object.kind(),
        namespace: object.namespace().to_owned(),
        name: object.name().to_owned(),
        field: field.to_owned(),
        problem: problem.into(),
    }
}

/// One configuration for each tenant that is not suspended, in the order of the files.
///
/// # Errors
/// The first thing that is not built.
pub fn plan(objects: &[Placed], options: &Options) -> Result<Vec<SidecarConfig>, NotBuilt> {
    let mut pools = BTreeMap::new();
    for placed in objects {
        if let Object::Pool(pool) = &placed.object {
            check_pool(&placed.object, pool)?;
            pools.insert((placed.object.namespace(), placed.object.name()), pool);
        }
    }
    let mut taken = BTreeMap::new();
    let mut configs = Vec::new();
    for placed in objects {
        let Object::Tenant(tenant) = &placed.object else { continue };
        if tenant.spec.suspend {
            continue;
        }
        check_tenant(&placed.object, tenant)?;
        let key = (placed.object.namespace(), tenant.spec.pool_ref.name.as_str());
        let pool =
            pools.get(&key).ok_or_else(|| refuse(&placed.object, "spec.poolRef.name", "no such pool"))?;
        let gpu = place(&placed.object, tenant, pool, &mut taken)?;
        configs.push(configure(placed, tenant, pool, gpu, options, configs.len() as u16));
    }
    Ok(configs)
}

fn check_pool(object: &Object, pool: &GpuPool) -> Result<(), NotBuilt> {
    let spec = &pool.spec;
    if spec.device_class_name != HOST_DEVICE_CLASS {
        let problem = format!(
            "`{}` needs the CUDA backend, which is not built yet; use {HOST_DEVICE_CLASS}",
            spec.device_class_name
        );
        return Err(refuse(object, "spec.deviceClassName", problem));
    }
    match spec.policy {
        Policy::Recompute | Policy::Oneiros | Policy::Ellm => Ok(()),
        other => {
            let problem = format!("{other:?} is not built yet; use Recompute, Oneiros or Ellm");
            Err(refuse(object, "spec.policy", problem))
        }
    }
}

fn check_tenant(object: &Object, tenant: &ModelTenant) -> Result<(), NotBuilt> {
    let spec = &tenant.spec;
    let source = &spec.model.source;
    let refusals = [
        (source.kind != SourceType::File, "spec.model.source.type", "only File is built yet"),
        (spec.engine.kind != EngineKind::Native, "spec.engine.kind", "only Native is built yet"),
        (!spec.engine.args.is_empty(), "spec.engine.args", "has no meaning for local processes"),
        (spec.replicas > 1, "spec.replicas", "more than one replica is not built yet for local processes"),
        (
            spec.access.api_keys_secret_ref.is_some(),
            "spec.access.apiKeysSecretRef",
            "needs a cluster; use apiKeysFile",
        ),
    ];
    match refusals.into_iter().find(|(wrong, ..)| *wrong) {
        Some((_, field, problem)) => Err(refuse(object, field, problem)),
        None => Ok(()),
    }
}

/// The GPU that the tenant gets to itself: sharing one is not built yet.
fn place(
    object: &Object,
    tenant: &ModelTenant,
    pool: &GpuPool,
    taken: &mut BTreeMap<String, i32>,
) -> Result<String, NotBuilt> {
    let wanted = tenant.spec.gpu_group.as_deref();
    let fits = |group: &&GpuGroup| wanted.is_none_or(|name| name == group.name);
    let pool_name = pool.metadata.name.as_deref().unwrap_or_default();
    for group in pool.spec.gpus.iter().filter(fits) {
        let used = taken.entry(format!("{}/{pool_name}/{}", object.namespace(), group.name)).or_insert(0);
        if *used < group.count {
            *used += 1;
            return Ok(format!("{pool_name}-{}-{}", group.name, *used - 1));
        }
    }
    let problem =
        "every GPU of the pool that it may use has a tenant; a second tenant on a GPU is not built yet";
    Err(refuse(object, "spec.gpuGroup", problem))
}

fn configure(
    placed: &Placed,
    tenant: &ModelTenant,
    pool: &GpuPool,
    gpu: String,
    options: &Options,
    index: u16,
) -> SidecarConfig {
    let spec = &tenant.spec;
    let source = spec.model.source.file.as_ref().map(|f| f.path.as_str()).unwrap_or_default();
    let (namespace, name) = (placed.object.namespace().to_owned(), placed.object.name().to_owned());
    SidecarConfig {
        served_names: spec.model.served_names.clone(),
        model_path: resolve(&placed.folder, source),
        dtype: (spec.model.dtype != WeightType::Auto).then(|| format!("{:?}", spec.model.dtype)),
        max_model_len: spec.model.max_model_len.map(unsigned),
        gpu: gpu_config(gpu, pool),
        policy: format!("{:?}", pool.spec.policy),
        memory: MemoryConfig {
            guaranteed_kv_bytes: spec.memory.guaranteed_kv.as_ref().map(Quantity::bytes),
            kv_limit_bytes: spec.memory.kv_limit.as_ref().map(Quantity::bytes),
            max_remapped_percent: unsigned(spec.memory.max_remapped_percent),
        },
        slo: SloConfig {
            ttft_milliseconds: unsigned(spec.slo.ttft_milliseconds),
            tbt_milliseconds: unsigned(spec.slo.tbt_milliseconds),
            allowed_miss_permille: unsigned(spec.slo.allowed_miss_permille),
            window_seconds: unsigned(spec.slo.window_seconds),
        },
        order: format!("{:?}", spec.scheduling.order),
        pacing: format!("{:?}", spec.pacing.mode),
        limits: limits(tenant),
        api_keys_file: spec.access.api_keys_file.as_deref().map(|path| resolve(&placed.folder, path)),
        listen: listen(options, index),
        // Claimed by the caller once all tenants are known to be well.
        runtime_dir: PathBuf::new(),
        engine: EngineConfig { spawn: Some(options.engine.clone()), threads: options.threads },
        drain_seconds: unsigned(spec.drain_seconds),
        journal: options.journal.as_ref().map(|folder| folder.join(format!("{namespace}.{name}.journal"))),
        debug: DebugConfig {
            force_remap: options.force_remap,
            poison: options.poison,
            no_prefix_cache: false,
        },
        namespace,
        name,
    }
}

/// Counts of the CRD are signed by Kubernetes' convention and bounded below by the schema.
fn unsigned(value: i32) -> u32 {
    u32::try_from(value).unwrap_or(0)
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
    }
}

fn limits(tenant: &ModelTenant) -> LimitsConfig {
    let limits = &tenant.spec.limits;
    LimitsConfig {
        max_queued_requests: unsigned(limits.max_queued_requests),
        max_streams: unsigned(limits.max_streams),
        max_prompt_tokens: limits.max_prompt_tokens.map(unsigned),
        hold_seconds: unsigned(limits.hold_seconds),
        max_body_bytes: limits.max_body_bytes.bytes(),
        ..LimitsConfig::default()
    }
}

fn listen(options: &Options, index: u16) -> ListenConfig {
    let port = if options.port == 0 { 0 } else { options.port.saturating_add(index) };
    let free = SocketAddr::from(([127, 0, 0, 1], 0));
    ListenConfig { serve: SocketAddr::new(options.host, port), admin: free, probes: free }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POOL: &str = "apiVersion: sluice.dev/v1alpha1\nkind: GpuPool\nmetadata: {name: laptop}\nspec:\n  \
        deviceClassName: host.sluice.dev\n  device: {host: {memory: 96Mi, chunkBytes: 64Ki}}\n  \
        gpus: [{name: chat, count: 1, sharing: {mode: Temporal}}]\n  hostMemoryPerGPU: 1Gi\n  policy: Oneiros\n";
    const TENANT: &str = "---\napiVersion: sluice.dev/v1alpha1\nkind: ModelTenant\nmetadata: {name: NAME}\nspec:\n  \
        poolRef: {name: laptop}\n  model: {source: {type: File, file: {path: models/tiny}}}\n";

    fn planned(yaml: &str) -> Result<Vec<SidecarConfig>, NotBuilt> {
        let objects =
            sluice_types::load::load_valid_str(yaml, "test.yaml").unwrap_or_else(|e| panic!("{e:?}"));
        let place = |object| Placed { object, folder: PathBuf::from("/etc/sluice") };
        let options = Options {
            host: IpAddr::from([127, 0, 0, 1]),
            port: 8000,
            threads: 2,
            journal: None,
            force_remap: None,
            poison: false,
            engine: "sluice-engine".into(),
        };
        plan(&objects.into_iter().map(place).collect::<Vec<_>>(), &options)
    }

    fn tenant(name: &str) -> String {
        TENANT.replace("NAME", name)
    }

    #[test]
    fn a_tenant_gets_a_gpu_a_port_and_an_absolute_model_path() {
        let configs = planned(&format!("{POOL}{}", tenant("one"))).unwrap();
        assert_eq!(configs.len(), 1);
        assert_eq!(configs[0].model_path, Path::new("/etc/sluice/models/tiny"));
        assert_eq!(configs[0].gpu.memory_bytes, 96 << 20);
        assert_eq!((configs[0].listen.serve.port(), configs[0].policy.as_str()), (8000, "Oneiros"));
        assert_eq!(configs[0].gpu.name, "laptop-chat-0");
    }

    #[test]
    fn a_second_tenant_on_a_gpu_is_refused_by_name() {
        let error = planned(&format!("{POOL}{}{}", tenant("one"), tenant("two"))).unwrap_err().to_string();
        assert!(error.starts_with("ModelTenant default/two: spec.gpuGroup: "), "{error}");
    }

    #[test]
    fn a_second_gpu_takes_the_second_tenant_on_the_next_port() {
        let pool = POOL.replace("count: 1", "count: 2");
        let configs = planned(&format!("{pool}{}{}", tenant("one"), tenant("two"))).unwrap();
        assert_eq!(configs[1].gpu.name, "laptop-chat-1");
        assert_eq!(configs[1].listen.serve.port(), 8001);
    }

    #[test]
    fn what_is_not_built_is_refused_with_its_field() {
        for (from, to, field) in [
            ("policy: Oneiros", "policy: Unified", "spec.policy"),
            ("path: models/tiny}}}", "path: models/tiny}}}\n  replicas: 2", "spec.replicas"),
        ] {
            let error =
                planned(&format!("{POOL}{}", tenant("one")).replace(from, to)).unwrap_err().to_string();
            assert!(error.contains(field), "{error}");
        }
    }

    #[test]
    fn a_suspended_tenant_is_not_started() {
        let yaml = format!("{POOL}{}  suspend: true\n", tenant("one"));
        assert_eq!(planned(&yaml).unwrap(), []);
    }
}
