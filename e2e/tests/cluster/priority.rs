//! The admission policy about priorities above the limit of a namespace.

use kube::api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use sluice_e2e::cluster::{self, eventually};

use crate::fixture::{api_of, create, tenant, try_create, with, words};

const POLICY: &str = include_str!("../../../crds/admission/tenant-priority.yaml");

/// Applies every document of a file.
async fn apply(client: &Client, text: &str) {
    for document in text.split("\n---\n") {
        let object: DynamicObject = serde_yaml::from_str(document).unwrap();
        apply_one(client, object).await;
    }
}

async fn apply_one(client: &Client, object: DynamicObject) {
    let kind: GroupVersionKind = object.types.as_ref().unwrap().try_into().unwrap();
    let resource = match kind.kind.as_str() {
        "ValidatingAdmissionPolicy" => {
            ApiResource::from_gvk_with_plural(&kind, "validatingadmissionpolicies")
        }
        _ => ApiResource::from_gvk(&kind),
    };
    let api: Api<DynamicObject> = match object.namespace() {
        Some(namespace) => Api::namespaced_with(client.clone(), &namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    let name = object.name_any();
    api.patch(&name, &PatchParams::apply("test").force(), &Patch::Apply(object)).await.unwrap();
}

/// Creates a namespace with a limit, where `author` may write tenants and `lead` may also prioritize on the pool
/// `local`.
async fn scene(server: &cluster::Api, name: &str, limit: Option<&str>) -> String {
    let (client, namespace) = (server.client().await, server.namespace(name).await);
    apply(&client, POLICY).await;
    if let Some(limit) = limit {
        let patch = json!({"metadata": {"annotations": {"sluice.dev/max-tenant-priority": limit}}});
        let all = Api::<k8s_openapi::api::core::v1::Namespace>::all(client.clone());
        all.patch(&namespace, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }
    let write = json!({"apiGroups": ["sluice.dev"], "resources": ["modeltenants"], "verbs": ["*"]});
    let prioritize = json!({
        "apiGroups": ["sluice.dev"], "resources": ["gpupools"], "resourceNames": ["local"], "verbs": ["prioritize"],
    });
    grant(&client, &namespace, "author", json!([write])).await;
    grant(&client, &namespace, "lead", json!([write, prioritize])).await;
    namespace
}

async fn grant(client: &Client, namespace: &str, user: &str, rules: Value) {
    let metadata = json!({"name": user, "namespace": namespace});
    let api = "rbac.authorization.k8s.io/v1";
    let role = json!({"apiVersion": api, "kind": "Role", "metadata": metadata, "rules": rules});
    let binding = json!({
        "apiVersion": api, "kind": "RoleBinding", "metadata": metadata,
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": user},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
    });
    for object in [role, binding] {
        apply_one(client, serde_json::from_value(object).unwrap()).await;
    }
}

async fn tenants_of(server: &cluster::Api, user: &str, namespace: &str) -> Api<DynamicObject> {
    api_of(server.client_of(user, None).await, "ModelTenant", namespace)
}

fn of_priority(priority: i32) -> Value {
    with(&tenant(), "/spec/priority", json!(priority))
}

/// Waits until the policy and the roles are in force: the server reads both through a cache.
async fn in_force(server: &cluster::Api, namespace: &str) {
    let (author, lead) =
        (tenants_of(server, "author", namespace).await, tenants_of(server, "lead", namespace).await);
    eventually("the policy in force", async || {
        let refused = try_create(&author, &of_priority(1000)).await.err()?;
        (refused.contains("prioritize") && try_create(&lead, &of_priority(1000)).await.is_ok()).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_priority_above_the_limit_needs_the_verb_on_the_pool() {
    let Some(server) = cluster::api().await.filter(|server| server.is_own_cluster()) else { return };
    let namespace = scene(server, "limited", Some("150")).await;
    in_force(server, &namespace).await;
    let author = tenants_of(server, "author", &namespace).await;
    try_create(&author, &of_priority(150)).await.expect("at the limit");
    let refused = try_create(&author, &of_priority(151)).await.expect_err("above the limit");
    for words in ["151", "150", "sluice.dev/max-tenant-priority", "prioritize", "local"] {
        assert!(refused.contains(words), "{words} is not in: {refused}");
    }
    let lead = tenants_of(server, "lead", &namespace).await;
    try_create(&lead, &of_priority(151)).await.expect("a user with the right to prioritize on this pool");
    let elsewhere = with(&of_priority(151), "/spec/poolRef/name", json!("other"));
    try_create(&lead, &elsewhere).await.expect_err("the verb is on another pool");
}

#[tokio::test]
async fn existing_priority_can_be_lowered_but_not_raised() {
    let Some(server) = cluster::api().await.filter(|server| server.is_own_cluster()) else { return };
    let namespace = scene(server, "standing", Some("150")).await;
    in_force(server, &namespace).await;
    create(&tenants_of(server, "lead", &namespace).await, &of_priority(500)).await;
    let author = tenants_of(server, "author", &namespace).await;
    let change = async |spec: Value| {
        let parameters = PatchParams { dry_run: true, ..PatchParams::default() };
        author.patch("one", &parameters, &Patch::Merge(json!({"spec": spec}))).await.map_err(words)
    };
    change(json!({"replicas": 2})).await.expect("another field");
    change(json!({"priority": 400})).await.expect("a lower one");
    change(json!({"priority": 501})).await.expect_err("a higher one");
}

#[tokio::test]
async fn missing_limit_allows_all_and_invalid_limit_denies_all() {
    let Some(server) = cluster::api().await.filter(|server| server.is_own_cluster()) else { return };
    let limited = scene(server, "first", Some("150")).await;
    in_force(server, &limited).await;
    let free = scene(server, "free", None).await;
    let author = tenants_of(server, "author", &free).await;
    eventually("roles in force", async || try_create(&author, &of_priority(1000)).await.ok()).await;

    let broken = scene(server, "broken", Some("plenty")).await;
    let author = tenants_of(server, "author", &broken).await;
    let refused = eventually("the annotation in force", async || {
        let refused = try_create(&author, &of_priority(1)).await.err()?;
        refused.contains("is not a number").then_some(refused)
    })
    .await;
    assert!(refused.contains("sluice.dev/max-tenant-priority") && refused.contains("plenty"), "{refused}");
    let lead = tenants_of(server, "lead", &broken).await;
    lead.create(&PostParams::default(), &serde_json::from_value(of_priority(1)).unwrap())
        .await
        .expect("the lead may");
}
