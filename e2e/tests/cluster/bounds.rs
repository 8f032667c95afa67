//! Every bound of the schemas on a real API server: a value just outside is refused, and the message names the
//! field.

use std::collections::BTreeSet;

use kube::Api;
use kube::api::DynamicObject;
use serde_json::{Value, json};
use sluice_e2e::cluster::{self, crds};

use crate::fixture::{api_of, pool, tenant, try_create, with};

/// Returns pools that together have every field of the schema.
fn pools() -> Vec<Value> {
    let spec = json!({
        "deviceClassName": "host.sluice.dev",
        "device": {
            "selectors": ["device.driver == 'a'"],
            "host": {"memory": "96Mi", "chunkBytes": "64Ki", "linkBytesPerSecond": "8Gi"},
        },
        "gpus": [{
            "name": "chat", "count": 2,
            "sharing": {"mode": "Temporal", "temporal": {
                "order": "RoundRobin", "minQuantumMilliseconds": 1, "maxQuantumMilliseconds": 10_000,
            }},
        }],
        "hostMemoryPerGPU": "1Gi", "policy": "Oneiros",
        "remap": {"victim": "FixedOrder", "minResidenceMilliseconds": 1, "revokeBoundMilliseconds": 1},
        "updatePolicy": "WhenEmpty", "nodeSelector": {"a": "b"}, "runtimeClassName": "fast",
        "tolerations": [{"key": "a", "operator": "Equal", "value": "b", "effect": "NoExecute", "tolerationSeconds": 1}],
    });
    let full = with(&pool(), "/spec", spec);
    let spatial = json!({"mode": "Spatial", "spatial": {"defaultActiveThreadPercent": 50}});
    let isolated = json!({"mode": "Isolated", "isolated": {"profile": "3g.71gb"}});
    let [spatial, isolated] = [spatial, isolated].map(|sharing| with(&full, "/spec/gpus/0/sharing", sharing));
    let real = with(&full, "/spec/device", json!({"contextReserve": "700Mi"}));
    let real = with(&real, "/spec/deviceClassName", json!("gpu.nvidia.com"));
    vec![full, spatial, isolated, real]
}

/// Returns tenants that together have every field of the schema.
fn tenants() -> Vec<Value> {
    let resources = json!({"cpu": "500m", "memory": "1Gi"});
    let resources = json!({"limits": resources, "requests": resources});
    let peer = json!({"matchLabels": {"a": "b"}});
    let spec = json!({
        "poolRef": {"name": "local"}, "gpuGroup": "chat",
        "model": {"source": {}, "servedNames": ["a"], "dtype": "Auto", "maxModelLen": 8192},
        "priority": 100, "podPriorityClassName": "high",
        "slo": {
            "ttftMilliseconds": 1, "tbtMilliseconds": 1, "allowedMissPermille": 1, "windowSeconds": 1,
            "maxPauseSeconds": 1,
        },
        "scheduling": {"order": "FirstCome"},
        "memory": {"guaranteedKv": "1Gi", "kvLimit": "2Gi", "hostKv": "1Gi", "maxRemappedPercent": 60},
        "pacing": {"mode": "Immediate"},
        "idle": {"afterSeconds": 1, "hibernateAfterSeconds": 604_800},
        "engine": {
            "kind": "Native", "image": "a", "args": ["a"], "env": [{"name": "A", "value": "b"}], "resources": resources,
            "hangTimeoutSeconds": 1,
        },
        "sidecar": {"resources": resources},
        "limits": {
            "maxQueuedRequests": 1, "maxStreams": 1, "maxPromptTokens": 1, "holdSeconds": 1, "maxBodyBytes": "1Mi",
        },
        "access": {
            "from": [{"namespaceSelector": peer, "podSelector": peer}], "apiKeysSecretRef": {"name": "a", "key": "b"},
        },
        "replicas": 1, "suspend": false, "drainSeconds": 1, "imagePullSecrets": [{"name": "a"}],
        "serviceAccountName": "a", "podLabels": {"a": "b"}, "podAnnotations": {"a": "b"},
    });
    let full = with(&tenant(), "/spec", spec);
    let secret = json!({"name": "a", "key": "b"});
    let hub =
        json!({"repo": "a/b", "revision": "main", "endpoint": "https://host", "tokenSecretRef": secret});
    let s3 = json!({
        "bucket": "abc", "prefix": "a", "region": "b", "endpoint": "https://host", "credentialsSecretRef": {"name": "a"},
    });
    let sources = [
        json!({"type": "HuggingFace", "huggingFace": hub}),
        json!({"type": "PersistentVolumeClaim", "persistentVolumeClaim": {"claimName": "a", "path": "b"}}),
        json!({"type": "Image", "image": {"reference": "a", "path": "b"}}),
        json!({"type": "S3", "s3": s3}),
        json!({"type": "File", "file": {"path": "a"}}),
    ];
    let mut all = sources.map(|source| with(&full, "/spec/model/source", source)).to_vec();
    all.push(with(&all[0], "/spec/access", json!({"apiKeysFile": "keys"})));
    let commit = with(&all[0], "/spec/model/source/huggingFace/revision", "0".repeat(40).into());
    all.push(with(&commit, "/spec/cache", json!({"claimName": "a"})));
    all
}

/// A field's value, its schema, and the paths of both.
struct Node<'a> {
    /// Path in the server's notation: `spec.gpus[0].name`.
    path: String,
    pointer: String,
    schema: &'a Value,
    value: &'a Value,
}

/// Collects every node that both the schema and the object have.
fn nodes<'a>(node: Node<'a>, found: &mut Vec<Node<'a>>) {
    let Node { path, pointer, schema, value } = &node;
    for (name, inner) in value.as_object().into_iter().flatten() {
        let (path, pointer) = match schema["properties"][name].is_object() {
            true => (format!("{path}.{name}"), format!("{pointer}/{name}")),
            false => (path.clone(), format!("{pointer}/{name}")),
        };
        let schema = match &schema["properties"][name] {
            Value::Null => &schema["additionalProperties"],
            property => property,
        };
        assert!(schema.is_object(), "{path}.{name} is not in the schema");
        nodes(Node { path, pointer, schema, value: inner }, found);
    }
    if let Some(first) = value.as_array().and_then(|items| items.first()) {
        let (path, pointer) = (format!("{path}[0]"), format!("{pointer}/0"));
        nodes(Node { path, pointer, schema: &schema["items"], value: first }, found);
    }
    found.push(node);
}

/// Returns values just outside the bounds of a node, each with the text of the refusal.
fn outside(node: &Node) -> Vec<(Value, &'static str)> {
    let (schema, mut found) = (node.schema, Vec::new());
    let bound = |name: &str| schema[name].as_f64().map(|bound| bound as i64);
    let text = |length: i64| Value::from("a".repeat(usize::try_from(length).unwrap()));
    found.extend(bound("minimum").map(|least| (json!(least - 1), "greater than or equal to")));
    found.extend(bound("maximum").map(|most| (json!(most + 1), "less than or equal to")));
    found.extend(bound("minLength").map(|least| (text(least - 1), "at least")));
    found.extend(bound("maxLength").map(|most| (text(most + 1), "may not be more than")));
    found.extend(schema["pattern"].is_string().then(|| (json!("\n"), "should match")));
    found.extend(schema["enum"].is_array().then(|| (json!("Nonsense"), "Unsupported value")));
    found.extend(
        bound("maxItems")
            .map(|most| (json!(more_items_than_allowed(most, &node.value[0])), "must have at most")),
    );
    found.extend(bound("minItems").map(|_| (json!([]), "should have at least")));
    found.extend(bound("maxProperties").map(|most| {
        let fields = (0..=most).map(|i| (format!("k{i}"), json!("v")));
        (Value::Object(fields.collect()), "must have at most")
    }));
    found
}

/// Returns one more than `most` items, all different.
fn more_items_than_allowed(most: i64, first: &Value) -> Vec<Value> {
    let numbered = |i: i64| match first {
        Value::String(_) => json!(format!("a{i}")),
        object if object["name"].is_string() => with(object, "/name", json!(format!("a{i}"))),
        other => other.clone(),
    };
    (0..=most).map(numbered).collect()
}

/// Collects every path of the schema of `spec`.
fn paths(schema: &Value, path: &str, found: &mut BTreeSet<String>) {
    found.insert(path.to_owned());
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        paths(property, &format!("{path}.{name}"), found);
    }
    if schema["items"].is_object() {
        paths(&schema["items"], &format!("{path}[0]"), found);
    }
}

fn schema_of(kind: &str) -> Value {
    let all = crds::committed().into_iter().map(|crd| serde_json::to_value(crd).unwrap());
    let crd = all.into_iter().find(|crd| crd["spec"]["names"]["kind"] == kind).unwrap();
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"].clone()
}

fn nodes_of<'a>(schema: &'a Value, object: &'a Value) -> Vec<Node<'a>> {
    let mut found = Vec::new();
    let (path, pointer) = ("spec".to_owned(), "/spec".to_owned());
    nodes(Node { path, pointer, schema, value: &object["spec"] }, &mut found);
    found
}

#[test]
fn the_objects_of_these_tests_have_every_field_of_the_schemas() {
    for (kind, objects) in [("GpuPool", pools()), ("ModelTenant", tenants())] {
        let (schema, mut all) = (schema_of(kind), BTreeSet::new());
        paths(&schema, "spec", &mut all);
        let seen: BTreeSet<String> =
            objects.iter().flat_map(|object| nodes_of(&schema, object)).map(|node| node.path).collect();
        assert_eq!(all.difference(&seen).collect::<Vec<_>>(), Vec::<&String>::new(), "{kind}");
    }
}

/// Requests every value outside a bound and returns their number.
async fn refuses_all(api: &Api<DynamicObject>, schema: &Value, objects: &[Value]) -> usize {
    let mut seen = BTreeSet::new();
    for object in objects {
        try_create(api, object).await.unwrap_or_else(|e| panic!("{object}: {e}"));
        for node in nodes_of(schema, object) {
            for (value, words) in outside(&node) {
                if !seen.insert((node.pointer.clone(), value.to_string())) {
                    continue;
                }
                let bad = with(object, &node.pointer, value.clone());
                let refused = try_create(api, &bad).await.err();
                let refused = refused.unwrap_or_else(|| panic!("{} = {value} is taken", node.path));
                assert!(
                    refused.contains(&node.path) && refused.contains(words),
                    "{} = {value}: {refused}",
                    node.path
                );
            }
        }
    }
    seen.len()
}

#[tokio::test]
async fn out_of_range_values_are_refused_by_field() {
    let Some(server) = cluster::api().await else { return };
    let namespace = server.namespace("bounds").await;
    for (kind, objects, least) in [("GpuPool", pools(), 45), ("ModelTenant", tenants(), 125)] {
        let api = api_of(server.client().await, kind, &namespace);
        let tried = refuses_all(&api, &schema_of(kind), &objects).await;
        assert!(tried > least, "{kind}: only {tried} values were tried");
    }
}

#[tokio::test]
async fn an_unknown_field_is_refused_by_its_name_and_a_missing_one_too() {
    let Some(server) = cluster::api().await else { return };
    let namespace = server.namespace("fields").await;
    let file = |text: &Value| {
        let file = tempfile::NamedTempFile::with_suffix(".json").unwrap();
        std::fs::write(file.path(), text.to_string()).unwrap();
        file
    };
    let apply = |object: &Value| {
        let file = file(object);
        let path = file.path().to_str().unwrap().to_owned();
        let output =
            server.kubectl(&["apply", "--dry-run=server", "-n", &namespace, "-f", &path]).output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    assert_eq!(apply(&tenant()), (true, String::new()));
    let (taken, said) = apply(&with(&tenant(), "/spec/memory/guarantedKv", json!("1Gi")));
    assert!(!taken && said.contains(r#"unknown field "spec.memory.guarantedKv""#), "{said}");
    let (taken, said) = apply(&with(&tenant(), "/spec/poolRef", Value::Null));
    assert!(!taken && said.contains("spec.poolRef: Required value"), "{said}");
}
