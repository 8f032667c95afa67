//! A namespace of an API server, with operators that watch only this namespace.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use k8s_openapi::api::resource::v1::ResourceClaim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use sluice_common::metrics_text::sum;
use sluice_e2e::cluster::{self, audit, eventually};
use sluice_types::{GpuPool, ModelTenant};

/// The shipped access rights.
const RBAC: &str = include_str!("../rbac.yaml");

/// A namespace and its operators.
pub struct TestNamespace {
    server: &'static cluster::Api,
    pub client: Client,
    pub namespace: String,
    user: String,
    folder: tempfile::TempDir,
}

/// A running operator, killed when dropped.
pub struct OperatorProcess {
    child: Child,
    log: PathBuf,
    identity: String,
}

impl Drop for OperatorProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let log = self.log();
            let last = log.lines().rev().take(20).collect::<Vec<_>>();
            eprintln!("operator {}, last lines first:\n{}", self.identity, last.join("\n"));
        }
    }
}

impl OperatorProcess {
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// Sends SIGKILL: the operator does not release its Lease.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Sends SIGTERM and waits for the exit. Returns whether the exit status is success.
    pub fn terminate(mut self) -> bool {
        let status = Command::new("kill").arg(self.child.id().to_string()).status().unwrap();
        assert!(status.success());
        self.child.wait().unwrap().success()
    }

    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Returns the address of health and metrics, once the operator serves them.
    pub async fn address(&self) -> String {
        self.listen_address("health and metrics").await
    }

    /// Returns the address of `what`, once the operator serves it.
    pub async fn listen_address(&self, what: &str) -> String {
        let said = format!("serving {what}");
        eventually(&said, async || {
            let log = self.log();
            let line = log.lines().find(|line| line.contains(&said))?.to_owned();
            let line: Value = serde_json::from_str(&line).ok()?;
            Some(line["fields"]["address"].as_str()?.to_owned())
        })
        .await
    }

    /// Returns the sum of a metric over its series with these labels; `None` = there is none.
    pub async fn metric(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let url = format!("http://{}/metrics", self.address().await);
        let text = reqwest::get(url).await.ok()?.text().await.ok()?;
        sum(&text, name, labels)
    }
}

impl TestNamespace {
    /// Creates a namespace; `None` = no API server is available for tests.
    pub async fn try_new(name: &str) -> Option<TestNamespace> {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let server = cluster::api().await?;
        let client = server.client().await;
        let namespace = server.namespace(name).await;
        let user = format!("system:serviceaccount:{namespace}:sluice-operator");
        let stage = TestNamespace { server, client, namespace, user, folder: tempfile::tempdir().unwrap() };
        stage.grant().await;
        Some(stage)
    }

    /// Grants the operator's user exactly the rights in `rbac.yaml`.
    async fn grant(&self) {
        let documents: Vec<Value> =
            RBAC.split("\n---\n").map(|text| serde_yaml::from_str(text).unwrap()).collect();
        let cluster: ClusterRole = serde_json::from_value(documents[0].clone()).unwrap();
        let params = PatchParams::apply("test").force();
        let roles = Api::<ClusterRole>::all(self.client.clone());
        roles.patch("sluice-operator", &params, &Patch::Apply(&cluster)).await.unwrap();
        let own: Role = serde_json::from_value(documents[1].clone()).unwrap();
        self.create(&own).await;
        let subject = json!([{"kind": "User", "name": self.user, "apiGroup": "rbac.authorization.k8s.io"}]);
        let of = |kind: &str| json!({"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": "sluice-operator"});
        let binding: ClusterRoleBinding = serde_json::from_value(
            json!({"metadata": {"name": self.namespace}, "subjects": subject, "roleRef": of("ClusterRole")}),
        )
        .unwrap();
        let bindings = Api::<ClusterRoleBinding>::all(self.client.clone());
        bindings.create(&PostParams::default(), &binding).await.unwrap();
        let binding: RoleBinding = serde_json::from_value(
            json!({"metadata": {"name": "sluice-operator"}, "subjects": subject, "roleRef": of("Role")}),
        )
        .unwrap();
        self.create(&binding).await;
    }

    /// Starts an operator with additional flags.
    pub fn operator(&self, identity: &str, flags: &[&str]) -> OperatorProcess {
        let life = std::fs::read_dir(self.folder.path()).unwrap().count();
        let path = self.folder.path().join(format!("{identity}-{life}.log"));
        let log = File::create(&path).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_sluice-operator"));
        command
            .env_clear()
            .env("KUBECONFIG", self.server.kubeconfig_of(&self.user, None))
            .args(["--namespaces", &self.namespace, "--own-namespace", &self.namespace])
            .args([
                "--identity",
                identity,
                "--listen",
                "127.0.0.1:0",
                "--read-listen",
                "127.0.0.1:0",
                "--log-format",
                "json",
            ])
            .args(["--sidecar-image", "example.org/sidecar:1", "--engine-image", "example.org/engine:1"])
            .args([
                "--node-grace-seconds",
                "0",
                "--log",
                "info,sluice_operator=debug,kube_client::client::builder=off",
            ])
            .args(if flags.contains(&"--lease-seconds") { &[][..] } else { &["--lease-seconds", "3"] })
            .args(flags)
            .stdin(Stdio::null())
            .stderr(log);
        let child = command.spawn().unwrap();
        OperatorProcess { child, log: path, identity: identity.to_owned() }
    }

    pub fn api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub async fn create<K>(&self, object: &K) -> K
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + std::fmt::Debug
            + Serialize
            + DeserializeOwned,
    {
        self.api::<K>().create(&PostParams::default(), object).await.unwrap()
    }

    pub async fn delete<K>(&self, name: &str)
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + std::fmt::Debug
            + DeserializeOwned,
    {
        self.api::<K>().delete(name, &DeleteParams::background()).await.unwrap();
    }

    /// Creates a pool of host-backed GPUs of 96 MiB.
    pub async fn pool(&self, spec: Value) -> GpuPool {
        let mut whole = json!({"deviceClassName": "host.sluice.dev", "device": {"host": {"memory": "96Mi"}},
            "gpus": [{"name": "chat", "count": 2}], "hostMemoryPerGPU": "2Gi"});
        merge(&mut whole, spec);
        self.create(&object("GpuPool", "p", whole)).await
    }

    pub async fn tenant(&self, name: &str, spec: Value) -> ModelTenant {
        let source =
            json!({"type": "PersistentVolumeClaim", "persistentVolumeClaim": {"claimName": "models"}});
        let mut whole = json!({"poolRef": {"name": "p"}, "model": {"source": source}});
        merge(&mut whole, spec);
        self.create(&object("ModelTenant", name, whole)).await
    }

    /// Changes a spec as a user does.
    pub async fn update_spec<K>(&self, name: &str, spec: Value)
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + std::fmt::Debug
            + DeserializeOwned,
    {
        let patch = Patch::Merge(json!({"spec": spec}));
        self.api::<K>().patch(name, &PatchParams::default(), &patch).await.unwrap();
    }

    /// Writes a status as another client than the operator.
    pub async fn set_status<K>(&self, name: &str, status: Value)
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + std::fmt::Debug
            + DeserializeOwned,
    {
        let patch = Patch::Merge(json!({"status": status}));
        self.api::<K>().patch_status(name, &PatchParams::default(), &patch).await.unwrap();
    }

    /// Waits until a tenant's condition has this status and this reason.
    pub async fn condition(&self, tenant: &str, kind: &str, truth: &str, reason: &str) -> Condition {
        let api = self.api::<ModelTenant>();
        let what = format!("{tenant}: {kind}={truth}, {reason}");
        eventually(&what, async || {
            let conditions = api.get(tenant).await.unwrap().status?.conditions;
            let found = conditions.into_iter().find(|condition| condition.type_ == kind)?;
            (found.status == truth && found.reason == reason).then_some(found)
        })
        .await
    }

    /// Waits until exactly the `expected` Deployments exist, each with its claim.
    pub async fn deployments(&self, expected: &[(&str, &str)]) {
        let api = self.api::<Deployment>();
        let what = format!("Deployments {expected:?}");
        eventually(&what, async || {
            let all = api.list(&ListParams::default()).await.unwrap().items;
            let seen: Vec<(String, String)> = all
                .iter()
                .filter(|one| one.metadata.deletion_timestamp.is_none())
                .map(|one| {
                    (one.name_any(), one.annotations().get("sluice.dev/claim").cloned().unwrap_or_default())
                })
                .collect();
            let seen: Vec<(&str, &str)> =
                seen.iter().map(|(name, claim)| (name.as_str(), claim.as_str())).collect();
            (seen == expected).then_some(())
        })
        .await;
    }

    /// Waits until exactly these claims exist.
    pub async fn claims(&self, expected: &[&str]) {
        let api = self.api::<ResourceClaim>();
        eventually(&format!("claims {expected:?}"), async || {
            let all = api.list(&ListParams::default()).await.unwrap().items;
            let names: Vec<String> = all.iter().map(ResourceExt::name_any).collect();
            (names == expected).then_some(())
        })
        .await;
    }

    pub async fn config_maps(&self) -> Vec<String> {
        let all = self.api::<ConfigMap>().list(&ListParams::default()).await.unwrap().items;
        all.iter().map(ResourceExt::name_any).collect()
    }

    pub async fn secrets(&self) -> Vec<String> {
        let all = self.api::<Secret>().list(&ListParams::default()).await.unwrap().items;
        all.iter().map(ResourceExt::name_any).collect()
    }

    pub async fn leader(&self) -> Option<String> {
        let lease = self.api::<Lease>().get_opt("sluice-operator").await.unwrap()?;
        lease.spec?.holder_identity.filter(|holder| !holder.is_empty())
    }

    /// Returns the operators' writes so far, without Leases: verb, resource and name.
    pub fn writes(&self) -> Vec<String> {
        let log = self.server.audit_log().unwrap();
        let own = log
            .iter()
            .filter(|record| record.user.username == self.user && record.stage == "ResponseComplete");
        let writes = own.filter(|record| !["get", "list", "watch"].contains(&record.verb.as_str()));
        let concerning =
            writes.filter(|record| record.object.as_ref().is_none_or(|object| object.resource != "leases"));
        concerning.map(audit_line).collect()
    }

    /// Returns how often the operators read the Secret `name`, in full or only its metadata.
    pub fn secret_read_count(&self, name: &str) -> usize {
        let log = self.server.audit_log().unwrap();
        let of = |record: &&audit::Record| {
            let secret = record.object.as_ref().filter(|object| object.resource == "secrets");
            record.user.username == self.user
                && record.stage == "ResponseComplete"
                && record.verb == "get"
                && secret.is_some_and(|secret| secret.name == name)
        };
        log.iter().filter(of).count()
    }

    /// Returns the operators' requests that the API server rejected as forbidden.
    pub fn forbidden_requests(&self) -> Vec<String> {
        let log = self.server.audit_log().unwrap();
        let own = log.iter().filter(|record| record.user.username == self.user);
        own.filter(|record| record.answer.code == 403).map(audit_line).collect()
    }
}

fn audit_line(record: &audit::Record) -> String {
    format!("{} {} -> {}", record.verb, record.request_uri, record.answer.code)
}

fn object<K: DeserializeOwned>(kind: &str, name: &str, spec: Value) -> K {
    let whole =
        json!({"apiVersion": "sluice.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec});
    serde_json::from_value(whole).unwrap()
}

/// Merges the fields of `from` into `into`, at any depth.
fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}
