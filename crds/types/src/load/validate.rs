//! What must hold between fields and between objects: the CRD's rules, evaluated natively, and references.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::OnceLock;

use kube::CustomResourceExt;
use serde_json::Value;

use super::problem::did_you_mean;
use super::{ManifestObject, Path, bounds, hint};
use crate::rules::{self, CelRule, OneOf};
use crate::shared::{Resources, TaintEffect, Toleration, TolerationOperator};
use crate::tenant::EngineKind;
use crate::{DEFAULT_NAMESPACE, GpuPool, GpuPoolSpec, HOST_DEVICE_CLASS, ModelTenant, ModelTenantSpec, crd};

/// A rule that an object breaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidObject {
    /// Position of the object in the slice that was validated.
    pub index: usize,
    /// The object, as `KIND NAMESPACE/NAME`.
    pub object: String,
    /// Field that the rule is about.
    pub path: Path,
    /// What must hold; for a CEL rule, the same text that the API server gives.
    pub message: String,
}

impl fmt::Display for InvalidObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.object, self.path, self.message)
    }
}

impl std::error::Error for InvalidObject {}

/// A broken rule, for the loader.
#[derive(Debug)]
pub(super) struct Violation {
    /// Position of the object.
    pub index: usize,
    /// Field that the rule is about.
    pub path: Path,
    /// What must hold.
    pub message: String,
    /// Fields that the rule reads. If one of them is not known, the rule does not apply.
    pub reads: Vec<FieldRead>,
    /// What it is about.
    pub subject: Subject,
    /// Position of an earlier object that the rule is about too.
    pub first: Option<usize>,
}

/// A field that a rule reads.
#[derive(Debug)]
pub(super) struct FieldRead {
    /// Position of its object.
    pub object: usize,
    /// The field.
    pub path: Path,
    /// The rule reads whether the field is there, not what is in it.
    pub is_presence_only: bool,
}

impl FieldRead {
    fn value(object: usize, path: Path) -> Self {
        FieldRead { object, path, is_presence_only: false }
    }

    fn presence(object: usize, path: Path) -> Self {
        FieldRead { object, path, is_presence_only: true }
    }
}

/// What a broken rule is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    /// A value.
    Value,
    /// The pool that a tenant names is missing.
    Pool,
    /// The group that a tenant names is missing in its pool.
    Group,
}

/// Broken rules of one object.
struct Violations {
    index: usize,
    found: Vec<Violation>,
}

impl Violations {
    /// Adds a rule that reads only the field it is about.
    fn push(&mut self, path: Path, message: String) -> &mut Violation {
        let reads = vec![FieldRead::value(self.index, path.clone())];
        let index = self.index;
        self.found.push(Violation { index, path, message, reads, subject: Subject::Value, first: None });
        let last = self.found.len() - 1;
        &mut self.found[last]
    }

    /// Adds the rule unless it holds. `values`: the fields that the rule reads, or a field that holds them all.
    fn require(&mut self, holds: bool, path: &str, values: &[&str], rule: &CelRule) {
        self.require_present(holds, path, (values, &[]), rule);
    }

    /// As [`Self::require`], for a rule that also reads whether the second fields are there.
    fn require_present(&mut self, holds: bool, path: &str, reads: (&[&str], &[&str]), rule: &CelRule) {
        if !holds {
            let index = self.index;
            let values = reads.0.iter().map(|path| FieldRead::value(index, Path::of_keys(path)));
            let presences = reads.1.iter().map(|path| FieldRead::presence(index, Path::of_keys(path)));
            let reads = values.chain(presences).collect();
            self.push(Path::of_keys(path), rule.message.to_owned()).reads = reads;
        }
    }

    fn require_one_of(&mut self, union: &OneOf, value: &Value, path: Path) {
        if union.holds(value) {
            return;
        }
        let index = self.index;
        let discriminator = FieldRead::value(index, path.key(union.discriminator));
        let members = union.members.iter().map(|member| FieldRead::presence(index, path.key(member.field)));
        let reads = members.chain([discriminator]).collect();
        self.push(path, union.message.to_owned()).reads = reads;
    }

    fn require_bounds(&mut self, schema: &Value, value: &Value) {
        let mut found = Vec::new();
        bounds::schema_violations(schema, value, &Path::of_keys("spec"), &mut found);
        for (path, message) in found {
            self.push(path, message);
        }
    }
}

/// Checks what the API server would check (bounds, patterns, CEL rules) and what the operator would (references). All
/// violations are reported, in order of the objects.
///
/// # Errors
/// Every violation.
pub fn validate(objects: &[ManifestObject]) -> Result<(), Vec<InvalidObject>> {
    let named =
        |object: &ManifestObject| format!("{} {}/{}", object.kind(), object.namespace(), object.name());
    let all = violations(objects, DEFAULT_NAMESPACE).into_iter().map(|violation| InvalidObject {
        index: violation.index,
        object: named(&objects[violation.index]),
        path: violation.path,
        message: violation.message,
    });
    let all: Vec<InvalidObject> = all.collect();
    if all.is_empty() { Ok(()) } else { Err(all) }
}

/// Every broken rule, in order of the objects; those that name no namespace are in `namespace`.
pub(super) fn violations(objects: &[ManifestObject], namespace: &str) -> Vec<Violation> {
    let objects = Objects::new(objects, namespace);
    let mut violations = Vec::new();
    for (index, object) in objects.all.iter().enumerate() {
        let mut broken = Violations { index, found: Vec::new() };
        check_name(object, &mut broken);
        objects.check_duplicate(index, &mut broken);
        match object {
            ManifestObject::Pool(pool) => check_pool(&pool.spec, &mut broken),
            ManifestObject::Tenant(tenant) => {
                check_tenant(&tenant.spec, &mut broken);
                objects.check_references(objects.namespace_of(object), &tenant.spec, &mut broken);
            }
        }
        violations.extend(broken.found);
    }
    violations
}

fn check_name(object: &ManifestObject, broken: &mut Violations) {
    let good = |name: &str, most: usize| name.len() <= most && rules::is_dns_label(name);
    let named = good(object.name(), rules::MAX_NAME_LENGTH);
    let (named, rule) = match object {
        ManifestObject::Pool(_) => (named, &rules::OBJECT_NAME),
        ManifestObject::Tenant(_) => (named && rules::is_service_name(object.name()), &rules::TENANT_NAME),
    };
    broken.require(named, "metadata.name", &["metadata.name"], rule);
    if !good(object.namespace(), 63) {
        let message = "metadata.namespace must be a DNS-1123 label of at most 63 characters";
        broken.push(Path::of_keys("metadata.namespace"), message.to_owned());
    }
}

fn check_pool(spec: &GpuPoolSpec, broken: &mut Violations) {
    static SCHEMA: OnceLock<Value> = OnceLock::new();
    let schema = SCHEMA.get_or_init(|| crd::spec_schema(&GpuPool::crd()));
    let value = serde_json::to_value(spec).expect("a spec serialises");
    broken.require_bounds(schema, &value);
    check_device(spec, broken);
    check_tolerations(spec, broken);
    let gpus: i64 = spec.gpus.iter().map(|group| i64::from(group.count)).sum();
    if gpus > rules::MAX_GPUS as i64 {
        let path = Path::of_keys("spec.gpus");
        let counts = (0..=spec.gpus.len()).map(|index| path.index(index).key("count"));
        let reads = counts.map(|path| FieldRead::value(broken.index, path)).collect();
        broken.push(path, rules::POOL_SIZE.message.to_owned()).reads = reads;
    }
    for (index, group) in spec.gpus.iter().enumerate() {
        let path = Path::of_keys("spec.gpus").index(index).key("sharing");
        broken.require_one_of(&rules::SHARING, &value["gpus"][index]["sharing"], path.clone());
        let disordered = |t: &crate::pool::Temporal| t.min_quantum_milliseconds > t.max_quantum_milliseconds;
        if group.sharing.temporal.as_ref().is_some_and(disordered) {
            broken.push(path.key("temporal"), rules::QUANTUM_ORDER.message.to_owned());
        }
    }
}

fn check_device(spec: &GpuPoolSpec, broken: &mut Violations) {
    let host = spec.device.as_ref().and_then(|device| device.host.as_ref());
    let host_class = spec.device_class_name == HOST_DEVICE_CLASS;
    let (path, host_path) = ("spec.device", "spec.device.host");
    let reads: (&[&str], &[&str]) = (&["spec.deviceClassName"], &[host_path]);
    broken.require_present(host_class == host.is_some(), path, reads, &rules::HOST_DEVICE);
    let Some(host) = host else { return };
    let reserve = spec.device.as_ref().and_then(|device| device.context_reserve.as_ref());
    let reads: (&[&str], &[&str]) = (&[], &[host_path, "spec.device.contextReserve"]);
    broken.require_present(reserve.is_none(), path, reads, &rules::HOST_CONTEXTS);
    let chunk = host.chunk_bytes.bytes();
    let tradable = (16..=21).any(|shift| chunk == 1 << shift);
    let field = "spec.device.host.chunkBytes";
    broken.require(tradable, field, &[field], &rules::HOST_CHUNK);
    let (memory, reads) = ("spec.device.host.memory", ["spec.device.host.memory", field]);
    broken.require(host.memory.bytes() >= chunk, memory, &reads, &rules::HOST_MEMORY);
    let link_moves = host.link_bytes_per_second.as_ref().is_none_or(|link| link.bytes() > 0);
    let field = "spec.device.host.linkBytesPerSecond";
    broken.require(link_moves, field, &[field], &rules::HOST_LINK);
}

fn check_tenant(spec: &ModelTenantSpec, broken: &mut Violations) {
    static SCHEMA: OnceLock<Value> = OnceLock::new();
    let schema = SCHEMA.get_or_init(|| crd::spec_schema(&ModelTenant::crd()));
    let value = serde_json::to_value(spec).expect("a spec serialises");
    broken.require_bounds(schema, &value);
    let source = Path::of_keys("spec.model.source");
    broken.require_one_of(&rules::SOURCE, &value["model"]["source"], source);
    let hub = spec.model.source.hugging_face.as_ref();
    let fixed = hub.is_some_and(|hub| is_commit(&hub.revision));
    let hub = "spec.model.source.huggingFace";
    let revision = format!("{hub}.revision");
    let reads: (&[&str], &[&str]) = (&[&revision], &["spec.cache", hub]);
    broken.require_present(spec.cache.is_none() || fixed, "spec.cache", reads, &rules::CACHE);
    let within = match (&spec.memory.guaranteed_kv, &spec.memory.kv_limit) {
        (Some(guaranteed), Some(limit)) => guaranteed.bytes() <= limit.bytes(),
        _ => true,
    };
    let reads = ["spec.memory.guaranteedKv", "spec.memory.kvLimit"];
    broken.require(within, "spec.memory.guaranteedKv", &reads, &rules::KV_WITHIN_LIMIT);
    let later = spec.idle.hibernate_after_seconds > spec.idle.after_seconds;
    let reads = ["spec.idle.afterSeconds", "spec.idle.hibernateAfterSeconds"];
    broken.require(later, "spec.idle.hibernateAfterSeconds", &reads, &rules::HIBERNATE_AFTER_IDLE);
    let one_source = spec.access.api_keys_secret_ref.is_none() || spec.access.api_keys_file.is_none();
    let reads: (&[&str], &[&str]) = (&[], &["spec.access.apiKeysSecretRef", "spec.access.apiKeysFile"]);
    broken.require_present(one_source, "spec.access", reads, &rules::ONE_KEY_SOURCE);
    let own_label = spec.pod_labels.keys().any(|key| rules::is_own_label(key));
    broken.require(!own_label, "spec.podLabels", &["spec.podLabels"], &rules::POD_LABELS);
    let own_annotation = spec.pod_annotations.keys().any(|key| rules::is_own_annotation(key));
    let path = "spec.podAnnotations";
    broken.require(!own_annotation, path, &[path], &rules::POD_ANNOTATIONS);
    check_containers(spec, broken);
}

fn check_containers(spec: &ModelTenantSpec, broken: &mut Violations) {
    let has_image = spec.engine.kind != EngineKind::Vllm || spec.engine.image.is_some();
    let reads = ["spec.engine.kind", "spec.engine.image"];
    broken.require(has_image, "spec.engine", &reads, &rules::ENGINE_IMAGE);
    let watched = spec.engine.kind != EngineKind::Vllm || spec.engine.hang_timeout_seconds.is_none();
    let reads = ["spec.engine.kind", "spec.engine.hangTimeoutSeconds"];
    broken.require(watched, "spec.engine", &reads, &rules::ENGINE_HANG_TIMEOUT);
    let of = [("spec.engine", &spec.engine.resources), ("spec.sidecar", &spec.sidecar.resources)];
    for (path, resources) in of {
        let within = resources.as_ref().is_none_or(Resources::cpu_is_within_its_limit);
        let reads = format!("{path}.resources");
        broken.require(within, path, &[&reads], &rules::CPU_WITHIN_LIMIT);
    }
}

fn check_tolerations(spec: &GpuPoolSpec, broken: &mut Violations) {
    let empty = |text: &Option<String>| text.as_ref().is_none_or(String::is_empty);
    let exists = |one: &Toleration| one.operator == TolerationOperator::Exists;
    let all = |good: &dyn Fn(&Toleration) -> bool| spec.tolerations.iter().all(good);
    let path = "spec.tolerations";
    broken.require(all(&|one| exists(one) || !empty(&one.key)), path, &[path], &rules::TOLERATION_KEY);
    broken.require(all(&|one| !exists(one) || empty(&one.value)), path, &[path], &rules::TOLERATION_VALUE);
    let of_eviction = |one: &Toleration| one.effect == Some(TaintEffect::NoExecute);
    let bounded = all(&|one| one.toleration_seconds.is_none() || of_eviction(one));
    broken.require(bounded, path, &[path], &rules::TOLERATION_SECONDS);
}

fn is_commit(revision: &str) -> bool {
    revision.len() == 40 && revision.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// All objects, for rules between them.
struct Objects<'a> {
    all: &'a [ManifestObject],
    /// Namespace of objects that name none.
    namespace: &'a str,
    /// The first object of each kind, namespace and name.
    first: BTreeMap<(&'static str, &'a str, &'a str), usize>,
}

impl<'a> Objects<'a> {
    fn new(all: &'a [ManifestObject], namespace: &'a str) -> Self {
        let mut objects = Objects { all, namespace, first: BTreeMap::new() };
        for (index, object) in all.iter().enumerate() {
            let key = (object.kind(), objects.namespace_of(object), object.name());
            objects.first.entry(key).or_insert(index);
        }
        objects
    }

    fn namespace_of(&self, object: &'a ManifestObject) -> &'a str {
        object.written_namespace().unwrap_or(self.namespace)
    }

    fn check_duplicate(&self, index: usize, broken: &mut Violations) {
        let object = &self.all[index];
        let first = self.first[&(object.kind(), self.namespace_of(object), object.name())];
        if first == index {
            return;
        }
        let message = format!("another {} has this name", object.kind());
        let violation = broken.push(Path::of_keys("metadata.name"), message);
        violation.reads = [first, index].into_iter().flat_map(names_of).collect();
        violation.first = Some(first);
    }

    fn check_references(&self, namespace: &str, spec: &ModelTenantSpec, broken: &mut Violations) {
        let name = &spec.pool_ref.name;
        let found = self.first.get(&("GpuPool", namespace, name)).map(|index| (*index, &self.all[*index]));
        let Some((index, ManifestObject::Pool(pool))) = found else {
            let pools = || self.first.iter().filter(|((kind, ..), _)| *kind == "GpuPool");
            let here = pools().filter(|((_, of, _), _)| *of == namespace);
            let closest = hint::closest(name, here.map(|((.., name), _)| *name));
            let hint = did_you_mean(closest.as_slice());
            let message = format!("no GpuPool `{name}` in namespace `{namespace}`{hint}");
            let violation = broken.push(Path::of_keys("spec.poolRef.name"), message);
            violation.reads.push(FieldRead::value(violation.index, Path::of_keys("metadata.namespace")));
            // A pool whose name is not known may be the one.
            violation.reads.extend(pools().flat_map(|(_, index)| names_of(*index)));
            violation.subject = Subject::Pool;
            return;
        };
        let Some(group) = &spec.gpu_group else { return };
        let groups: Vec<&str> = pool.spec.gpus.iter().map(|group| group.name.as_str()).collect();
        if !groups.contains(&group.as_str()) {
            let message = format!("GpuPool `{name}` has no group `{group}`; it has {}", super::list(&groups));
            let violation = broken.push(Path::of_keys("spec.gpuGroup"), message);
            let gpus = Path::of_keys("spec.gpus");
            let names = (0..=groups.len()).map(|group| gpus.index(group).key("name"));
            violation.reads.extend(names.map(|path| FieldRead::value(index, path)));
            violation.reads.push(FieldRead::value(violation.index, Path::of_keys("spec.poolRef")));
            violation.subject = Subject::Group;
        }
    }
}

/// The fields that name an object.
fn names_of(index: usize) -> [FieldRead; 2] {
    ["metadata.name", "metadata.namespace"].map(|path| FieldRead::value(index, Path::of_keys(path)))
}
