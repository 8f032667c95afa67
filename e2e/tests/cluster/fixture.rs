//! Base objects of tests, and changes of one field.

use kube::api::{ApiResource, DynamicObject, GroupVersionKind, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

/// Returns the API of `GpuPool` or `ModelTenant` of the product's group.
pub fn api_of(client: Client, kind: &str, namespace: &str) -> Api<DynamicObject> {
    api_of_group(client, "sluice.dev", kind, namespace)
}

/// Same as [`api_of`], in another group.
pub fn api_of_group(client: Client, group: &str, kind: &str, namespace: &str) -> Api<DynamicObject> {
    let plural = format!("{}s", kind.to_lowercase());
    let resource =
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, "v1alpha1", kind), &plural);
    Api::namespaced_with(client, namespace, &resource)
}

/// Returns a pool of host-backed GPUs with all fields that have no default.
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

/// Returns a tenant with all fields that have no default.
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

/// Returns the object with this value at `pointer` (RFC 6901); null removes the field.
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

/// Returns the value at `pointer`; inserts missing objects on the way.
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

/// Creates the object as a dry run; `Err` with the server's message if it is refused.
pub async fn try_create(api: &Api<DynamicObject>, object: &Value) -> Result<DynamicObject, String> {
    let object: DynamicObject = serde_json::from_value(object.clone()).unwrap();
    api.create(&PostParams { dry_run: true, ..PostParams::default() }, &object).await.map_err(words)
}

/// Creates the object.
pub async fn create(api: &Api<DynamicObject>, object: &Value) -> DynamicObject {
    let read: DynamicObject = serde_json::from_value(object.clone()).unwrap();
    api.create(&PostParams::default(), &read).await.unwrap_or_else(|e| panic!("{object}: {e}"))
}

/// Returns the server's message about a refused request. Panics on any other error.
pub fn words(error: kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message,
        other => panic!("{other}"),
    }
}
