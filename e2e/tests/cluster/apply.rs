//! Server-side apply and defaults.

use kube::Api;
use kube::api::{DynamicObject, Patch, PatchParams};
use serde_json::{Value, json};
use sluice_e2e::cluster;

use crate::fixture::{api_of, create, pool, tenant, with, words};

async fn apply(api: &Api<DynamicObject>, manager: &str, spec: Value) -> Result<DynamicObject, String> {
    let object = with(&pool(), "/spec", spec);
    api.patch("one", &PatchParams::apply(manager), &Patch::Apply(object)).await.map_err(words)
}

fn names(list: &Value) -> Vec<&str> {
    list.as_array().unwrap().iter().map(|item| item["name"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn two_managers_of_one_pool_own_each_their_groups() {
    let Some(server) = cluster::api().await else { return };
    let api = api_of(server.client().await, "GpuPool", &server.namespace("managers").await);
    let whole = with(&pool()["spec"], "/gpus", json!([{"name": "chat", "count": 2}]));
    apply(&api, "one", whole).await.unwrap();
    let merged = apply(&api, "two", json!({"gpus": [{"name": "agents"}]})).await.unwrap();
    assert_eq!(names(&merged.data["spec"]["gpus"]), ["chat", "agents"]);
    assert_eq!(merged.data["spec"]["gpus"][0]["count"], 2, "the other manager's field stays");
    let taken = apply(&api, "two", json!({"gpus": [{"name": "chat", "count": 3}]})).await.unwrap_err();
    assert!(
        taken.contains(r#"conflict with "one""#) && taken.contains(r#".spec.gpus[name="chat"].count"#),
        "{taken}"
    );
    let less = apply(&api, "two", json!({})).await.unwrap();
    assert_eq!(
        names(&less.data["spec"]["gpus"]),
        ["chat"],
        "what its manager takes out goes, and nothing else"
    );
}

#[tokio::test]
async fn a_tenant_of_three_lines_gets_the_defaults_of_the_design() {
    let Some(server) = cluster::api().await else { return };
    let client = server.client().await;
    let namespace = server.namespace("defaults").await;
    let made = create(&api_of(client.clone(), "ModelTenant", &namespace), &tenant()).await;
    let expected = json!({
        "poolRef": {"name": "local"},
        "model": {"dtype": "Auto", "source": {"type": "HuggingFace", "huggingFace": {
            "repo": "a/b", "revision": "main", "endpoint": "https://huggingface.co",
        }}},
        "priority": 100,
        "slo": {
            "ttftMilliseconds": 2000, "tbtMilliseconds": 50, "allowedMissPermille": 10, "windowSeconds": 60,
            "maxPauseSeconds": 10,
        },
        "scheduling": {"order": "FirstCome"},
        "memory": {"hostKv": "0", "maxRemappedPercent": 60},
        "pacing": {"mode": "TokenDeposit"},
        "idle": {"afterSeconds": 30, "hibernateAfterSeconds": 600},
        "engine": {"kind": "Native"},
        "sidecar": {},
        "limits": {"maxQueuedRequests": 1024, "maxStreams": 2048, "holdSeconds": 30, "maxBodyBytes": "4Mi"},
        "access": {},
        "replicas": 1, "suspend": false, "drainSeconds": 30,
    });
    assert_eq!(made.data["spec"], expected);
    let made = create(&api_of(client, "GpuPool", &namespace), &pool()).await;
    let expected = json!({
        "deviceClassName": "host.sluice.dev",
        "device": {"host": {"memory": "96Mi", "chunkBytes": "64Ki"}},
        "gpus": [{"name": "chat", "count": 1, "sharing": {"mode": "Temporal"}}],
        "hostMemoryPerGPU": "400Mi", "policy": "Unified",
        "remap": {"victim": "MostRecentlyUsed", "minResidenceMilliseconds": 500, "revokeBoundMilliseconds": 200},
        "updatePolicy": "WhenEmpty",
    });
    assert_eq!(made.data["spec"], expected);
}
