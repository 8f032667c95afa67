//! Whole objects as they are applied (`snapshots`). A change of a pod's template replaces the pods of all tenants at an
//! upgrade, so a review has to see it. After a change that is meant, run the tests with `INSTA_UPDATE=always` and
//! commit the difference. What must hold is in the other tests.

use serde_json::{Value, json};
use sluice_plan::objects::inspect::job;
use sluice_plan::objects::{Child, ChildKind, gpu_children, slot_children, tenant_children};
use sluice_types::{GpuPool, ModelTenant};

use super::fixtures::{first_gpu, host_pool, placed, pool, release, tenant};

/// All objects of a tenant with one slot, in the order in which they are applied.
fn objects(pool: &GpuPool, tenant: &ModelTenant) -> Vec<Value> {
    let (gpu, release) = (first_gpu(pool), release());
    let inspection = Child::new(ChildKind::Job, &job(pool, tenant, &release));
    let children = gpu_children(pool, &gpu, 3, false, &release).into_iter().chain([inspection]);
    let children = children.chain(tenant_children(tenant));
    children.chain(slot_children(&placed(pool, tenant, &gpu), &release)).map(readable).collect()
}

/// The object without its digest, which changes with everything else, and with the sidecar's configuration as JSON.
fn readable(child: Child) -> Value {
    let mut body = child.body;
    let annotations = body["metadata"]["annotations"].as_object_mut().unwrap();
    annotations.remove(sluice_plan::objects::DIGEST).expect("every object has it");
    if let Some(text) = body["data"]["sidecar.json"].as_str() {
        body["data"]["sidecar.json"] = serde_json::from_str(text).unwrap();
    }
    body
}

#[test]
fn objects_of_a_tenant_that_downloads_its_model_to_a_gpu_of_host_memory() {
    let hub = json!({"repo": "org/tiny", "tokenSecretRef": {"name": "hub", "key": "token"}});
    let source = json!({"type": "HuggingFace", "persistentVolumeClaim": null, "huggingFace": hub});
    insta::assert_json_snapshot!(objects(&host_pool(), &tenant("t", json!({"model": {"source": source}}))));
}

#[test]
fn objects_of_a_tenant_with_a_vllm_on_a_gpu_that_serves_all_at_once() {
    let sharing = json!([{"name": "chat", "sharing": {"mode": "Spatial"}}]);
    let engine = json!({"kind": "Vllm", "image": "vllm/vllm-openai:v1"});
    insta::assert_json_snapshot!(objects(
        &pool(json!({"gpus": sharing})),
        &tenant("t", json!({"engine": engine}))
    ));
}
