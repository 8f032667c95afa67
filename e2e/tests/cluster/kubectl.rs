//! The product in kubectl: lists, columns, short names, explanations, scale.

use kube::Api;
use kube::api::{DynamicObject, Patch, PatchParams};
use serde_json::json;
use sluice_e2e::cluster;

use crate::fixture::{api_of, create, pool, tenant, with};

/// Returns kubectl's output in the namespace.
fn output_text(server: &cluster::Api, namespace: &str, arguments: &[&str]) -> String {
    let output = server.kubectl(&[&["-n", namespace], arguments].concat()).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "kubectl {}: {error}", arguments.join(" "));
    String::from_utf8(output.stdout).unwrap()
}

/// Splits every line into words.
fn table(text: &str) -> Vec<Vec<&str>> {
    text.lines().map(|line| line.split_whitespace().collect()).collect()
}

async fn set_status(api: &Api<DynamicObject>, name: &str, status: serde_json::Value) {
    let patch = Patch::Merge(json!({"status": status}));
    api.patch_status(name, &PatchParams::default(), &patch).await.unwrap();
}

/// Creates a tenant that waits for its GPU.
async fn waiting(api: &Api<DynamicObject>) {
    create(api, &tenant()).await;
    let condition = |kind: &str, reason: &str| {
        json!({
            "type": kind, "status": "False", "reason": reason, "message": format!("{reason} it is"),
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        })
    };
    let conditions = [condition("Ready", "Unschedulable"), condition("Serving", "Unschedulable")];
    let status = json!({"conditions": conditions, "replicas": 1, "selector": "sluice.dev/tenant=one", "url": "http://one"});
    set_status(api, "one", status).await;
}

#[tokio::test]
async fn tenant_list_shows_not_running_and_reason() {
    let Some(server) = cluster::api().await else { return };
    let namespace = server.namespace("columns").await;
    waiting(&api_of(server.client().await, "ModelTenant", &namespace)).await;
    for name in ["mt", "modeltenant", "modeltenants", "modeltenants.sluice.dev"] {
        let text = output_text(server, &namespace, &["get", name]);
        let lines = table(&text);
        assert_eq!(
            lines[0],
            ["NAME", "POOL", "PRIORITY", "WANTED", "SLOTS", "READY", "REASON", "AGE"],
            "{name}"
        );
        assert_eq!(lines[1][..7], ["one", "local", "100", "1", "1", "False", "Unschedulable"], "{name}");
    }
    let text = output_text(server, &namespace, &["get", "mt", "-o", "wide"]);
    let lines = table(&text);
    assert_eq!(lines[0][6..10], ["REASON", "SERVING", "URL", "MESSAGE"]);
    assert_eq!(lines[1][6..12], ["Unschedulable", "False", "http://one", "Unschedulable", "it", "is"]);
}

#[tokio::test]
async fn one_word_lists_all_kinds_of_the_product() {
    let Some(server) = cluster::api().await else { return };
    let (client, namespace) = (server.client().await, server.namespace("category").await);
    create(&api_of(client.clone(), "ModelTenant", &namespace), &tenant()).await;
    create(&api_of(client, "GpuPool", &namespace), &pool()).await;
    let text = output_text(server, &namespace, &["get", "sluice", "-o", "name"]);
    assert_eq!(text.lines().collect::<Vec<_>>(), ["gpupool.sluice.dev/one", "modeltenant.sluice.dev/one"]);
    let text = output_text(server, &namespace, &["get", "gpool"]);
    let lines = table(&text);
    assert_eq!(lines[0], ["NAME", "CLASS", "POLICY", "READY", "REASON", "AGE"]);
    assert_eq!(lines[1][..3], ["one", "host.sluice.dev", "Unified"]);
}

#[tokio::test]
async fn tenants_are_found_by_their_pool() {
    let Some(server) = cluster::api().await else { return };
    let namespace = server.namespace("selected").await;
    let api = api_of(server.client().await, "ModelTenant", &namespace);
    create(&api, &tenant()).await;
    let other = with(&with(&tenant(), "/metadata/name", json!("two")), "/spec/poolRef/name", json!("other"));
    create(&api, &other).await;
    let of = |pool: &str| {
        output_text(
            server,
            &namespace,
            &["get", "mt", "-o", "name", "--field-selector", &format!("spec.poolRef.name={pool}")],
        )
    };
    assert_eq!(of("local"), "modeltenant.sluice.dev/one\n");
    assert_eq!(of("other"), "modeltenant.sluice.dev/two\n");
    assert_eq!(of("third"), "");
}

#[tokio::test]
async fn scaling_changes_the_replicas_and_reads_the_slots() {
    let Some(server) = cluster::api().await else { return };
    let namespace = server.namespace("scale").await;
    let api = api_of(server.client().await, "ModelTenant", &namespace);
    waiting(&api).await;
    output_text(server, &namespace, &["scale", "mt/one", "--replicas=3", "--current-replicas=1"]);
    assert_eq!(api.get("one").await.unwrap().data["spec"]["replicas"], 3);
    let scale = api.get_scale("one").await.unwrap();
    let status = scale.status.unwrap();
    assert_eq!((status.replicas, status.selector.as_deref()), (1, Some("sluice.dev/tenant=one")));
    let output = server.kubectl(&["-n", &namespace, "scale", "mt/one", "--replicas=65"]).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && error.contains("spec.replicas"), "{error}");
}

#[tokio::test]
async fn a_spec_and_a_status_are_written_apart() {
    let Some(server) = cluster::api().await else { return };
    let api = api_of(server.client().await, "ModelTenant", &server.namespace("status").await);
    waiting(&api).await;
    let patch = Patch::Merge(json!({"spec": {"priority": 7}, "status": {"url": "http://spoofed"}}));
    let seen = api.patch("one", &PatchParams::default(), &patch).await.unwrap();
    assert_eq!(
        (&seen.data["spec"]["priority"], &seen.data["status"]["url"]),
        (&json!(7), &json!("http://one"))
    );
    set_status(&api, "one", json!({"url": "http://two"})).await;
    let patch = Patch::Merge(json!({"spec": {"priority": 8}, "status": {"replicas": 2}}));
    let seen = api.patch_status("one", &PatchParams::default(), &patch).await.unwrap();
    assert_eq!((&seen.data["spec"]["priority"], &seen.data["status"]["replicas"]), (&json!(7), &json!(2)));
}

/// Returns kubectl's explanation of a field in one line.
fn explained(server: &cluster::Api, field: &str) -> String {
    let text = output_text(server, "default", &["explain", field]);
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[tokio::test]
async fn fields_are_explained_with_units_defaults_and_choices() {
    let Some(server) = cluster::api().await else { return };
    for (field, words) in [
        ("modeltenant", "One model served on GPUs of a GpuPool of the same namespace"),
        ("modeltenant.spec.slo.ttftMilliseconds", "milliseconds"),
        ("modeltenant.spec.slo.ttftMilliseconds", "Default 2000."),
        ("modeltenant.spec.memory.guaranteedKv", "bytes as a quantity"),
        ("modeltenant.spec.drainSeconds", "Default 30."),
        ("modeltenant.spec.engine.kind", "ENUM: Native Vllm"),
        ("modeltenant.spec.poolRef", "Immutable. Required."),
        ("gpupool.spec.policy", "ENUM: Unified Recompute FlexGen Pie"),
        ("gpupool.spec.hostMemoryPerGPU", "bytes as a quantity"),
    ] {
        let text = explained(server, field);
        assert!(text.contains(words), "{field} does not say `{words}`: {text}");
    }
    let text = explained(server, "modeltenant.spec");
    for words in [
        "poolRef <Object> -required- The pool that serves the tenant. Immutable. Required.",
        "model <Object> -required- The model that is served. Immutable. Required.",
        "priority <integer> Priority among tenants of the GPU, higher is more important; the tenant with \
         the lowest lends memory first. Default 100.",
        "replicas <integer> Slots (one pod on one GPU each); 0 means no pods and refused requests. Default 1.",
        "suspend <boolean> Removes all slots and refuses requests; the object stays. Default false.",
        "drainSeconds <integer> Time that open streams have to end when a pod stops, seconds. Default 30.",
    ] {
        assert!(text.contains(words), "`{words}` is not in: {text}");
    }
}
