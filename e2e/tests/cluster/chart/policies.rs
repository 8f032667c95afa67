//! The chart's own admission policies: Secrets that the operator may write, and changes of pods that it may make.

use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use sluice_e2e::cluster::{self, eventually};

use super::server::apply;
use super::{Helm, title};
use crate::fixture::words;

/// Returns a client of the operator of an installation in its own namespace, with the policy about `resource`.
async fn operator(server: &cluster::Api, helm: &Helm, (namespace, resource): (&str, &str)) -> Client {
    let name = format!("sluice-operator-{resource}");
    let objects = helm.template(namespace, &[]).unwrap();
    // Names of this test: other tests have an installation too.
    let policy = objects.iter().filter(|object| title(object).ends_with(&format!("/{name}"))).map(|object| {
        let text = object.to_string().replace(&format!("\"{name}\""), &format!("\"{namespace}\""));
        serde_json::from_str(&text).unwrap()
    });
    let mut needed: Vec<Value> = policy.collect();
    assert_eq!(needed.len(), 2);
    needed.extend(rights(namespace, resource));
    apply(server, &needed, &[]).unwrap();
    server.client_of(&format!("system:serviceaccount:{namespace}:sluice-operator"), None).await
}

/// Grants more than the chart does: here only the policy decides.
fn rights(namespace: &str, resource: &str) -> [Value; 2] {
    let (api, metadata) = ("rbac.authorization.k8s.io/v1", json!({"name": resource, "namespace": namespace}));
    let verbs = ["get", "create", "patch", "update", "delete"];
    let subject = json!({"kind": "ServiceAccount", "name": "sluice-operator", "namespace": namespace});
    [
        json!({"apiVersion": api, "kind": "Role", "metadata": metadata,
               "rules": [{"apiGroups": [""], "resources": [resource], "verbs": verbs}]}),
        json!({"apiVersion": api, "kind": "RoleBinding", "metadata": metadata, "subjects": [subject],
               "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": resource}}),
    ]
}

fn secret(name: &str, labels: Value) -> Secret {
    serde_json::from_value(json!({"metadata": {"name": name, "labels": labels}, "stringData": {"a": "b"}}))
        .unwrap()
}

/// Returns a Secret that Kubernetes fills with the token of an account.
fn token(name: &str) -> Secret {
    let account = json!({"kubernetes.io/service-account.name": "default"});
    let token = json!({"metadata": {"name": name, "annotations": account}, "type": "kubernetes.io/service-account-token"});
    serde_json::from_value(token).unwrap()
}

#[tokio::test]
async fn the_operator_writes_its_own_secrets_and_no_others() {
    let Some(helm) = Helm::find() else { return };
    let Some(server) = cluster::api().await.filter(|server| server.is_own_cluster()) else { return };
    let namespace = server.namespace("secrets").await;
    let everybody: Api<Secret> = Api::namespaced(server.client().await, &namespace);
    everybody.create(&PostParams::default(), &secret("foreign", json!({}))).await.unwrap();
    let operator: Api<Secret> =
        Api::namespaced(operator(server, &helm, (&namespace, "secrets")).await, &namespace);
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    // Policy and rights take effect shortly after they are stored.
    let probe = secret("other", json!({}));
    eventually("the policy holds", async || {
        let refused = operator.create(&dry, &probe).await.err().map(words)?;
        refused.contains("writes only Secrets").then_some(())
    })
    .await;

    let ours = json!({"app.kubernetes.io/managed-by": "sluice-operator"});
    operator.create(&PostParams::default(), &secret("sluice-ca", ours.clone())).await.unwrap();
    operator.delete("sluice-ca", &DeleteParams::default()).await.unwrap();
    let refused = |said: Result<String, String>| said.is_err_and(|said| said.contains("writes only Secrets"));
    let labelled = operator.create(&dry, &secret("chat-0", ours.clone())).await;
    assert!(refused(labelled.map(|_| String::new()).map_err(words)), "made another Secret with its label");
    let token = operator.create(&dry, &token("sluice-token")).await;
    assert!(refused(token.map(|_| String::new()).map_err(words)), "took a service account's token");
    let label = json!({"metadata": {"labels": ours}});
    let taken = operator.patch("foreign", &PatchParams::default(), &Patch::Merge(label)).await;
    assert!(refused(taken.map(|_| String::new()).map_err(words)), "took a foreign secret by a label");
    let deleted = operator.delete("foreign", &DeleteParams::default()).await;
    assert!(refused(deleted.map(|_| String::new()).map_err(words)), "deleted a foreign secret");
    let listed = operator.list(&kube::api::ListParams::default()).await.map_err(words).unwrap_err();
    assert!(listed.contains("cannot list resource \"secrets\""), "{listed}");
    everybody
        .patch("foreign", &PatchParams::default(), &Patch::Merge(json!({"stringData": {"a": "c"}})))
        .await
        .unwrap();
}

fn pod() -> Pod {
    let labels = json!({"sluice.dev/fetching": "true", "sluice.dev/tenant": "chat"});
    let containers = json!([{"name": "engine", "image": "a"}]);
    serde_json::from_value(json!({
        "metadata": {"name": "chat-0", "labels": labels, "annotations": {"a": "b"}},
        "spec": {"containers": containers, "serviceAccountName": "default"},
    }))
    .unwrap()
}

#[tokio::test]
async fn the_operator_takes_one_label_off_pods_sets_one_annotation_and_changes_nothing_else_of_them() {
    let Some(helm) = Helm::find() else { return };
    let Some(server) = cluster::api().await.filter(|server| server.is_own_cluster()) else { return };
    let namespace = server.namespace("pods").await;
    let everybody: Api<Pod> = Api::namespaced(server.client().await, &namespace);
    let create = async || everybody.create(&PostParams::default(), &pod()).await.ok();
    eventually("the namespace takes pods", create).await;
    let operator: Api<Pod> = Api::namespaced(operator(server, &helm, (&namespace, "pods")).await, &namespace);
    let patch = async |patch: Value| {
        let dry = PatchParams { dry_run: true, ..PatchParams::default() };
        operator.patch("chat-0", &dry, &Patch::Strategic(patch)).await.map(drop).map_err(words)
    };
    let image = json!({"spec": {"containers": [{"name": "engine", "image": "b"}]}});
    let refused =
        |said: Result<(), String>| said.is_err_and(|said| said.contains("may only remove the label"));
    eventually("the policy holds", async || refused(patch(image.clone()).await).then_some(())).await;
    for change in [
        json!({"labels": {"sluice.dev/tenant": "code"}}),
        json!({"labels": {"sluice.dev/tenant": null}}),
        json!({"labels": {"more": "1"}}),
        json!({"labels": {"sluice.dev/fetching": "false"}}),
        json!({"annotations": {"a": "c"}}),
        json!({"annotations": {"a": null, "sluice.dev/keys-version": "7"}}),
        json!({"annotations": {"sluice.dev/keys": "7"}}),
        json!({"annotations": null}),
        json!({"finalizers": ["a.example/b"]}),
    ] {
        assert!(refused(patch(json!({"metadata": change})).await), "{change}");
    }
    patch(json!({"metadata": {"labels": {"sluice.dev/fetching": null}}})).await.unwrap();
    patch(json!({"metadata": {"annotations": {"sluice.dev/keys-version": "7"}}})).await.unwrap();
}
