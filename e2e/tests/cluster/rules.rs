//! Every CEL rule of the CRDs on a real API server: of two objects that differ in one field the rule admits one;
//! without the rule both are admitted.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use sluice_e2e::cluster::{self, crds};

use crate::fixture::{api_of_group, create, pool, tenant, try_create, with, words};

/// One field that makes an object break one rule.
struct Case {
    /// Path of the rule in the schema.
    rule: &'static str,
    /// Message to the user.
    message: &'static str,
    good: Value,
    /// The field to change, and its bad value.
    field: &'static str,
    bad: Value,
    /// Whether the rule is about a change: then the good object exists already.
    update: bool,
}

impl Case {
    fn bad(&self) -> Value {
        with(&self.good, self.field, self.bad.clone())
    }
}

fn case(rule: &'static str, message: &'static str, good: Value, field: &'static str, bad: Value) -> Case {
    Case { rule, message, good, field, bad, update: false }
}

fn change(rule: &'static str, message: &'static str, good: Value, field: &'static str, bad: Value) -> Case {
    Case { update: true, ..case(rule, message, good, field, bad) }
}

const NAME: &str =
    "metadata.name must be a DNS-1123 label (lower case letters, digits, '-') of at most 40 characters";

const TENANT_NAME: &str = "metadata.name must be a DNS-1035 label (lower case letters, digits, '-', a \
                           letter first) of at most 40 characters: the tenant's Service has the same name";

fn pool_cases() -> Vec<Case> {
    device_cases().into_iter().chain(toleration_cases()).collect()
}

fn device_cases() -> Vec<Case> {
    let host = |field: &str, value: Value| with(&pool(), &format!("/spec/device/host/{field}"), value);
    let sharing = with(&pool(), "/spec/gpus/0/sharing", json!({"mode": "Spatial", "spatial": {}}));
    let quanta = json!({"minQuantumMilliseconds": 20, "maxQuantumMilliseconds": 20});
    let quanta = with(&pool(), "/spec/gpus/0/sharing", json!({"mode": "Temporal", "temporal": quanta}));
    let rule = "GpuPool.spec.device.host";
    vec![
        case(
            "GpuPool",
            NAME,
            with(&pool(), "/metadata/name", "a".repeat(40).into()),
            "/metadata/name",
            "a.b".into(),
        ),
        case(
            "GpuPool.spec",
            "device.host must be set when deviceClassName is host.sluice.dev, and only then",
            pool(),
            "/spec/deviceClassName",
            json!("gpu.nvidia.com"),
        ),
        case(
            rule,
            "chunkBytes must be 64Ki, 128Ki, 256Ki, 512Ki, 1Mi or 2Mi",
            host("chunkBytes", json!("2Mi")),
            "/spec/device/host/chunkBytes",
            json!("4Mi"),
        ),
        case(
            rule,
            "memory must hold at least one chunk",
            host("memory", json!("64Ki")),
            "/spec/device/host/memory",
            json!("63Ki"),
        ),
        case(
            rule,
            "linkBytesPerSecond must be larger than 0; omit it for no limit",
            host("linkBytesPerSecond", json!(1)),
            "/spec/device/host/linkBytesPerSecond",
            json!(0),
        ),
        case(
            "GpuPool.spec.device",
            "contextReserve is for CUDA devices; a host-backed GPU has no contexts, so omit it",
            pool(),
            "/spec/device/contextReserve",
            json!("700Mi"),
        ),
        case(
            "GpuPool.spec.gpus",
            "a pool has at most 1024 GPUs, all groups together: create another pool",
            with(&pool(), "/spec/gpus", json!([{"name": "a", "count": 512}, {"name": "b", "count": 512}])),
            "/spec/gpus/1/count",
            json!(513),
        ),
        case(
            "GpuPool.spec.gpus[].sharing",
            "only the field that mode names may be set, and mode Isolated needs the field isolated",
            sharing,
            "/spec/gpus/0/sharing/mode",
            json!("Temporal"),
        ),
        case(
            "GpuPool.spec.gpus[].sharing.temporal",
            "minQuantumMilliseconds must not exceed maxQuantumMilliseconds",
            quanta,
            "/spec/gpus/0/sharing/temporal/minQuantumMilliseconds",
            json!(21),
        ),
    ]
}

fn toleration_cases() -> Vec<Case> {
    let toleration = |one: Value| with(&pool(), "/spec/tolerations", json!([one]));
    vec![
        case(
            "GpuPool.spec.tolerations",
            "a toleration without key must have operator Exists",
            toleration(json!({"key": "a"})),
            "/spec/tolerations/0/key",
            json!(""),
        ),
        case(
            "GpuPool.spec.tolerations",
            "a toleration with operator Exists must have no value",
            toleration(json!({"key": "a", "operator": "Exists", "value": ""})),
            "/spec/tolerations/0/value",
            json!("b"),
        ),
        case(
            "GpuPool.spec.tolerations",
            "a toleration with tolerationSeconds must have effect NoExecute",
            toleration(json!({"key": "a", "effect": "NoExecute", "tolerationSeconds": 1})),
            "/spec/tolerations/0/effect",
            json!("NoSchedule"),
        ),
    ]
}

fn tenant_cases() -> Vec<Case> {
    content_cases().into_iter().chain(container_cases()).chain(key_cases()).chain(change_cases()).collect()
}

fn content_cases() -> Vec<Case> {
    let kv = with(&tenant(), "/spec/memory", json!({"guaranteedKv": "1Gi", "kvLimit": "1024Mi"}));
    let idle = with(&tenant(), "/spec/idle", json!({"afterSeconds": 59, "hibernateAfterSeconds": 60}));
    let key = json!({"name": "keys", "key": "all"});
    let cached = with(
        &tenant(),
        "/spec/model/source",
        json!({"type": "HuggingFace", "huggingFace": {"repo": "a/b", "revision": "c0ffeec0ffeec0ffeec0ffeec0ffeec0ffeec0ff"}}),
    );
    let cached = with(&cached, "/spec/cache", json!({"claimName": "models"}));
    vec![
        case(
            "ModelTenant",
            TENANT_NAME,
            with(&tenant(), "/metadata/name", "l3".into()),
            "/metadata/name",
            "3l".into(),
        ),
        case(
            "ModelTenant.spec.model.source",
            "exactly the field that type names must be set",
            tenant(),
            "/spec/model/source/type",
            json!("S3"),
        ),
        case(
            "ModelTenant.spec.memory",
            "guaranteedKv must not exceed kvLimit",
            kv,
            "/spec/memory/guaranteedKv",
            json!("1025Mi"),
        ),
        case(
            "ModelTenant.spec.idle",
            "hibernateAfterSeconds must be larger than afterSeconds",
            idle,
            "/spec/idle/afterSeconds",
            json!(60),
        ),
        case(
            "ModelTenant.spec.access",
            "apiKeysSecretRef and apiKeysFile must not both be set",
            with(&tenant(), "/spec/access", json!({"apiKeysSecretRef": key})),
            "/spec/access/apiKeysFile",
            json!("keys"),
        ),
        case(
            "ModelTenant.spec",
            "cache needs a source of type HuggingFace whose revision is a commit (40 hexadecimal digits)",
            cached,
            "/spec/model/source/huggingFace/revision",
            json!("main"),
        ),
    ]
}

fn container_cases() -> Vec<Case> {
    let resources = json!({"requests": {"cpu": "500m"}, "limits": {"cpu": "0.5"}});
    let cpu = |of: &'static str, field: &'static str| {
        let good = with(&tenant(), field.strip_suffix("/requests/cpu").unwrap(), resources.clone());
        case(of, "resources.requests.cpu must not exceed resources.limits.cpu", good, field, json!("501m"))
    };
    vec![
        cpu("ModelTenant.spec.engine", "/spec/engine/resources/requests/cpu"),
        cpu("ModelTenant.spec.sidecar", "/spec/sidecar/resources/requests/cpu"),
        case(
            "ModelTenant.spec.engine",
            "hangTimeoutSeconds is only for the native engine: Sluice does not detect hangs of a Vllm engine",
            with(&tenant(), "/spec/engine", json!({"kind": "Vllm", "image": "v"})),
            "/spec/engine/hangTimeoutSeconds",
            json!(5),
        ),
        case(
            "ModelTenant.spec.engine",
            "image must be set when kind is Vllm: only the native engine has a default image",
            with(&tenant(), "/spec/engine", json!({"kind": "Vllm", "image": "v"})),
            "/spec/engine/image",
            Value::Null,
        ),
    ]
}

fn key_cases() -> Vec<Case> {
    vec![
        case(
            "ModelTenant.spec.podLabels",
            "podLabels must have no key that begins with sluice.dev/ or app.kubernetes.io/: the operator \
             sets them, and network policies and Services select pods by them",
            with(&tenant(), "/spec/podLabels", json!({"team": "a"})),
            "/spec/podLabels",
            json!({"team": "a", "sluice.dev/fetching": "true"}),
        ),
        case(
            "ModelTenant.spec.podAnnotations",
            "podAnnotations must have no key that begins with sluice.dev/: the operator sets them",
            with(&tenant(), "/spec/podAnnotations", json!({"team": "a"})),
            "/spec/podAnnotations",
            json!({"team": "a", "sluice.dev/config-digest": "0"}),
        ),
    ]
}

fn change_cases() -> Vec<Case> {
    vec![
        change(
            "ModelTenant.spec.poolRef",
            "poolRef is immutable",
            tenant(),
            "/spec/poolRef/name",
            json!("other"),
        ),
        change(
            "ModelTenant.spec.model",
            "model is immutable",
            tenant(),
            "/spec/model/dtype",
            json!("Float16"),
        ),
        change(
            "ModelTenant.spec",
            "engine.kind is immutable",
            with(&tenant(), "/spec/engine", json!({"image": "v"})),
            "/spec/engine/kind",
            json!("Vllm"),
        ),
    ]
}

/// Collects every rule of a CRD: its path, its message, and the pointer in `value` to the list that contains it.
fn rules_in(value: &Value, path: &str, pointer: &str, found: &mut Vec<(String, String, String)>) {
    let message = |rule: &Value| rule["message"].as_str().unwrap().to_owned();
    let rules = value["x-kubernetes-validations"].as_array();
    found
        .extend(rules.into_iter().flatten().map(|rule| (path.to_owned(), message(rule), pointer.to_owned())));
    for (name, property) in value["properties"].as_object().into_iter().flatten() {
        rules_in(property, &format!("{path}.{name}"), &format!("{pointer}/properties/{name}"), found);
    }
    for inner in ["items", "additionalProperties"] {
        if value[inner].is_object() {
            rules_in(&value[inner], &format!("{path}[]"), &format!("{pointer}/{inner}"), found);
        }
    }
}

const SCHEMA: &str = "/spec/versions/0/schema/openAPIV3Schema";

fn all_rules(crd: &Value) -> Vec<(String, String, String)> {
    let (kind, mut found) = (crd["spec"]["names"]["kind"].as_str().unwrap(), Vec::new());
    rules_in(crd.pointer(SCHEMA).unwrap(), kind, SCHEMA, &mut found);
    found
}

fn committed(kind: &str) -> Value {
    let all = crds::committed().into_iter().map(|crd| serde_json::to_value(crd).unwrap());
    all.into_iter().find(|crd| crd["spec"]["names"]["kind"] == kind).unwrap()
}

#[test]
fn every_rule_of_the_crds_has_its_case() {
    for (kind, cases) in [("GpuPool", pool_cases()), ("ModelTenant", tenant_cases())] {
        let mut present: Vec<_> =
            all_rules(&committed(kind)).into_iter().map(|(path, message, _)| (path, message)).collect();
        let mut covered: Vec<_> =
            cases.iter().map(|case| (case.rule.to_owned(), case.message.to_owned())).collect();
        present.sort();
        covered.sort();
        assert_eq!(present, covered);
    }
}

/// Returns the CRD without the rule of `case`, in another group, so that concurrent tests are not affected.
fn without_rule(case: &Case, group: &str) -> CustomResourceDefinition {
    let kind = case.rule.split('.').next().unwrap();
    let mut crd = committed(kind);
    let rules = all_rules(&crd);
    let (_, _, pointer) =
        rules.iter().find(|(path, message, _)| path == case.rule && message == case.message).unwrap();
    let list = crd.pointer_mut(pointer).unwrap()["x-kubernetes-validations"].as_array_mut().unwrap();
    let before = list.len();
    list.retain(|rule| rule["message"] != case.message);
    assert_eq!(list.len(), before - 1, "{}", case.rule);
    in_group(&mut crd, group);
    serde_json::from_value(crd).unwrap()
}

/// Moves a CRD to another group and removes the names that must be unique across groups.
fn in_group(crd: &mut Value, group: &str) {
    let plural = crd["spec"]["names"]["plural"].as_str().unwrap().to_owned();
    let (label, value) = cluster::mark();
    crd["metadata"] = json!({"name": format!("{plural}.{group}"), "labels": {label: value}});
    crd["spec"]["group"] = json!(group);
    let names = crd["spec"]["names"].as_object_mut().unwrap();
    names.remove("shortNames");
    names.remove("categories");
}

/// Whether the server accepts the bad object, where the good one exists already or is accepted too.
async fn judge(case: &Case, api: &Api<DynamicObject>, group: &str) -> Result<(), String> {
    let of_group = |object: &Value| with(object, "/apiVersion", json!(format!("{group}/v1alpha1")));
    let (good, bad) = (of_group(&case.good), of_group(&case.bad()));
    if !case.update {
        try_create(api, &good)
            .await
            .unwrap_or_else(|e| panic!("{}: the good object is refused: {e}", case.rule));
        return try_create(api, &bad).await.map(|_| ());
    }
    let name = format!("r{}", case.rule.to_lowercase().replace('.', "-"));
    let name = &name[..name.len().min(40)];
    create(api, &with(&good, "/metadata/name", json!(name))).await;
    let untouched = with(&good, "/spec/replicas", json!(2));
    let patch = async |object: &Value| {
        let parameters = PatchParams { dry_run: true, ..PatchParams::default() };
        let patch = json!({"spec": object["spec"]});
        api.patch(name, &parameters, &Patch::Merge(patch)).await.map(|_| ()).map_err(words)
    };
    patch(&untouched).await.unwrap_or_else(|e| panic!("{}: another field cannot change: {e}", case.rule));
    patch(&bad).await
}

async fn holds(client: Client, namespace: &str, number: usize, case: &Case) {
    let kind = case.rule.split('.').next().unwrap();
    let with_rule = api_of_group(client.clone(), "sluice.dev", kind, namespace);
    let refused = judge(case, &with_rule, "sluice.dev").await.expect_err(case.rule);
    let lines = refused.matches("Invalid value").count();
    assert!(
        refused.contains(case.message) && lines == 1,
        "{}: one rule is broken, by its message: {refused}",
        case.rule
    );
    let group = format!("{}{number}.test.sluice.dev", kind.to_lowercase());
    crds::apply(&client, &without_rule(case, &group)).await;
    let without = api_of_group(client, &group, kind, namespace);
    judge(case, &without, &group)
        .await
        .unwrap_or_else(|e| panic!("{}: the rule is gone, but: {e}", case.rule));
}

#[tokio::test]
async fn each_rule_refuses_its_field_without_the_others() {
    let Some(server) = cluster::api().await else { return };
    let (client, namespace) = (server.client().await, server.namespace("rules").await);
    let cases: Vec<Case> = pool_cases().into_iter().chain(tenant_cases()).collect();
    let all = cases.iter().enumerate().map(|(number, case)| holds(client.clone(), &namespace, number, case));
    futures_util::future::join_all(all).await;
}
