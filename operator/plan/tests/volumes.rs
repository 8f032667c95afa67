//! Volume and folder of a pod's model.

use serde_json::{Value, json};
use sluice_plan::objects::deployment;

use super::fixtures::{MIB, first_gpu, host_pool, placed, pool, release, tenant};
use super::objects::{container, json_of, pod};

#[test]
fn download_volume_fits_files_as_stored() {
    let (pool, hub) = (host_pool(), json!({"repo": "a/b"}));
    let volume_bytes = |dtype: &str, stored: Option<u64>| {
        let source = json!({"type": "HuggingFace", "persistentVolumeClaim": null, "huggingFace": hub});
        let tenant = tenant("t", json!({"model": {"dtype": dtype, "source": source}}));
        let gpu = first_gpu(&pool);
        let mut placed = placed(&pool, &tenant, &gpu);
        placed.model.download_bytes = stored;
        let whole = json_of(deployment(&placed, &release()));
        let volumes = whole["spec"]["template"]["spec"]["volumes"].as_array().unwrap().clone();
        let own = volumes.into_iter().find(|one| one["name"] == "model").unwrap();
        own["emptyDir"]["sizeLimit"].as_str().unwrap().parse::<sluice_types::Quantity>().unwrap().bytes()
    };
    // 35 MiB of weights in memory, from files of 70; a tenth and 64 MiB more.
    assert_eq!(volume_bytes("BFloat16", Some(70 * MIB)), 141 * MIB);
    assert_eq!(volume_bytes("Auto", Some(35 * MIB)), 205 * MIB / 2);
    assert_eq!(volume_bytes("BFloat16", None), 141 * MIB, "not measured: at most twice as much");
    assert_eq!(volume_bytes("Auto", None), volume_bytes("Auto", Some(35 * MIB)));
}

/// The pod of a tenant with a cache.
fn cached(pool: &sluice_types::GpuPool, name: &str, revision: &str, engine: &Value) -> Value {
    let hub = json!({"repo": "org/story", "revision": revision});
    let source = json!({"type": "HuggingFace", "persistentVolumeClaim": null, "huggingFace": hub});
    let spec = json!({"model": {"source": source}, "cache": {"claimName": "models"}, "engine": engine});
    pod(pool, &tenant(name, spec))
}

/// Returns how a container mounts the model.
fn model_of<'a>(pod: &'a Value, name: &str) -> Option<&'a Value> {
    let mounts = container(pod, name)["volumeMounts"].as_array().unwrap();
    mounts.iter().find(|mount| mount["name"] == "model")
}

/// Returns the download's target folder.
fn fetched_to(pod: &Value) -> &str {
    container(pod, "fetch")["args"].as_array().unwrap().last().unwrap().as_str().unwrap()
}

#[test]
fn cache_has_folder_per_commit_and_mounts_only_that_one() {
    let (one, native) = ("0".repeat(40), json!({}));
    let first = cached(&host_pool(), "one", &one, &native);
    let volume = first["volumes"].as_array().unwrap().iter().find(|one| one["name"] == "model").unwrap();
    assert_eq!(*volume, json!({"name": "model", "persistentVolumeClaim": {"claimName": "models"}}));
    let folder = fetched_to(&first).strip_prefix("/model/").unwrap();
    assert!(folder.starts_with("org-story-"), "{folder}");
    assert_eq!(model_of(&first, "fetch").unwrap(), &json!({"name": "model", "mountPath": "/model"}));
    let own = json!({"name": "model", "mountPath": "/model", "subPath": folder, "readOnly": true});
    assert_eq!(model_of(&first, "sidecar").unwrap(), &own);
    assert_eq!(model_of(&first, "engine"), None);

    let proxied = cached(&real_pool(), "one", &one, &json!({"kind": "Vllm", "image": "vllm:1"}));
    assert_eq!(fetched_to(&proxied), fetched_to(&first));
    assert_eq!(model_of(&proxied, "engine").unwrap(), &own);
    assert_eq!(container(&proxied, "engine")["args"][0], "/model");

    let same = cached(&host_pool(), "another", &one, &native);
    assert_eq!(fetched_to(&same), fetched_to(&first), "tenants of one commit share it");
    let newer = cached(&host_pool(), "one", &"1".repeat(40), &native);
    assert_ne!(fetched_to(&newer), fetched_to(&first));
}

#[test]
fn without_a_cache_the_model_is_all_of_its_volume() {
    let hub = json!({"type": "HuggingFace", "persistentVolumeClaim": null, "huggingFace": {"repo": "a/b"}});
    let pod = pod(&host_pool(), &tenant("t", json!({"model": {"source": hub}})));
    assert_eq!(fetched_to(&pod), "/model");
    let own = json!({"name": "model", "mountPath": "/model", "readOnly": true});
    assert_eq!(model_of(&pod, "sidecar").unwrap(), &own);
}

fn real_pool() -> sluice_types::GpuPool {
    pool(
        json!({"deviceClassName": "gpu.nvidia.com", "gpus": [{"name": "chat", "count": 1}], "hostMemoryPerGPU": "400Gi"}),
    )
}
