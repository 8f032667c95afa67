//! Files that load: defaults, both kinds, many documents, spellings of values.

use sluice_types::load::{ManifestObject, load_str, load_valid_str};
use sluice_types::pool::{Policy, SharingMode, Temporal, UpdatePolicy};
use sluice_types::tenant::{Idle, Limits, PacingMode, Slo, SourceType, TenantMemory, WeightType};
use sluice_types::{GpuPool, ModelTenant, Quantity};

pub const POOL: &str = "\
apiVersion: sluice.dev/v1alpha1
kind: GpuPool
metadata:
  name: local
spec:
  deviceClassName: host.sluice.dev
  device:
    host:
      memory: 96Mi
  hostMemoryPerGPU: 400Mi
  gpus:
  - name: chat
";

pub const TENANT: &str = "\
apiVersion: sluice.dev/v1alpha1
kind: ModelTenant
metadata:
  name: story
spec:
  poolRef:
    name: local
  model:
    source:
      type: File
      file:
        path: models/story
";

pub fn both() -> String {
    format!("{POOL}---\n{TENANT}")
}

pub fn pool(text: &str) -> GpuPool {
    match load_str(text, "pool.yaml").unwrap().remove(0) {
        ManifestObject::Pool(pool) => pool,
        ManifestObject::Tenant(_) => panic!("a tenant"),
    }
}

pub fn tenant(text: &str) -> ModelTenant {
    match load_str(text, "tenant.yaml").unwrap().remove(0) {
        ManifestObject::Tenant(tenant) => tenant,
        ManifestObject::Pool(_) => panic!("a pool"),
    }
}

#[test]
fn a_small_pool_gets_every_default() {
    let spec = pool(POOL).spec;
    let host = spec.device.unwrap().host.unwrap();
    assert_eq!((host.memory.bytes(), host.chunk_bytes.bytes()), (96 << 20, 64 << 10));
    assert_eq!(host.link_bytes_per_second, None);
    assert_eq!((spec.gpus[0].count, spec.gpus[0].sharing.mode), (1, SharingMode::Temporal));
    assert_eq!((spec.policy, spec.update_policy), (Policy::Unified, UpdatePolicy::WhenEmpty));
    assert_eq!(spec.remap.min_residence_milliseconds, 500);
}

#[test]
fn a_small_tenant_gets_every_default() {
    let spec = tenant(TENANT).spec;
    assert_eq!((spec.priority, spec.replicas, spec.suspend, spec.drain_seconds), (100, 1, false, 30));
    assert_eq!((spec.slo, spec.idle, spec.limits), (Slo::default(), Idle::default(), Limits::default()));
    assert_eq!(spec.memory, TenantMemory::default());
    assert_eq!((spec.pacing.mode, spec.model.dtype), (PacingMode::TokenDeposit, WeightType::Auto));
    assert_eq!(spec.model.source.kind, SourceType::File);
    assert_eq!(spec.model.source.file.unwrap().path, "models/story");
}

#[test]
fn a_part_of_a_struct_leaves_its_other_fields_at_their_defaults() {
    let spec =
        tenant(&format!("{TENANT}  slo: {{tbtMilliseconds: 20}}\n  memory: {{kvLimit: 1.5Gi}}\n")).spec;
    assert_eq!(spec.slo, Slo { tbt_milliseconds: 20, ..Slo::default() });
    assert_eq!(spec.memory.kv_limit.unwrap().bytes(), 3 << 29);
    assert_eq!(spec.memory.max_remapped_percent, 60);
    let text =
        POOL.replace("- name: chat", "- name: chat\n    sharing: {temporal: {maxQuantumMilliseconds: 9}}");
    let temporal = pool(&text).spec.gpus.remove(0).sharing.temporal.unwrap();
    assert_eq!(temporal, Temporal { max_quantum_milliseconds: 9, ..Temporal::default() });
}

/// What the API server would store: the schema's defaults put into the written spec.
fn defaulted(schema: &serde_json::Value, value: &mut serde_json::Value) {
    match value {
        serde_json::Value::Object(fields) => {
            for (name, property) in schema["properties"].as_object().into_iter().flatten() {
                if !property["default"].is_null() {
                    fields.entry(name).or_insert_with(|| property["default"].clone());
                }
                if let Some(value) = fields.get_mut(name) {
                    defaulted(property, value);
                }
            }
        }
        serde_json::Value::Array(items) => {
            items.iter_mut().for_each(|item| defaulted(&schema["items"], item))
        }
        _ => {}
    }
}

#[test]
fn defaults_are_the_same_as_those_of_the_api_server() {
    for (text, file) in [(POOL, "gpupools"), (TENANT, "modeltenants")] {
        let (_, crd) = sluice_types::crd_yaml().into_iter().find(|(name, _)| name.contains(file)).unwrap();
        let crd: serde_json::Value = serde_yaml::from_str(&crd).unwrap();
        let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
        let mut written: serde_json::Value = serde_yaml::from_str(text).unwrap();
        defaulted(schema, &mut written["spec"]);
        let read = match load_str(text, "f.yaml").unwrap().remove(0) {
            ManifestObject::Pool(pool) => serde_json::to_value(pool.spec).unwrap(),
            ManifestObject::Tenant(tenant) => serde_json::to_value(tenant.spec).unwrap(),
        };
        assert_eq!(read, written["spec"]);
    }
}

#[test]
fn documents_keep_order_and_empty_ones_are_skipped() {
    let text = format!("# a comment\n---\n{POOL}---\n# nothing\n---\n{TENANT}---\n");
    let objects = load_valid_str(&text, "f.yaml").unwrap();
    let named: Vec<_> = objects.iter().map(|o| (o.kind(), o.namespace(), o.name())).collect();
    assert_eq!(named, [("GpuPool", "default", "local"), ("ModelTenant", "default", "story")]);
}

#[test]
fn json_is_yaml_too() {
    let json = serde_json::to_string_pretty(&pool(POOL)).unwrap();
    assert_eq!(pool(&json), pool(POOL));
}

#[test]
fn labels_and_annotations_are_kept() {
    let text = POOL.replace("  name: local", "  name: local\n  labels: {a/b: \"1\"}\n  annotations: {c: d}");
    let metadata = pool(&text).metadata;
    assert_eq!(metadata.labels.unwrap()["a/b"], "1");
    assert_eq!(metadata.annotations.unwrap()["c"], "d");
}

#[test]
fn a_quantity_may_be_a_bare_integer_and_quoted_words_stay_words() {
    let spec = pool(&POOL.replace("96Mi", "1048576")).spec;
    assert_eq!(spec.device.unwrap().host.unwrap().memory, "1048576".parse::<Quantity>().unwrap());
    let env = "  engine: {env: [{name: A, value: \"on\"}, {name: B, value: '012'}]}\n";
    let spec = tenant(&format!("{TENANT}{env}")).spec;
    assert_eq!(spec.engine.env.iter().map(|e| e.value.as_str()).collect::<Vec<_>>(), ["on", "012"]);
}

#[test]
fn every_field_of_the_design_is_read() {
    let text = "\
apiVersion: sluice.dev/v1alpha1
kind: GpuPool
metadata: {name: gh200, namespace: models}
spec:
  deviceClassName: gpu.nvidia.com
  device: {selectors: ['device.attributes[\"gpu.nvidia.com\"].productName == \"GH200\"']}
  gpus:
  - name: chat
    count: 2
    sharing: {mode: Temporal, temporal: {order: RoundRobin, minQuantumMilliseconds: 5, maxQuantumMilliseconds: 50}}
  - {name: agents, count: 1, sharing: {mode: Spatial, spatial: {defaultActiveThreadPercent: 50}}}
  - {name: alone, sharing: {mode: Isolated, isolated: {profile: 3g.71gb}}}
  hostMemoryPerGPU: 400Gi
  policy: Unified
  remap: {victim: MostRecentlyUsed, minResidenceMilliseconds: 500, revokeBoundMilliseconds: 200}
  updatePolicy: Disruptive
  nodeSelector: {pool: gpu}
  tolerations: [{key: gpu, operator: Exists, effect: NoSchedule}]
  runtimeClassName: nvidia
---
apiVersion: sluice.dev/v1alpha1
kind: ModelTenant
metadata: {name: llama, namespace: models}
spec:
  poolRef: {name: gh200}
  gpuGroup: chat
  model:
    source:
      type: HuggingFace
      huggingFace:
        repo: a/b
        revision: main
        endpoint: https://huggingface.co
        tokenSecretRef: {name: hub, key: token}
    servedNames: [llama]
    dtype: Auto
    maxModelLen: 8192
  priority: 100
  podPriorityClassName: high
  slo: {ttftMilliseconds: 2000, tbtMilliseconds: 50, allowedMissPermille: 10, windowSeconds: 60, maxPauseSeconds: 10}
  scheduling: {order: ShortestRemaining}
  memory: {guaranteedKv: 4Gi, kvLimit: 40Gi, hostKv: 8Gi, maxRemappedPercent: 60}
  pacing: {mode: Immediate}
  idle: {afterSeconds: 30, hibernateAfterSeconds: 600}
  engine:
    kind: Vllm
    image: vllm/vllm-openai:v1
    args: [--enforce-eager]
    env: [{name: A, value: b}]
    resources: {requests: {cpu: 500m, memory: 2Gi}, limits: {memory: 2Gi}}
  sidecar: {resources: {limits: {cpu: 2}}}
  limits: {maxQueuedRequests: 10, maxStreams: 20, maxPromptTokens: 4096, holdSeconds: 5, maxBodyBytes: 1Mi}
  access: {from: [{podSelector: {matchLabels: {app: ui}}}], apiKeysSecretRef: {name: keys, key: keys}}
  replicas: 2
  suspend: true
  drainSeconds: 60
  imagePullSecrets: [{name: pull}]
  serviceAccountName: models
  podLabels: {team: a}
  podAnnotations: {note: b}
";
    let objects = load_valid_str(text, "f.yaml").unwrap();
    let [ManifestObject::Pool(pool), ManifestObject::Tenant(tenant)] = &objects[..] else {
        panic!("two kinds")
    };
    assert_eq!(pool.spec.gpus[2].sharing.isolated.as_ref().unwrap().profile, "3g.71gb");
    let cpu = tenant.spec.sidecar.resources.clone().unwrap().limits.unwrap().cpu.unwrap();
    assert_eq!(cpu.millis(), 2000);
    assert!(tenant.spec.suspend);
}

#[test]
fn every_source_is_read() {
    let tails = [
        ("PersistentVolumeClaim", "persistentVolumeClaim: {claimName: models, path: llama}"),
        ("Image", "image: {reference: registry/model@sha256:0}"),
        ("S3", "s3: {bucket: models, prefix: a/, credentialsSecretRef: {name: s3}}"),
        ("HuggingFace", "huggingFace: {repo: a/b}"),
    ];
    for (kind, member) in tails {
        let text = both()
            .replace("type: File", &format!("type: {kind}"))
            .replace("file:\n        path: models/story", member);
        let objects = load_valid_str(&text, "f.yaml").unwrap();
        let ManifestObject::Tenant(tenant) = &objects[1] else { panic!("a tenant") };
        assert_eq!(tenant.spec.model.source.kind.as_str(), kind);
    }
}
