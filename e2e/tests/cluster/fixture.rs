//! Objects that tests start from, and one field of them changed.

use kube::api::{ApiResource, DynamicObject, GroupVersionKind, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

/// `GpuPool` or `ModelTenant`, of the product's group.
pub fn api_of(client: Client, kind: &str, namespace: &str) -> Api<DynamicObject> {
    api_of_group(client, "sluice.dev", kind, namespace)
}

/// As [`api_of`], in another group.
pub fn api_of_group(client: Client, group: &str, kind: &str, namespace: &str) -> Api<DynamicObject> {
    let plural = format!("{}s", kind.to_lowercase());
    let resource =
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, "v1alpha1", kind), &plural);
    Api::namespaced_with(client, namespace, &resource)
}

/// A pool of host-backed GPUs, with what has no default.
pub fn pool() -> Value {
    object(
        "GpuPool",
        json!({
            "deviceClassName": "host.sluice.dev",
            "device": {"host": {"memory": "96Mi"}},
            "hostMemoryPerGPU": "400Mi",
            "gpus": [{"name": "chat"}],
        }),
    )
}

/// A tenant, with what has no default.
pub fn tenant() -> Value {
    object(
        "ModelTenant",
        json!({
            "poolRef": {"name": "local"},
            "model": {"source": {"type": "HuggingFace", "huggingFace": {"repo": "a/b"}}},
        }),
    )
}

fn object(kind: &str, spec: Value) -> Value {
    json!({"apiVersion": "sluice.dev/v1alpha1", "kind": kind, "metadata": {"name": "one"}, "spec": spec})
}

/// The object with the value at `pointer` (as in RFC 6901) put there, or taken out if it is null.
pub fn with(object: &Value, pointer: &str, value: Value) -> Value {
    let mut changed = object.clone();
    let (parent, last) = pointer.rsplit_once('/').unwrap();
    let last = last.replace("~1", "/").replace("~0", "~");
    match locate(&mut changed, parent) {
        Value::Array(items) => items[last.parse::<usize>().unwrap()] = value,
        Value::Object(fields) if value.is_null() => {
            fields.remove(&last);
        }
        Value::Object(fields) => {
            fields.insert(last, value);
        }
        other => panic!("{pointer}: {other} has no fields"),
    }
    changed
}

/// The value at `pointer`, made an object if it is not there.
fn locate<'a>(mut value: &'a mut Value, pointer: &str) -> &'a mut Value {
    for step in pointer.split('/').skip(1) {
        let step = step.replace("~1", "/").replace("~0", "~");
        value = match step.parse::<usize>() {
            Ok(index) if value.is_array() => &mut value[index],
            _ => {
                if value[&step].is_null() {
                    value[&step] = json!({});
                }
                &mut value[&step]
            }
        };
    }
    value
}

/// Asks the server to create the object; `Err` with its words if it refuses. Nothing is stored.
pub async fn try_create(api: &Api<DynamicObject>, object: &Value) -> Result<DynamicObject, String> {
    let object: DynamicObject = serde_json::from_value(object.clone()).unwrap();
    api.create(&PostParams { dry_run: true, ..PostParams::default() }, &object).await.map_err(words)
}

/// Creates the object.
pub async fn create(api: &Api<DynamicObject>, object: &Value) -> DynamicObject {
    let read: DynamicObject = serde_json::from_value(object.clone()).unwrap();
    api.create(&PostParams::default(), &read).await.unwrap_or_else(|e| panic!("{object}: {e}"))
}

/// What the server says of a request that it refuses. Anything else is no refusal.
pub fn words(error: kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message,
        other => panic!("{other}"),
    }
}
