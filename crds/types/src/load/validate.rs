//! What must hold between fields and between objects: the CRD's rules, evaluated natively, and references.

use std::fmt;
use std::sync::OnceLock;

use kube::CustomResourceExt;
use serde_json::Value;

use super::{Object, Path, bounds};
use crate::rules::{self, CelRule, Union};
use crate::shared::{Resources, TaintEffect, Toleration, TolerationOperator};
use crate::tenant::EngineKind;
use crate::{GpuPool, GpuPoolSpec, HOST_DEVICE_CLASS, ModelTenant, ModelTenantSpec, crd};

/// A rule that an object breaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid {
    /// Position of the object in the slice that was validated.
    pub index: usize,
    /// The object, as `KIND NAMESPACE/NAME`.
    pub object: String,
    /// Field that the rule is about.
    pub path: Path,
    /// What must hold; for a CEL rule, the same text that the API server gives.
    pub message: String,
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.object, self.path, self.message)
    }
}

impl std::error::Error for Invalid {}

/// Broken rules of one object.
type Broken = Vec<(Path, String)>;

/// Checks what the API server would check (bounds, patterns, CEL rules) and what the operator would (references). All
/// violations are reported, in order of the objects.
pub fn validate(objects: &[Object]) -> Result<(), Vec<Invalid>> {
    let mut all = Vec::new();
    for (index, object) in objects.iter().enumerate() {
        let mut broken = Broken::new();
        check_name(object, &mut broken);
        check_duplicate(object, &objects[..index], &mut broken);
        match object {
            Object::Pool(pool) => check_pool(&pool.spec, &mut broken),
            Object::Tenant(tenant) => {
                check_tenant(&tenant.spec, &mut broken);
                check_references(object.namespace(), &tenant.spec, objects, &mut broken);
            }
        }
        let named = format!("{} {}/{}", object.kind(), object.namespace(), object.name());
        all.extend(broken.into_iter().map(|(path, message)| Invalid {
            index,
            object: named.clone(),
            path,
            message,
        }));
    }
    if all.is_empty() { Ok(()) } else { Err(all) }
}

fn require(holds: bool, path: &str, rule: &CelRule, broken: &mut Broken) {
    if !holds {
        broken.push((Path::of_keys(path), rule.message.to_owned()));
    }
}

fn require_union(union: &Union, value: &Value, path: Path, broken: &mut Broken) {
    if !union.holds(value) {
        broken.push((path, union.message.to_owned()));
    }
}

fn check_name(object: &Object, broken: &mut Broken) {
    let good = |name: &str, most: usize| name.len() <= most && rules::is_dns_label(name);
    let named = good(object.name(), rules::MAX_NAME_LENGTH);
    let (named, rule) = match object {
        Object::Pool(_) => (named, &rules::OBJECT_NAME),
        Object::Tenant(_) => (named && rules::is_service_name(object.name()), &rules::TENANT_NAME),
    };
    require(named, "metadata.name", rule, broken);
    if !good(object.namespace(), 63) {
        let message = "metadata.namespace must be a DNS-1123 label of at most 63 characters";
        broken.push((Path::of_keys("metadata.namespace"), message.to_owned()));
    }
}

fn check_duplicate(object: &Object, earlier: &[Object], broken: &mut Broken) {
    let key = |o: &Object| (o.kind(), o.namespace().to_owned(), o.name().to_owned());
    if earlier.iter().any(|other| key(other) == key(object)) {
        let message = format!("a {} of this name is already in the file", object.kind());
        broken.push((Path::of_keys("metadata.name"), message));
    }
}

fn check_pool(spec: &GpuPoolSpec, broken: &mut Broken) {
    static SCHEMA: OnceLock<Value> = OnceLock::new();
    let schema = SCHEMA.get_or_init(|| crd::spec_schema(&GpuPool::crd()));
    let value = serde_json::to_value(spec).expect("a spec serialises");
    bounds::broken(schema, &value, &Path::of_keys("spec"), broken);
    check_device(spec, broken);
    check_tolerations(spec, broken);
    let gpus: i64 = spec.gpus.iter().map(|group| i64::from(group.count)).sum();
    require(gpus <= rules::MOST_GPUS as i64, "spec.gpus", &rules::POOL_SIZE, broken);
    for (index, group) in spec.gpus.iter().enumerate() {
        let path = Path::of_keys("spec.gpus").index(index).key("sharing");
        require_union(&rules::SHARING, &value["gpus"][index]["sharing"], path.clone(), broken);
        let disordered = |t: &crate::pool::Temporal| t.min_quantum_milliseconds > t.max_quantum_milliseconds;
        if group.sharing.temporal.as_ref().is_some_and(disordered) {
            broken.push((path.key("temporal"), rules::QUANTUM_ORDER.message.to_owned()));
        }
    }
}

fn check_device(spec: &GpuPoolSpec, broken: &mut Broken) {
    let host = spec.device.as_ref().and_then(|device| device.host.as_ref());
    let host_class = spec.device_class_name == HOST_DEVICE_CLASS;
    require(host_class == host.is_some(), "spec.device", &rules::HOST_DEVICE, broken);
    let Some(host) = host else { return };
    let reserve = spec.device.as_ref().and_then(|device| device.context_reserve.as_ref());
    require(reserve.is_none(), "spec.device", &rules::HOST_CONTEXTS, broken);
    let chunk = host.chunk_bytes.bytes();
    let tradable = (16..=21).any(|shift| chunk == 1 << shift);
    require(tradable, "spec.device.host.chunkBytes", &rules::HOST_CHUNK, broken);
    require(host.memory.bytes() >= chunk, "spec.device.host.memory", &rules::HOST_MEMORY, broken);
    let link_moves = host.link_bytes_per_second.as_ref().is_none_or(|link| link.bytes() > 0);
    require(link_moves, "spec.device.host.linkBytesPerSecond", &rules::HOST_LINK, broken);
}

fn check_tenant(spec: &ModelTenantSpec, broken: &mut Broken) {
    static SCHEMA: OnceLock<Value> = OnceLock::new();
    let schema = SCHEMA.get_or_init(|| crd::spec_schema(&ModelTenant::crd()));
    let value = serde_json::to_value(spec).expect("a spec serialises");
    bounds::broken(schema, &value, &Path::of_keys("spec"), broken);
    let source = Path::of_keys("spec.model.source");
    require_union(&rules::SOURCE, &value["model"]["source"], source, broken);
    let hub = spec.model.source.hugging_face.as_ref();
    let fixed = hub.is_some_and(|hub| is_commit(&hub.revision));
    require(spec.cache.is_none() || fixed, "spec.cache", &rules::CACHE, broken);
    let within = match (&spec.memory.guaranteed_kv, &spec.memory.kv_limit) {
        (Some(guaranteed), Some(limit)) => guaranteed.bytes() <= limit.bytes(),
        _ => true,
    };
    require(within, "spec.memory.guaranteedKv", &rules::KV_WITHIN_LIMIT, broken);
    let later = spec.idle.hibernate_after_seconds > spec.idle.after_seconds;
    require(later, "spec.idle.hibernateAfterSeconds", &rules::HIBERNATE_AFTER_IDLE, broken);
    let one_source = spec.access.api_keys_secret_ref.is_none() || spec.access.api_keys_file.is_none();
    require(one_source, "spec.access", &rules::ONE_KEY_SOURCE, broken);
    let own_label = spec.pod_labels.keys().any(|key| rules::is_own_label(key));
    require(!own_label, "spec.podLabels", &rules::POD_LABELS, broken);
    let own_annotation = spec.pod_annotations.keys().any(|key| rules::is_own_annotation(key));
    require(!own_annotation, "spec.podAnnotations", &rules::POD_ANNOTATIONS, broken);
    check_containers(spec, broken);
}

fn check_containers(spec: &ModelTenantSpec, broken: &mut Broken) {
    let has_image = spec.engine.kind != EngineKind::Vllm || spec.engine.image.is_some();
    require(has_image, "spec.engine", &rules::ENGINE_IMAGE, broken);
    let watched = spec.engine.kind != EngineKind::Vllm || spec.engine.hang_timeout_seconds.is_none();
    require(watched, "spec.engine", &rules::ENGINE_HANG_TIMEOUT, broken);
    let of = [("spec.engine", &spec.engine.resources), ("spec.sidecar", &spec.sidecar.resources)];
    for (path, resources) in of {
        let within = resources.as_ref().is_none_or(Resources::cpu_is_within_its_limit);
        require(within, path, &rules::CPU_WITHIN_LIMIT, broken);
    }
}

fn check_tolerations(spec: &GpuPoolSpec, broken: &mut Broken) {
    let empty = |text: &Option<String>| text.as_ref().is_none_or(String::is_empty);
    let exists = |one: &Toleration| one.operator == TolerationOperator::Exists;
    let all = |good: &dyn Fn(&Toleration) -> bool| spec.tolerations.iter().all(good);
    let path = "spec.tolerations";
    require(all(&|one| exists(one) || !empty(&one.key)), path, &rules::TOLERATION_KEY, broken);
    require(all(&|one| !exists(one) || empty(&one.value)), path, &rules::TOLERATION_VALUE, broken);
    let of_eviction = |one: &Toleration| one.effect == Some(TaintEffect::NoExecute);
    let bounded = all(&|one| one.toleration_seconds.is_none() || of_eviction(one));
    require(bounded, path, &rules::TOLERATION_SECONDS, broken);
}

fn is_commit(revision: &str) -> bool {
    revision.len() == 40 && revision.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn check_references(namespace: &str, spec: &ModelTenantSpec, objects: &[Object], broken: &mut Broken) {
    let name = &spec.pool_ref.name;
    let pool = objects.iter().find_map(|object| match object {
        Object::Pool(pool) if object.namespace() == namespace && object.name() == name => Some(pool),
        _ => None,
    });
    let Some(pool) = pool else {
        let message = format!("no GpuPool `{name}` in namespace `{namespace}`");
        broken.push((Path::of_keys("spec.poolRef.name"), message));
        return;
    };
    let Some(group) = &spec.gpu_group else { return };
    if !pool.spec.gpus.iter().any(|candidate| candidate.name == *group) {
        let groups: Vec<&str> = pool.spec.gpus.iter().map(|group| group.name.as_str()).collect();
        let message = format!("GpuPool `{name}` has no group `{group}`; it has {}", super::list(&groups));
        broken.push((Path::of_keys("spec.gpuGroup"), message));
    }
}
