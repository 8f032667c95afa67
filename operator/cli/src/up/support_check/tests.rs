//! Checks every field of both kinds: served, rejected or warned about.

use std::collections::BTreeSet;

use super::*;

const POOL: &str = "apiVersion: sluice.dev/v1alpha1
kind: GpuPool
metadata: {name: laptop}
spec:
  deviceClassName: host.sluice.dev
  device: {host: {memory: 96Mi, chunkBytes: 64Ki}}
  gpus: [{name: chat}]
  hostMemoryPerGPU: 1Gi
  policy: Oneiros
";
const TENANT: &str = "---
apiVersion: sluice.dev/v1alpha1
kind: ModelTenant
metadata: {name: story}
spec:
  poolRef: {name: laptop}
  model: {source: {type: File, file: {path: models/tiny}}}
";
/// Lines behind the last one of either document.
const POOL_LINE: usize = 10;
const TENANT_LINE: usize = 17;

fn unsupported(yaml: &str) -> UnsupportedFields {
    let all = sluice_types::load::load_located_str(yaml, "up.yaml").unwrap_or_else(|e| panic!("{yaml}{e:?}"));
    let mut sum = UnsupportedFields::default();
    for found in all.iter().map(UnsupportedFields::check) {
        sum.errors.extend(found.errors);
        sum.ineffective.extend(found.ineffective);
    }
    sum
}

/// Expected handling of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Handling {
    Refused,
    Warned,
}
use Handling::{Refused, Warned};

/// Unsupported fields of a pool: path, edit that sets the field (a line of its own or a replacement), expected
/// handling.
const POOL_FIELDS: &[(&str, &str, Handling)] = &[
    (
        "spec.gpus[0].sharing.isolated.profile",
        "name: chat=>name: chat, sharing: {mode: Isolated, isolated: {profile: 3g.71gb}}",
        Warned,
    ),
    (
        "spec.gpus[0].sharing.spatial.defaultActiveThreadPercent",
        "name: chat=>name: chat, sharing: {mode: Spatial, spatial: {defaultActiveThreadPercent: 20}}",
        Warned,
    ),
    ("spec.device.selectors", "{host: {=>{selectors: ['true'], host: {", Warned),
    ("spec.updatePolicy", "updatePolicy: Disruptive", Warned),
    ("spec.nodeSelector", "nodeSelector: {disk: fast}", Warned),
    ("spec.tolerations", "tolerations: [{key: gpu}]", Warned),
    ("spec.runtimeClassName", "runtimeClassName: nvidia", Warned),
];
const TENANT_FIELDS: &[(&str, &str, Handling)] = &[
    (
        "spec.model.source.type",
        "{type: File, file: {path: models/tiny}}=>{type: HuggingFace, huggingFace: {repo: a/b}}",
        Refused,
    ),
    ("spec.engine.kind", "engine: {kind: Vllm, image: v}", Refused),
    ("spec.engine.args", "engine: {args: [-v]}", Refused),
    ("spec.engine.env", "engine: {env: [{name: A}]}", Refused),
    ("spec.engine.image", "engine: {image: a/b}", Warned),
    ("spec.engine.resources", "engine: {resources: {limits: {cpu: 1}}}", Warned),
    ("spec.sidecar.resources", "sidecar: {resources: {limits: {cpu: 1}}}", Warned),
    ("spec.replicas", "replicas: 2", Refused),
    ("spec.access.from", "access: {from: [{}]}", Refused),
    ("spec.access.apiKeysSecretRef", "access: {apiKeysSecretRef: {name: a, key: b}}", Refused),
    ("spec.podPriorityClassName", "podPriorityClassName: high", Warned),
    ("spec.imagePullSecrets", "imagePullSecrets: [{name: a}]", Warned),
    ("spec.serviceAccountName", "serviceAccountName: a", Warned),
    ("spec.podLabels", "podLabels: {a: b}", Warned),
    ("spec.podAnnotations", "podAnnotations: {a: b}", Warned),
];
/// Fields that only matter between tenants of one GPU: whether the tenant's, path, edit that sets the field.
const SHARED_GPU_FIELDS: &[(bool, &str, &str)] = &[
    (false, "spec.remap.minResidenceMilliseconds", "remap: {minResidenceMilliseconds: 1}"),
    (false, "spec.remap.victim", "remap: {victim: FixedOrder}"),
    (false, "spec.remap.revokeBoundMilliseconds", "remap: {revokeBoundMilliseconds: 1}"),
    (true, "spec.priority", "priority: 101"),
    (true, "spec.idle.afterSeconds", "idle: {afterSeconds: 1}"),
];
/// Fields that affect a local tenant, or that the loader allows only together with a refused one.
const SUPPORTED_FIELDS: &[&str] = &[
    "spec.engine.hangTimeoutSeconds",
    "spec.deviceClassName",
    "spec.policy",
    "spec.device.host",
    "spec.device.contextReserve",
    "spec.gpus.name",
    "spec.gpus.count",
    "spec.gpus.sharing.mode",
    "spec.gpus.sharing.temporal",
    "spec.hostMemoryPerGPU",
    "spec.poolRef",
    "spec.gpuGroup",
    "spec.model",
    "spec.cache",
    "spec.slo.ttftMilliseconds",
    "spec.slo.tbtMilliseconds",
    "spec.slo.allowedMissPermille",
    "spec.slo.windowSeconds",
    "spec.slo.maxPauseSeconds",
    "spec.scheduling",
    "spec.memory.guaranteedKv",
    "spec.memory.kvLimit",
    "spec.memory.hostKv",
    "spec.idle.hibernateAfterSeconds",
    "spec.memory.maxRemappedPercent",
    "spec.pacing",
    "spec.limits",
    "spec.access.apiKeysFile",
    "spec.suspend",
    "spec.drainSeconds",
];

/// Returns file, line and field of an error.
fn location(said: &LoadError) -> (&str, usize, String) {
    (&said.file, said.line, said.path.to_string())
}

/// Returns the file with one field set, and the line of that field.
fn manifest_with(tenant: bool, edit: &str) -> (String, usize) {
    let (before, document, after) = if tenant { (POOL, TENANT, "") } else { ("", POOL, TENANT) };
    let end = if tenant { TENANT_LINE } else { POOL_LINE };
    let Some((from, to)) = edit.split_once("=>") else {
        return (format!("{before}{document}  {edit}\n{after}"), end);
    };
    assert_eq!(document.matches(from).count(), 1, "{from}");
    let at = format!("{before}{document}").find(from).unwrap();
    let line = format!("{before}{document}")[..at].lines().count();
    (format!("{before}{}{after}", document.replace(from, to)), line)
}

#[test]
fn unsupported_fields_are_reported_with_location() {
    let tables = [(false, POOL_FIELDS), (true, TENANT_FIELDS)];
    for (tenant, &(field, edit, done)) in
        tables.into_iter().flat_map(|(tenant, table)| table.iter().map(move |row| (tenant, row)))
    {
        let (yaml, line) = manifest_with(tenant, edit);
        let found = unsupported(&yaml);
        let (said, silent) = match done {
            Refused => (found.errors, found.ineffective),
            Warned => (found.ineffective, found.errors),
        };
        assert_eq!((said.len(), silent.len()), (1, 0), "{edit}: {said:?} {silent:?}");
        assert_eq!(location(&said[0]), ("up.yaml", line, field.to_owned()), "{edit}");
    }
}

#[test]
fn shared_gpu_fields_warn_on_exclusive_gpu() {
    for &(tenant, field, edit) in SHARED_GPU_FIELDS {
        let (yaml, line) = manifest_with(tenant, edit);
        let found = unsupported(&yaml);
        assert_eq!((found.errors, found.ineffective), (vec![], vec![]), "{edit}");
        let all = sluice_types::load::load_located_str(&yaml, "up.yaml").unwrap();
        let ineffective: Vec<_> = all.iter().flat_map(|located| shared_gpu_fields(located, true)).collect();
        assert_eq!(ineffective.len(), 1, "{edit}: {ineffective:?}");
        assert_eq!(location(&ineffective[0]), ("up.yaml", line, field.to_owned()), "{edit}");
    }
}

#[test]
fn all_sharing_modes_are_supported() {
    for sharing in [
        "{mode: Spatial}",
        "{temporal: {order: Priority}}",
        "{mode: Temporal, temporal: {minQuantumMilliseconds: 1, maxQuantumMilliseconds: 9}}",
    ] {
        let (yaml, _) = manifest_with(false, &format!("name: chat=>name: chat, sharing: {sharing}"));
        let found = unsupported(&yaml);
        assert_eq!((found.errors, found.ineffective), (vec![], vec![]), "{sharing}");
    }
}

#[test]
fn another_device_class_is_refused_by_its_name() {
    let of_class = |class| {
        let yaml = format!("{POOL}{TENANT}").replace("host.sluice.dev", class);
        unsupported(&yaml.replace("  device: {host: {memory: 96Mi, chunkBytes: 64Ki}}\n", "")).errors
    };
    assert!(
        of_class("gpu.other.com")[0]
            .to_string()
            .starts_with("up.yaml:5:3: spec.deviceClassName: `gpu.other.com`")
    );
    assert_eq!(of_class("gpu.nvidia.com"), []);
}

#[test]
fn what_only_a_daemon_or_an_instance_does_is_ineffective_on_cuda_devices() {
    for (sharing, words) in [
        (
            "{mode: Isolated, isolated: {profile: 3g.71gb}}",
            "isolated.profile: sluice up makes no MIG instances",
        ),
        ("{mode: Spatial}", "sharing.mode: sluice up starts no MPS daemon: tenants"),
        (
            "{mode: Spatial, spatial: {defaultActiveThreadPercent: 20}}",
            "spatial.defaultActiveThreadPercent: sluice up starts no MPS daemon, without",
        ),
    ] {
        let (yaml, _) = manifest_with(false, &format!("name: chat=>name: chat, sharing: {sharing}"));
        let yaml = yaml.replace("host.sluice.dev", "gpu.nvidia.com");
        let found = unsupported(&yaml.replace("  device: {host: {memory: 96Mi, chunkBytes: 64Ki}}\n", ""));
        let warned = found.ineffective.iter().any(|warning| warning.to_string().contains(words));
        assert!(found.errors.is_empty() && warned, "{found:?}");
    }
}

#[test]
fn explicit_defaults_produce_no_warning() {
    let written = "  priority: 100\n  replicas: 1\n  idle: {afterSeconds: 30, hibernateAfterSeconds: 600}\n  \
        memory: {hostKv: 0}\n  slo: {maxPauseSeconds: 10}\n";
    let pool = POOL.replace("name: chat", "name: chat, sharing: {mode: Temporal, temporal: {}}");
    for yaml in [format!("{POOL}{TENANT}"), format!("{pool}{TENANT}{written}")] {
        let found = unsupported(&yaml);
        assert_eq!((found.errors, found.ineffective), (vec![], vec![]));
    }
}

#[test]
fn examples_use_only_supported_fields() {
    for name in ["quickstart.yaml", "two-gpus.yaml", "three-tenants.yaml", "spatial.yaml"] {
        let path = format!("{}/../../examples/{name}", env!("CARGO_MANIFEST_DIR"));
        let found = unsupported(&std::fs::read_to_string(path).unwrap());
        assert_eq!((found.errors, found.ineffective), (vec![], vec![]), "{name}");
    }
}

/// Lists the paths in `schema`, as deep as the tables go.
fn fields(schema: &serde_json::Value, path: &str, known: &BTreeSet<String>, missing: &mut Vec<String>) {
    if known.contains(path) {
        return;
    }
    let schema = if schema["items"].is_object() { &schema["items"] } else { schema };
    match schema["properties"].as_object() {
        Some(properties) => {
            properties
                .iter()
                .for_each(|(key, below)| fields(below, &format!("{path}.{key}"), known, missing));
        }
        None => missing.push(path.to_owned()),
    }
}

#[test]
fn every_field_of_both_kinds_is_in_one_of_the_tables() {
    let rows = POOL_FIELDS.iter().chain(TENANT_FIELDS).map(|(field, ..)| field.replace("[0]", ""));
    let rows = rows.chain(SHARED_GPU_FIELDS.iter().map(|(_, field, _)| (*field).to_owned()));
    let known: BTreeSet<String> =
        rows.chain(SUPPORTED_FIELDS.iter().map(|field| (*field).to_owned())).collect();
    let mut missing = Vec::new();
    for schema in sluice_types::crd::spec_schemas() {
        fields(&schema, "spec", &known, &mut missing);
    }
    assert_eq!(missing, [] as [String; 0], "a field that is not served, refused or warned about");
}
