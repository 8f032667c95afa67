//! Translates a sidecar's refusal for the author of the YAML: object, field and line instead of fields of a
//! generated configuration.

use sluice_plan::placement::{UnfitReason, UnplacedReason};
use sluice_types::GpuPoolSpec;
use sluice_types::conditions::Reason;
use sluice_types::load::{ManifestObject, Path, SpannedObject};
use sluice_wire::config_rejection::ConfigRejection;

use super::support_check::is_cuda;
use crate::manifests::SourceObject;

/// Origin of a field of a sidecar's configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FieldOrigin {
    /// A field of the GpuPool, by its path.
    Pool(&'static str),
    /// A field of the ModelTenant, by its path.
    Tenant(&'static str),
    /// An option of the command line, with advice.
    Option(&'static str),
}

use FieldOrigin::{Option as Flag, Pool, Tenant};

const FIELD_ORIGINS: [(&str, FieldOrigin); 18] = [
    ("gpu.memory_bytes", Pool("spec.device.host.memory")),
    ("gpu.chunk_bytes", Pool("spec.device.host.chunkBytes")),
    ("gpu.host_memory_bytes", Pool("spec.hostMemoryPerGPU")),
    ("gpu_ledger.share_bytes", Pool("spec.device.host.memory")),
    ("policy", Pool("spec.policy")),
    ("model_path", Tenant("spec.model.source.file.path")),
    ("dtype", Tenant("spec.model.dtype")),
    ("max_model_len", Tenant("spec.model.maxModelLen")),
    ("memory.host_kv_bytes", Tenant("spec.memory.hostKv")),
    ("memory.guaranteed_kv_bytes", Tenant("spec.memory.guaranteedKv")),
    ("memory.kv_limit_bytes", Tenant("spec.memory.kvLimit")),
    ("memory.max_remapped_percent", Tenant("spec.memory.maxRemappedPercent")),
    ("order", Tenant("spec.scheduling.order")),
    ("pacing", Tenant("spec.pacing.mode")),
    ("limits", Tenant("spec.limits")),
    ("api_keys_file", Tenant("spec.access.apiKeysFile")),
    ("listen.serve", Flag("choose another port with --port (0 = a free one) or another address with --host")),
    ("debug.force_remap", Flag("the value is from --force-remap")),
];

/// Returns the fields of a sidecar's configuration whose change could give a slot a GPU, separated by commas; empty =
/// no field could.
pub fn unplaced_fields(why: &UnplacedReason) -> &'static str {
    match why {
        UnplacedReason::ModelLargerThanGpu { .. }
        | UnplacedReason::NoCapacity { misfit: UnfitReason::DeviceMemory(_), .. } => {
            ConfigRejection::OF_FLOOR
        }
        UnplacedReason::NoCapacity { misfit: UnfitReason::HostMemory(_), .. } => "gpu.host_memory_bytes",
        UnplacedReason::ModelNotInspected
        | UnplacedReason::GroupNotFound { .. }
        | UnplacedReason::NoCapacity { .. } => "",
    }
}

/// Returns the fields of a sidecar's configuration that a tenant is rejected for, separated by commas; empty = the
/// message names them.
pub fn rejection_fields(reason: Reason) -> &'static str {
    match reason {
        Reason::ChunkTooSmall => "gpu.chunk_bytes",
        Reason::ContextDoesNotFit => "memory.kv_limit_bytes, max_model_len",
        _ => "",
    }
}

/// The objects from which a sidecar's configuration was built.
#[derive(Clone, Debug)]
pub struct FieldLocator {
    tenant: SpannedObject,
    pool: Option<SpannedObject>,
}

impl FieldLocator {
    /// Finds the objects of the tenant `namespace`/`name`; `None` = `objects` does not contain it.
    pub fn from_objects(objects: &[SourceObject], namespace: &str, name: &str) -> Option<FieldLocator> {
        let find = |kind: &str, name: &str| {
            let mut located = objects.iter().map(|placed| &placed.located);
            located
                .find(|l| (l.object.kind(), l.object.namespace(), l.object.name()) == (kind, namespace, name))
                .cloned()
        };
        let tenant = find("ModelTenant", name)?;
        let pool = match &tenant.object {
            ManifestObject::Tenant(object) => find("GpuPool", &object.spec.pool_ref.name),
            ManifestObject::Pool(_) => None,
        };
        Some(FieldLocator::new(tenant, pool))
    }

    /// Creates a locator for a tenant and its pool; `None` = the pool is in no file.
    pub fn new(tenant: SpannedObject, pool: Option<SpannedObject>) -> FieldLocator {
        FieldLocator { tenant, pool }
    }

    /// Describes the rejection, with a line for each field that the user wrote or could write.
    pub fn describe(&self, refusal: &ConfigRejection) -> String {
        let flags = refusal.fields.iter().filter_map(|field| origin(field));
        if let Some(advice) = flags.into_iter().find_map(FieldOrigin::advice) {
            return format!("{}; {advice}", refusal.problem);
        }
        match self.lines(refusal).as_slice() {
            [] => format!("cannot be served: {}", refusal.problem),
            lines => format!("cannot be served\n{}", lines.join("\n")),
        }
    }

    /// Returns a line for each field of the YAML that the rejection is about and whose change could help.
    pub fn lines(&self, refusal: &ConfigRejection) -> Vec<String> {
        let helps = refusal.fields.iter().filter(|field| self.is_relevant(field));
        let written = helps.filter_map(|field| match origin(field)? {
            // The device decides its size.
            Pool(path) if path.starts_with("spec.device.host") && self.is_cuda_pool() => {
                Some((self.pool.as_ref()?, "spec.deviceClassName"))
            }
            Pool(path) => Some((self.pool.as_ref()?, path)),
            Tenant(path) => Some((&self.tenant, path)),
            Flag(_) => None,
        });
        let problems = std::iter::once(refusal.problem.as_str()).chain(std::iter::repeat("or this"));
        written.zip(problems).map(|((located, path), problem)| line(located, path, problem)).collect()
    }

    /// Returns `FILE:LINE` of the tenant's field whose path is the prefix of `message`, else of the tenant.
    pub fn location_of(&self, message: &str) -> String {
        let field =
            message.split_once(": ").map(|(field, _)| field).filter(|field| field.starts_with("spec."));
        let error = self.tenant.error(field.map(Path::of_keys).unwrap_or_default(), "");
        format!("{}:{}", error.file, error.line)
    }

    fn pool_spec(&self) -> Option<&GpuPoolSpec> {
        match &self.pool.as_ref()?.object {
            ManifestObject::Pool(pool) => Some(&pool.spec),
            ManifestObject::Tenant(_) => None,
        }
    }

    fn is_cuda_pool(&self) -> bool {
        self.pool_spec().is_some_and(is_cuda)
    }

    /// Whether another value of the field could resolve the rejection. An absent field, or one without effect, cannot.
    fn is_relevant(&self, field: &str) -> bool {
        let spec = match &self.tenant.object {
            ManifestObject::Tenant(tenant) => &tenant.spec,
            ManifestObject::Pool(_) => return true,
        };
        let pool = self.pool_spec();
        match field {
            "gpu.memory_bytes" => {
                let host = pool.and_then(|pool| pool.device.as_ref()).is_some_and(|d| d.host.is_some());
                host || self.is_cuda_pool()
            }
            "memory.guaranteed_kv_bytes" => spec.memory.guaranteed_kv.is_some(),
            "memory.max_remapped_percent" => {
                let remaps = pool.is_some_and(|pool| pool.policy.reclaims_weights());
                remaps && spec.memory.max_remapped_percent < 100
            }
            _ => true,
        }
    }
}

/// Returns the origin of a field of a sidecar's configuration; `None` = it has none in the YAML.
fn origin(field: &str) -> Option<FieldOrigin> {
    FIELD_ORIGINS.iter().find(|(name, _)| *name == field).map(|(_, origin)| *origin)
}

impl FieldOrigin {
    /// Returns advice if the origin is not a field of the YAML.
    fn advice(self) -> Option<&'static str> {
        match self {
            Flag(advice) => Some(advice),
            Pool(_) | Tenant(_) => None,
        }
    }
}

/// `FILE:LINE: KIND/NAME PATH: PROBLEM`.
fn line(located: &SpannedObject, path: &str, problem: &str) -> String {
    let error = located.error(Path::of_keys(path), problem);
    let (kind, name) = (located.object.kind(), located.object.name());
    format!("{}:{}: {kind}/{name} {path}: {}", error.file, error.line, error.problem)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// Every field of the table, each on a line of its own.
    const YAML: &str = "\
apiVersion: sluice.dev/v1alpha1
kind: GpuPool
metadata: {name: gh200}
spec:
  deviceClassName: host.sluice.dev
  device:
    host:
      memory: 96Mi
      chunkBytes: 64Ki
  hostMemoryPerGPU: 400Mi
  gpus: [{name: one}]
  policy: Oneiros
---
apiVersion: sluice.dev/v1alpha1
kind: ModelTenant
metadata: {name: story}
spec:
  poolRef: {name: gh200}
  model:
    source:
      type: File
      file:
        path: model
    dtype: Float32
    maxModelLen: 64
  memory:
    guaranteedKv: 1Mi
    kvLimit: 2Mi
    hostKv: 1Mi
    maxRemappedPercent: 50
  scheduling:
    order: FirstCome
  pacing:
    mode: Immediate
  limits:
    maxStreams: 5
  access:
    apiKeysFile: keys
";

    fn locator(yaml: &str) -> FieldLocator {
        let objects = sluice_types::load::load_located_str(yaml, "pool.yaml");
        let placed = objects
            .unwrap_or_else(|errors| panic!("{errors:?}"))
            .into_iter()
            .map(|located| SourceObject { located, folder: PathBuf::new() });
        FieldLocator::from_objects(&placed.collect::<Vec<_>>(), "default", "story").unwrap()
    }

    fn describe(fields: &[&str]) -> String {
        let fields = fields.iter().map(ToString::to_string).collect();
        locator(YAML).describe(&ConfigRejection { fields, problem: "too small".into() })
    }

    #[test]
    fn each_listed_field_is_located() {
        for (field, origin) in FIELD_ORIGINS {
            let (object, path) = match origin {
                Pool(path) => ("GpuPool/gh200", path),
                Tenant(path) => ("ModelTenant/story", path),
                Flag(_) => continue,
            };
            let key = format!("{}:", path.rsplit('.').next().unwrap());
            // The first occurrence: `memory:` is in both objects, and the table has no row for the tenant's.
            let written = YAML.lines().position(|line| line.trim_start().starts_with(&key)).unwrap() + 1;
            let expected = format!("cannot be served\npool.yaml:{written}: {object} {path}: too small");
            assert_eq!(describe(&[field]), expected);
        }
    }

    #[test]
    fn more_fields_than_one_are_alternatives() {
        let expected = "cannot be served\n\
            pool.yaml:8: GpuPool/gh200 spec.device.host.memory: too small\n\
            pool.yaml:25: ModelTenant/story spec.model.maxModelLen: or this";
        assert_eq!(describe(&["gpu.memory_bytes", "max_model_len"]), expected);
    }

    #[test]
    fn irrelevant_field_is_not_suggested() {
        let floor =
            |yaml: &str| locator(yaml).lines(&ConfigRejection::new(ConfigRejection::OF_FLOOR, "too small"));
        let all = [
            "pool.yaml:8: GpuPool/gh200 spec.device.host.memory: too small",
            "pool.yaml:25: ModelTenant/story spec.model.maxModelLen: or this",
            "pool.yaml:27: ModelTenant/story spec.memory.guaranteedKv: or this",
            "pool.yaml:30: ModelTenant/story spec.memory.maxRemappedPercent: or this",
        ];
        assert_eq!(floor(YAML), all);
        // Nothing is guaranteed beyond one sequence, and the policy remaps nothing.
        let plain =
            YAML.replace("    guaranteedKv: 1Mi\n", "").replace("policy: Oneiros", "policy: Recompute");
        assert_eq!(floor(&plain), all[..2]);
    }

    #[test]
    fn the_memory_of_a_cuda_device_is_a_matter_of_the_device() {
        let host = "  device:\n    host:\n      memory: 96Mi\n      chunkBytes: 64Ki\n";
        let yaml = YAML.replace(host, "").replace("host.sluice.dev", "gpu.nvidia.com");
        let lines = locator(&yaml).lines(&ConfigRejection::new(ConfigRejection::OF_FLOOR, "too small"));
        assert_eq!(lines[0], "pool.yaml:5: GpuPool/gh200 spec.deviceClassName: too small");
    }

    #[test]
    fn unwritten_field_is_reported_without_line() {
        assert_eq!(describe(&[]), "cannot be served: too small");
        assert_eq!(describe(&["engine.spawn"]), "cannot be served: too small");
        assert!(describe(&["listen.serve"]).starts_with("too small; choose another port with --port"));
    }
}
