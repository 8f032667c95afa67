//! A sidecar's refusal in the words of whoever wrote the YAML: object, field and line instead of fields of a
//! configuration that nobody has seen.

use sluice_types::load::{Located, Object, Path};
use sluice_wire::refusal::Refusal;

use super::plan::Placed;

/// Where a field of a sidecar's configuration comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// The GpuPool, by the path there.
    Pool(&'static str),
    /// The ModelTenant, by the path there.
    Tenant(&'static str),
    /// The command line, and what to do.
    Option(&'static str),
}

use Origin::{Option as Flag, Pool, Tenant};

const ORIGINS: [(&str, Origin); 18] = [
    ("gpu.memory_bytes", Pool("spec.device.host.memory")),
    ("gpu.chunk_bytes", Pool("spec.device.host.chunkBytes")),
    ("gpu.host_memory_bytes", Pool("spec.hostMemoryPerGPU")),
    ("neighbourhood.share_bytes", Pool("spec.device.host.memory")),
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
    ("debug.force_remap", Flag("it comes from --force-remap")),
];

/// The objects that a sidecar's configuration was made of.
#[derive(Clone, Debug)]
pub struct Blame {
    tenant: Located,
    pool: Option<Located>,
}

impl Blame {
    /// Of the tenant `namespace`/`name`; `None` when `objects` do not hold it.
    pub fn of(objects: &[Placed], namespace: &str, name: &str) -> Option<Blame> {
        let find = |kind: &str, name: &str| {
            let mut located = objects.iter().map(|placed| &placed.located);
            located
                .find(|l| (l.object.kind(), l.object.namespace(), l.object.name()) == (kind, namespace, name))
                .cloned()
        };
        let tenant = find("ModelTenant", name)?;
        let pool = match &tenant.object {
            Object::Tenant(object) => find("GpuPool", &object.spec.pool_ref.name),
            Object::Pool(_) => None,
        };
        Some(Blame { tenant, pool })
    }

    /// The refusal, with a line for each field that the user wrote or could write.
    pub fn words(&self, refusal: &Refusal) -> String {
        let mut text = "cannot be served".to_owned();
        let mut problem = refusal.problem.as_str();
        for field in &refusal.fields {
            let Some(origin) = ORIGINS.iter().find(|(name, _)| name == field).map(|(_, origin)| *origin)
            else {
                continue;
            };
            match origin {
                Pool(path) => text.extend(self.pool.as_ref().map(|pool| line(pool, path, problem))),
                Tenant(path) => text.push_str(&line(&self.tenant, path, problem)),
                Flag(advice) => return format!("{problem}; {advice}"),
            }
            problem = "or this";
        }
        match problem == refusal.problem {
            true => format!("{text}: {problem}"),
            false => text,
        }
    }
}

/// `FILE:LINE: KIND/NAME PATH: PROBLEM` on a new line.
fn line(located: &Located, path: &str, problem: &str) -> String {
    let error = located.error(Path::of_keys(path), problem);
    let (kind, name) = (located.object.kind(), located.object.name());
    format!("\n{}:{}: {kind}/{name} {path}: {}", error.file, error.line, error.problem)
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

    fn blame() -> Blame {
        let objects = sluice_types::load::load_located_str(YAML, "pool.yaml");
        let placed = objects
            .unwrap_or_else(|errors| panic!("{errors:?}"))
            .into_iter()
            .map(|located| Placed { located, folder: PathBuf::new() });
        Blame::of(&placed.collect::<Vec<_>>(), "default", "story").unwrap()
    }

    fn words(fields: &[&str]) -> String {
        let fields = fields.iter().map(ToString::to_string).collect();
        blame().words(&Refusal { fields, problem: "too small".into() })
    }

    #[test]
    fn every_field_of_the_table_is_found_on_its_line() {
        for (field, origin) in ORIGINS {
            let (object, path) = match origin {
                Pool(path) => ("GpuPool/gh200", path),
                Tenant(path) => ("ModelTenant/story", path),
                Flag(_) => continue,
            };
            let key = format!("{}:", path.rsplit('.').next().unwrap());
            // The first one: `memory:` stands in both objects, and the tenant's is in no row.
            let written = YAML.lines().position(|line| line.trim_start().starts_with(&key)).unwrap() + 1;
            let expected = format!("cannot be served\npool.yaml:{written}: {object} {path}: too small");
            assert_eq!(words(&[field]), expected);
        }
    }

    #[test]
    fn more_fields_than_one_are_alternatives() {
        let expected = "cannot be served\n\
            pool.yaml:8: GpuPool/gh200 spec.device.host.memory: too small\n\
            pool.yaml:25: ModelTenant/story spec.model.maxModelLen: or this";
        assert_eq!(words(&["gpu.memory_bytes", "max_model_len"]), expected);
    }

    #[test]
    fn what_nobody_wrote_is_said_without_a_line() {
        assert_eq!(words(&[]), "cannot be served: too small");
        assert_eq!(words(&["engine.spawn"]), "cannot be served: too small");
        assert!(words(&["listen.serve"]).starts_with("too small; choose another port with --port"));
    }
}
