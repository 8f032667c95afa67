//! The product, installed on a node by helm as users do, and used over the addresses of Services.

pub mod admin;
pub mod alerts;
mod ask;
mod hub;
mod load;
pub mod pod;
pub mod processes;
mod users;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sluice_common::metrics_text::sum;
use sluice_e2e::cluster::{Binaries, ClusterNode, within};
use sluice_e2e::hub::Hub;

pub use self::ask::{COMPLETIONS, completion, text_of};
pub use self::hub::model;
pub use self::load::Load;

/// Limit for three pods to be placed, load their model and serve, on two busy cores.
const READY: Duration = Duration::from_secs(240);
/// Images of the product.
pub const IMAGES: [&str; 4] = ["operator", "devices", "sidecar", "engine"];
/// Namespace of the chart.
pub const SYSTEM: &str = "sluice-system";
/// Prompt of the requests.
pub const PROMPT: &str = "Once upon a time";
/// Tenants of a test.
pub const TENANTS: [&str; 3] = ["chat", "code", "summary"];

/// The chart of this tree.
pub fn chart() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts/sluice")
}

/// Path of a binary of the product.
pub fn binary(name: &str) -> PathBuf {
    PathBuf::from(std::env::var_os("SLUICE_BIN_DIR").expect("images are there, so binaries are")).join(name)
}

/// A node with the product on it.
pub struct Product<'a> {
    /// The node.
    pub node: &'a ClusterNode,
    helm: PathBuf,
    home: tempfile::TempDir,
    values: String,
    /// Namespace of the tenants.
    pub namespace: String,
    /// HTTP client without a proxy.
    pub http: reqwest::Client,
    /// Addresses of tenants' Services; constant while the tenant exists.
    urls: RefCell<BTreeMap<String, String>>,
}

impl<'a> Product<'a> {
    /// Installs the chart. If a prerequisite is missing, prints the reason and returns `None`.
    pub async fn install(node: &'a ClusterNode) -> Option<Product<'a>> {
        Product::install_with(node, "").await
    }

    /// Same as [`Product::install`], with further values, each after a comma.
    pub async fn install_with(node: &'a ClusterNode, more: &str) -> Option<Product<'a>> {
        let product = Product::prepare(node, more).await?;
        // The suite has established the CRDs already. helm takes over and replaces older ones of a failed test.
        product.release("install", &chart(), &["--take-ownership"]);
        Some(product)
    }

    /// Same as [`Product::install`], with an operator that has rights only in the tenants' namespace and only
    /// manages it.
    pub async fn install_for_its_namespace(node: &'a ClusterNode) -> Option<Product<'a>> {
        let mut product = Product::prepare(node, "").await?;
        let _ = write!(product.values, ",operator.namespaces[0]={}", product.namespace);
        product.release("install", &chart(), &["--take-ownership"]);
        Some(product)
    }

    /// Prepares all prerequisites of an installation. Installs nothing.
    pub async fn prepare(node: &'a ClusterNode, more: &str) -> Option<Product<'a>> {
        let helm = Binaries::find()?.path("helm");
        for image in IMAGES {
            node.image(image)?;
        }
        let _ = rustls::crypto::ring::default_provider().install_default();
        let namespace = node.api().namespace("product").await;
        // helm and kubectl block this thread for longer than a server keeps an idle connection, so none is kept
        // here.
        let http = reqwest::Client::builder().no_proxy().pool_max_idle_per_host(0).timeout(READY);
        let http = http.build().unwrap();
        let values =
            format!("trial.enabled=true,trial.gpus=2,trial.memory=64Mi,operator.statusSeconds=1{more}");
        let home = tempfile::tempdir().unwrap();
        let product = Product { node, helm, home, values, namespace, http, urls: RefCell::default() };
        product.clear();
        Some(product)
    }

    /// Removes leftovers of a failed test, which would fail all others: tenants first, while a driver runs. Does
    /// nothing on an external cluster: a release there may be in use.
    fn clear(&self) {
        if !self.node.api().is_own() {
            return;
        }
        self.kubectl_anywhere(&["delete", "modeltenants,gpupools", "--all", "-A", "--wait=false"]);
        self.kubectl_anywhere(&[
            "wait",
            "--for=delete",
            "pods",
            "-l",
            "sluice.dev/tenant",
            "-A",
            "--timeout=2m",
        ]);
        self.helm(&[
            "uninstall",
            "sluice",
            "--namespace",
            SYSTEM,
            "--ignore-not-found",
            "--no-hooks",
            "--wait",
        ]);
    }

    /// Runs `helm install` or `helm upgrade` and waits until all of it is ready.
    pub fn release(&self, verb: &str, chart: &Path, more: &[&str]) {
        let chart = chart.to_str().unwrap();
        let release = [verb, "sluice", chart, "--namespace", SYSTEM, "--set", &self.values];
        let wait = ["--wait", "--timeout", "3m"];
        let create: &[&str] = if verb == "install" { &["--create-namespace"] } else { &[] };
        self.helm(&[&release[..], &wait, create, more].concat());
    }

    /// Replaces the operator by one that reads sidecars every two seconds instead of every 30, for tests that wait for
    /// figures and states in a status.
    pub fn read_often(&self) {
        let operator = json!({"name": "operator", "args": ["--poll-seconds=2"]});
        let patch = json!({"spec": {"template": {"spec": {"containers": [operator]}}}}).to_string();
        let name = "deployment/sluice-operator";
        self.kubectl(&["-n", SYSTEM, "patch", name, "-p", &patch]);
        self.kubectl(&["-n", SYSTEM, "rollout", "status", name, "--timeout=2m"]);
    }

    /// Runs `helm uninstall` with its hooks.
    pub fn uninstall(&self) {
        self.helm(&["uninstall", "sluice", "--namespace", SYSTEM, "--wait", "--timeout", "2m"]);
    }

    /// The values of the release.
    pub fn values(&self) -> &str {
        &self.values
    }

    /// Returns helm's message for an uninstallation while tenants exist.
    ///
    /// # Panics
    /// If it uninstalls.
    pub fn refused_uninstall(&self) -> String {
        let output = self.call_helm(&["uninstall", "sluice", "--namespace", SYSTEM, "--timeout", "2m"]);
        assert!(!output.status.success(), "it was uninstalled under its tenants");
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    }

    /// Runs helm and returns its output.
    pub fn helm(&self, arguments: &[&str]) -> String {
        self.said(self.call_helm(arguments))
    }

    fn call_helm(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(&self.helm);
        command.args(arguments).env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("HOME", self.home.path()).arg("--kubeconfig").arg(self.node.api().kubeconfig_path());
        command.output().unwrap()
    }

    /// Runs kubectl in the tenants' namespace and returns its output.
    pub fn kubectl(&self, arguments: &[&str]) -> String {
        self.said(self.node.api().kubectl(&[&["-n", &self.namespace], arguments].concat()).output().unwrap())
    }

    /// Runs kubectl in the namespace that its arguments name and returns its output.
    pub fn kubectl_anywhere(&self, arguments: &[&str]) -> String {
        self.said(self.node.api().kubectl(arguments).output().unwrap())
    }

    /// Returns the output of a program.
    ///
    /// # Panics
    /// If it failed, with its error output and the objects of the cluster.
    #[track_caller]
    pub fn said(&self, output: Output) -> String {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(output.status.success(), "{}\n{}", text(&output.stderr), self.scene());
        text(&output.stdout)
    }

    /// Runs `kubectl apply`.
    pub fn apply(&self, objects: &[Value]) {
        self.said(self.try_apply(objects, &[]));
    }

    /// Runs `kubectl apply` with further arguments. It may fail.
    pub fn try_apply(&self, objects: &[Value], more: &[&str]) -> Output {
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
        let arguments = [&["-n", &self.namespace, "apply", "-f", "-"], more].concat();
        let mut command = self.node.api().kubectl(&arguments);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(list.to_string().as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    }

    /// Returns an object.
    pub fn get(&self, kind: &str, name: &str) -> Value {
        serde_json::from_str(&self.kubectl(&["get", kind, name, "-o", "json"])).unwrap()
    }

    /// Returns a tenant.
    pub fn tenant(&self, name: &str) -> Value {
        self.get("modeltenant", name)
    }

    /// Returns a tenant's condition of this type; `None` = not set yet.
    pub fn condition_of(&self, name: &str, kind: &str) -> Option<Value> {
        let tenant = self.tenant(name);
        tenant["status"]["conditions"].as_array()?.iter().find(|one| one["type"] == kind).cloned()
    }

    /// Waits until a tenant's condition has this status.
    pub async fn condition(&self, name: &str, kind: &str, status: &str) {
        let seen = async || self.condition_of(name, kind).filter(|one| one["status"] == status).map(drop);
        self.wait(&format!("{name}: {kind} is {status}"), seen).await;
    }

    /// Waits for a value. On timeout, prints the objects of the cluster.
    pub async fn wait<T>(&self, what: &str, mut get: impl AsyncFnMut() -> Option<T>) -> T {
        let deadline = Instant::now() + READY;
        within(READY * 2, what, async || {
            let got = get().await;
            assert!(got.is_some() || Instant::now() < deadline, "{what}, in vain:\n{}", self.scene());
            if got.is_none() {
                tokio::time::sleep(Duration::from_millis(300)).await;
            }
            got
        })
        .await
    }

    /// Describes the objects of the cluster, for a failure message.
    fn scene(&self) -> String {
        let namespace = self.namespace.as_str();
        let calls: [&[&str]; 6] = [
            &["get", "modeltenants,gpupools,resourceclaims,pods,jobs,deployments", "-A", "-o", "wide"],
            &[
                "get",
                "modeltenants",
                "-n",
                namespace,
                "-o",
                "jsonpath={range .items[*]}{.metadata.name}{.status.conditions}{\"\\n\"}{end}",
            ],
            &["get", "events", "-A", "--sort-by=.lastTimestamp"],
            &["logs", "-n", "sluice-system", "deployment/sluice-operator", "--tail=30"],
            &[
                "logs",
                "-n",
                namespace,
                "-l",
                "app.kubernetes.io/component=slot",
                "--all-containers",
                "--tail=15",
                "--prefix",
            ],
            &["describe", "pods", "-n", namespace],
        ];
        let mut scene = String::new();
        for call in calls {
            let output = self.node.api().kubectl(call).output().unwrap();
            let text = [output.stdout, output.stderr].concat();
            let _ = writeln!(scene, "$ kubectl {}\n{}", call.join(" "), String::from_utf8_lossy(&text));
        }
        scene
    }

    /// Returns the URL of a tenant's Service.
    pub fn url(&self, tenant: &str) -> String {
        let ask = || {
            let service = self.get("service", tenant);
            format!("http://{}:8000", service["spec"]["clusterIP"].as_str().unwrap())
        };
        self.urls.borrow_mut().entry(tenant.to_owned()).or_insert_with(ask).clone()
    }

    /// Waits until a tenant's Service routes to its pod, a moment after the pod is ready.
    pub async fn reached(&self, tenant: &str) {
        let url = format!("{}/ready", self.url(tenant));
        self.wait(&format!("{tenant}: its Service answers"), async || self.http.get(&url).send().await.ok())
            .await;
    }

    /// Changes fields of an object's spec, as `kubectl patch` does.
    pub fn change(&self, kind: &str, name: &str, spec: &Value) {
        let patch = json!({"spec": spec}).to_string();
        self.kubectl(&["patch", kind, name, "--type=merge", "-p", &patch]);
    }

    /// Returns the metrics of the pod with this address.
    pub async fn metrics(&self, address: &str) -> String {
        let answer = self.http.get(format!("http://{address}:8002/metrics")).send().await.unwrap();
        answer.text().await.unwrap()
    }

    /// Applies three tenants and their pool at once, as users do, and waits until all serve.
    pub async fn start_at_once(&self, hub: &Hub) {
        let tenants = TENANTS.map(|name| tenant(name, hub.endpoint()));
        self.apply(&[&[pool(1)][..], &tenants].concat());
        self.serve(&TENANTS).await;
    }

    /// Starts three tenants on one GPU and waits until all serve.
    pub async fn start_tenants(&self, hub: &Hub) {
        self.apply(&[pool(1)]);
        self.start(&TENANTS.map(|name| tenant(name, hub.endpoint()))).await;
    }

    /// Starts tenants on one GPU and waits until all serve. They start suspended until all models are inspected:
    /// shares are assigned among the present tenants, and a later one would wait for memory.
    pub async fn start(&self, tenants: &[Value]) {
        let all = |suspend: bool| {
            let of = |tenant: &Value| {
                let mut tenant = tenant.clone();
                tenant["spec"]["suspend"] = suspend.into();
                tenant
            };
            tenants.iter().map(of).collect::<Vec<_>>()
        };
        let names: Vec<&str> =
            tenants.iter().filter_map(|tenant| tenant["metadata"]["name"].as_str()).collect();
        self.apply(&all(true));
        for name in &names {
            let known = async || (!self.tenant(name)["status"]["model"].is_null()).then_some(());
            self.wait(&format!("the model of {name} is known"), known).await;
        }
        self.apply(&all(false));
        self.serve(&names).await;
    }

    async fn serve(&self, tenants: &[&str]) {
        for name in tenants {
            self.condition(name, "Ready", "True").await;
            self.reached(name).await;
        }
    }

    /// Deletes the tenants and uninstalls the chart, for the next test.
    pub fn end(self) {
        self.kubectl(&["delete", "modeltenants", "--all", "--wait"]);
        self.kubectl(&["delete", "namespace", &self.namespace, "--wait", "--timeout=2m"]);
        self.uninstall();
    }
}

/// Returns a pool of host-backed GPUs.
pub fn pool(gpus: u32) -> Value {
    json!({
        "apiVersion": "sluice.dev/v1alpha1", "kind": "GpuPool", "metadata": {"name": "trial"},
        "spec": {
            "deviceClassName": "host.sluice.dev",
            "device": {"host": {"memory": "15Mi", "chunkBytes": "64Ki"}},
            "gpus": [{"name": "shared", "count": gpus}],
            "hostMemoryPerGPU": "2Gi",
        },
    })
}

/// Returns a tenant with the model of `hub`.
pub fn tenant(name: &str, hub: &str) -> Value {
    let little = json!({"requests": {"cpu": "20m"}, "limits": {"cpu": "1"}});
    json!({
        "apiVersion": "sluice.dev/v1alpha1", "kind": "ModelTenant", "metadata": {"name": name},
        "spec": {
            "poolRef": {"name": "trial"},
            "model": {
                "source": {"type": "HuggingFace", "huggingFace": {"repo": "tests/story", "endpoint": hub}},
                "maxModelLen": 256,
            },
            // Tests stop engines in the middle of streams to hold them.
            "engine": {"resources": little, "hangTimeoutSeconds": 600}, "sidecar": {"resources": little},
        },
    })
}

/// Returns the sum of the samples of a tenant with these labels; 0 if there are none.
pub fn value(metrics: &str, name: &str, tenant: &str, labels: &[(&str, &str)]) -> f64 {
    sum(metrics, name, &[&[("model_name", tenant)][..], labels].concat()).unwrap_or(0.0)
}
