//! The CEL of the CRDs, evaluated: every rule compiles, and says what the native check says of every fixture.

use kube_cel::{Validator, compile_schema};
use serde_json::{Value, json};
use sluice_types::load::ManifestObject;
use sluice_types::{crd_yaml, rules};

use crate::good_files::{TENANT, tenant};

fn schema(kind: &str) -> Value {
    let crds = crd_yaml().into_iter().map(|(_, yaml)| serde_yaml::from_str::<Value>(&yaml).unwrap());
    let crd = crds.into_iter().find(|crd| crd["spec"]["names"]["kind"] == kind).unwrap();
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone()
}

fn json_of(object: &ManifestObject) -> Value {
    match object {
        ManifestObject::Pool(pool) => serde_json::to_value(pool).unwrap(),
        ManifestObject::Tenant(tenant) => serde_json::to_value(tenant).unwrap(),
    }
}

/// Messages of the CEL rules that `value` breaks, sorted.
fn broken(kind: &str, value: &Value, old: Option<&Value>) -> Vec<String> {
    let errors = Validator::new().validate(&schema(kind), value, old).err().map(|all| all.into_vec());
    let mut messages: Vec<String> = errors.into_iter().flatten().map(|error| error.message).collect();
    messages.sort();
    messages
}

/// Panics unless CEL breaks exactly those rules of `native` (messages of the native check) that are CEL rules.
pub fn agrees(object: &ManifestObject, native: &[&str]) {
    let in_crd = messages();
    let mut expected: Vec<String> = native.iter().map(|message| (*message).to_owned()).collect();
    expected.retain(|message| in_crd.contains(&message.as_str()));
    expected.sort();
    assert_eq!(broken(object.kind(), &json_of(object), None), expected, "CEL (left) and native differ");
}

fn messages() -> Vec<&'static str> {
    vec![
        rules::OBJECT_NAME.message,
        rules::TENANT_NAME.message,
        rules::HOST_DEVICE.message,
        rules::HOST_CHUNK.message,
        rules::HOST_MEMORY.message,
        rules::HOST_LINK.message,
        rules::HOST_CONTEXTS.message,
        rules::POOL_SIZE.message,
        rules::QUANTUM_ORDER.message,
        rules::KV_WITHIN_LIMIT.message,
        rules::CPU_WITHIN_LIMIT.message,
        rules::ENGINE_IMAGE.message,
        rules::ENGINE_HANG_TIMEOUT.message,
        rules::TOLERATION_KEY.message,
        rules::TOLERATION_VALUE.message,
        rules::TOLERATION_SECONDS.message,
        rules::HIBERNATE_AFTER_IDLE.message,
        rules::ONE_KEY_SOURCE.message,
        rules::CACHE.message,
        rules::POD_LABELS.message,
        rules::POD_ANNOTATIONS.message,
        rules::SHARING.message,
        rules::SOURCE.message,
    ]
}

#[test]
fn every_rule_compiles() {
    fn errors(schema: &Value, path: &str) -> Vec<String> {
        let compiled = compile_schema(schema);
        let here = compiled.compilation_errors();
        let mut found: Vec<String> = here.iter().map(|error| format!("{path}: {error:?}")).collect();
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            found.extend(errors(property, &format!("{path}.{name}")));
        }
        if schema["items"].is_object() {
            found.extend(errors(&schema["items"], &format!("{path}[]")));
        }
        found
    }
    for kind in ["GpuPool", "ModelTenant"] {
        assert_eq!(errors(&schema(kind), kind), Vec::<String>::new());
    }
    let broken = json!({"x-kubernetes-validations": [{"rule": "self.( > 1"}]});
    assert_eq!(errors(&broken, "").len(), 1, "the check can fail");
}

#[test]
fn immutable_fields_are_refused_in_an_update() {
    let old = serde_json::to_value(tenant(TENANT)).unwrap();
    let update = |text: &str| broken("ModelTenant", &serde_json::to_value(tenant(text)).unwrap(), Some(&old));
    assert_eq!(update(&format!("{TENANT}  replicas: 3\n")), Vec::<String>::new());
    assert_eq!(update(&TENANT.replace("name: local", "name: x")), [rules::POOL_REF_IMMUTABLE.message]);
    assert_eq!(update(&TENANT.replace("models/story", "x")), [rules::MODEL_IMMUTABLE.message]);
    let engine = format!("{TENANT}  engine: {{kind: Vllm, image: v}}\n");
    assert_eq!(update(&engine), [rules::ENGINE_KIND_IMMUTABLE.message]);
}

#[test]
fn optional_members_may_be_left_out_of_what_the_rules_compare() {
    // As the API server sees an object whose writer left out what has no default.
    let mut value = serde_json::to_value(tenant(TENANT)).unwrap();
    value["spec"]["memory"] = json!({"hostKv": 0, "maxRemappedPercent": 60, "kvLimit": 1_048_576});
    assert_eq!(broken("ModelTenant", &value, None), Vec::<String>::new());
    value["spec"]["memory"]["guaranteedKv"] = json!("2Mi");
    assert_eq!(broken("ModelTenant", &value, None), [rules::KV_WITHIN_LIMIT.message]);
}
