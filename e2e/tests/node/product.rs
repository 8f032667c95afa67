//! The way its users meet the product: `helm install`, `kubectl apply`, and an answer from a pod; then one idles and another
//! is loaded, and it all goes again.

mod hub;

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use sluice_e2e::cluster::{Binaries, Node, on_node_alone, within};

use self::hub::Hub;

/// Until three pods have been placed, have fetched and loaded their model, and serve, on two busy cores.
const READY: Duration = Duration::from_secs(240);
/// Images of the product.
const IMAGES: [&str; 4] = ["operator", "devices", "sidecar", "engine"];
const PROMPT: &str = "Once upon a time";
const TENANTS: [&str; 3] = ["chat", "code", "summary"];

/// A node with the product on it.
struct Product<'a> {
    node: &'a Node,
    helm: PathBuf,
    home: tempfile::TempDir,
    namespace: String,
    http: reqwest::Client,
}

impl<'a> Product<'a> {
    /// Installs the chart; `None`, with a line that says why, where something for it is missing.
    async fn install(node: &'a Node) -> Option<Product<'a>> {
        let helm = Binaries::find()?.path("helm");
        for image in IMAGES {
            node.image(image)?;
        }
        let _ = rustls::crypto::ring::default_provider().install_default();
        let namespace = node.api().namespace("product").await;
        let http = reqwest::Client::builder().no_proxy().build().unwrap();
        let product = Product { node, helm, home: tempfile::tempdir().unwrap(), namespace, http };
        let chart = format!("{}/../charts/sluice", env!("CARGO_MANIFEST_DIR"));
        let values = "trial.enabled=true,trial.gpus=2,trial.memory=64Mi,operator.statusSeconds=1";
        let release =
            ["sluice", &chart, "--namespace", "sluice-system", "--create-namespace", "--set", values];
        product
            .helm(&[&["install"], &release[..], &["--take-ownership", "--wait", "--timeout", "3m"]].concat());
        Some(product)
    }

    fn helm(&self, arguments: &[&str]) -> String {
        let mut command = Command::new(&self.helm);
        command.args(arguments).env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("HOME", self.home.path()).arg("--kubeconfig").arg(self.node.api().kubeconfig_path());
        self.said(command.output().unwrap())
    }

    fn kubectl(&self, arguments: &[&str]) -> String {
        self.said(self.node.api().kubectl(&[&["-n", &self.namespace], arguments].concat()).output().unwrap())
    }

    /// What a program printed.
    ///
    /// # Panics
    /// With what it complained of, and what there is in the cluster, if it failed.
    #[track_caller]
    fn said(&self, output: Output) -> String {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(output.status.success(), "{}\n{}", text(&output.stderr), self.scene());
        text(&output.stdout)
    }

    fn apply(&self, objects: &[Value]) {
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
        let mut command = self.node.api().kubectl(&["-n", &self.namespace, "apply", "-f", "-"]);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(list.to_string().as_bytes()).unwrap();
        self.said(child.wait_with_output().unwrap());
    }

    fn get(&self, kind: &str, name: &str) -> Value {
        serde_json::from_str(&self.kubectl(&["get", kind, name, "-o", "json"])).unwrap()
    }

    fn tenant(&self, name: &str) -> Value {
        self.get("modeltenant", name)
    }

    /// Waits until a tenant's condition is as wanted.
    async fn condition(&self, name: &str, kind: &str, status: &str) {
        let seen = async || {
            let tenant = self.tenant(name);
            let conditions = tenant["status"]["conditions"].as_array().cloned().unwrap_or_default();
            conditions.iter().any(|one| one["type"] == kind && one["status"] == status).then_some(())
        };
        self.wait(&format!("{name}: {kind} is {status}"), seen).await;
    }

    /// Waits, and shows what there is where that is in vain.
    async fn wait<T>(&self, what: &str, mut get: impl AsyncFnMut() -> Option<T>) -> T {
        let deadline = std::time::Instant::now() + READY;
        within(READY * 2, what, async || {
            let got = get().await;
            assert!(
                got.is_some() || std::time::Instant::now() < deadline,
                "{what}, in vain:\n{}",
                self.scene()
            );
            if got.is_none() {
                tokio::time::sleep(Duration::from_millis(300)).await;
            }
            got
        })
        .await
    }

    /// What there is in the cluster, for a failure.
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

    /// Address of a tenant's Service.
    fn url(&self, tenant: &str) -> String {
        let service = self.get("service", tenant);
        format!("http://{}:8000", service["spec"]["clusterIP"].as_str().unwrap())
    }

    /// Waits until a tenant's Service leads to its pod: that is a moment after the pod is ready.
    async fn reached(&self, tenant: &str) {
        let url = format!("{}/ready", self.url(tenant));
        self.wait(&format!("{tenant}: its Service answers"), async || self.http.get(&url).send().await.ok())
            .await;
    }

    fn post(&self, tenant: &str, path: &str, body: &Value) -> reqwest::RequestBuilder {
        let request = self.http.post(format!("{}{path}", self.url(tenant)));
        request.header("content-type", "application/json").body(body.to_string())
    }

    /// A completion, whole.
    async fn complete(&self, tenant: &str, tokens: u32) -> String {
        self.answer(tenant, PROMPT, tokens).await
    }

    async fn answer(&self, tenant: &str, prompt: &str, tokens: u32) -> String {
        let body = completion(tenant, prompt, tokens, false);
        let answer = self.post(tenant, "/v1/completions", &body).send().await.unwrap();
        let (status, body) = (answer.status(), answer.text().await.unwrap());
        assert_eq!(status, 200, "{body}");
        let body: Value = serde_json::from_str(&body).unwrap();
        body["choices"][0]["text"].as_str().unwrap().to_owned()
    }

    /// The same as a stream.
    async fn stream(&self, tenant: &str, tokens: u32) -> String {
        let answer = self
            .post(tenant, "/v1/completions", &completion(tenant, PROMPT, tokens, true))
            .send()
            .await
            .unwrap();
        let body = answer.text().await.unwrap();
        assert!(body.trim_end().ends_with("data: [DONE]"), "a stream that was cut: {body}");
        let events =
            body.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|data| *data != "[DONE]");
        let events = events.map(|event| serde_json::from_str::<Value>(event).unwrap());
        events.filter_map(|event| event["choices"][0]["text"].as_str().map(str::to_owned)).collect()
    }
}

fn completion(tenant: &str, prompt: &str, tokens: u32, stream: bool) -> Value {
    json!({"model": tenant, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": stream})
}

fn pool(gpus: u32) -> Value {
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

fn tenant(name: &str, hub: &str) -> Value {
    let little = json!({"requests": {"cpu": "20m"}, "limits": {"cpu": "1"}});
    json!({
        "apiVersion": "sluice.dev/v1alpha1", "kind": "ModelTenant", "metadata": {"name": name},
        "spec": {
            "poolRef": {"name": "trial"},
            "model": {
                "source": {"type": "HuggingFace", "huggingFace": {"repo": "tests/story", "endpoint": hub}},
                "maxModelLen": 256,
            },
            "engine": {"resources": little}, "sidecar": {"resources": little},
        },
    })
}

impl Product<'_> {
    /// Three tenants on one GPU, and their answers, whole and as a stream.
    async fn serves(&self, hub: &Hub, golden: Option<&str>) {
        self.apply(&[pool(1)]);
        self.apply(&TENANTS.map(|name| tenant(name, hub.endpoint())));
        for name in TENANTS {
            self.condition(name, "Ready", "True").await;
            self.reached(name).await;
            let whole = self.complete(name, 32).await;
            assert_eq!(self.stream(name, 32).await, whole, "{name}");
            if let Some(golden) = golden {
                let said = format!("{PROMPT}{whole}");
                assert!(golden.starts_with(&said), "{name}: {said:?} is not of {golden:?}");
            }
        }
    }

    /// One tenant gets more requests than its own memory has KV for, while its neighbours idle.
    async fn lends(&self) {
        // All different: equal ones share their KV.
        let prompts: Vec<_> = (0..40).map(|n| format!("{PROMPT} {n} friends")).collect();
        let mut alone = Vec::new();
        for prompt in &prompts {
            alone.push(self.answer(TENANTS[1], prompt, 200).await);
        }
        let many = prompts.iter().map(|prompt| self.answer(TENANTS[0], prompt, 200));
        assert_eq!(futures_util::future::join_all(many).await, alone, "moving memory changes no token");
        let metrics = self.metrics(TENANTS[0]).await;
        let borrowed = value(&metrics, "sluice_moves_total{model_name=\"chat\",reason=\"borrow\"}");
        assert!(borrowed > 0.0, "nothing was borrowed\n{metrics}");
        let told = async || {
            let memory = &self.tenant(TENANTS[0])["status"]["memory"];
            memory["kv"].as_str().map(str::to_owned)
        };
        self.wait("the status tells the memory", told).await;
    }

    /// The metrics of a tenant's first slot.
    async fn metrics(&self, tenant: &str) -> String {
        let selector = slots_of(tenant);
        let address =
            self.kubectl(&["get", "pods", "-l", &selector, "-o", "jsonpath={.items[0].status.podIP}"]);
        let answer = self.http.get(format!("http://{address}:8002/metrics")).send().await.unwrap();
        answer.text().await.unwrap()
    }

    /// What people ask of a cluster.
    async fn is_explained(&self) {
        let explained = self.sluice(&["explain", "chat"]);
        assert!(explained.contains(&format!("{}/chat is ready.", self.namespace)), "{explained}");
        assert!(explained.contains("Its share of the GPU is"), "the leader was asked: {explained}");
        let all = async || {
            let top = self.sluice(&["top", "--once"]);
            TENANTS.iter().all(|name| top.contains(&format!("{}/{name}", self.namespace))).then_some(())
        };
        self.wait("top tells of all three", all).await;
    }

    /// What the CLI says in the cluster.
    fn sluice(&self, arguments: &[&str]) -> String {
        let folder =
            PathBuf::from(std::env::var_os("SLUICE_BIN_DIR").expect("images are there, so binaries are"));
        let mut command = Command::new(folder.join("kubectl-sluice"));
        command
            .args(arguments)
            .args(["-n", &self.namespace])
            .env("KUBECONFIG", self.node.api().kubeconfig_path());
        self.said(command.output().unwrap())
    }

    /// A second slot on a second GPU comes and goes, and no stream is cut.
    async fn scales(&self) {
        self.apply(&[pool(2)]);
        let before = self.complete("chat", 200).await;
        self.kubectl(&["scale", "modeltenant", "chat", "--replicas", "2"]);
        let two = async || (self.tenant("chat")["status"]["slots"].as_array()?.len() == 2).then_some(());
        self.wait("two slots", two).await;
        self.condition("chat", "Ready", "True").await;
        let streams = futures_util::future::join_all((0..20).map(|_| self.stream("chat", 200)));
        let scaled = async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            self.kubectl(&["scale", "modeltenant", "chat", "--replicas", "1"]);
        };
        let (answers, ()) = tokio::join!(streams, scaled);
        assert!(answers.iter().all(|answer| *answer == before), "a stream was cut: {answers:?}");
        self.pods_of("chat", 1).await;
    }

    async fn pods_of(&self, tenant: &str, wanted: usize) {
        let selector = slots_of(tenant);
        let left = async || {
            let names = self.kubectl(&["get", "pods", "-l", &selector, "-o", "name"]);
            (names.lines().count() == wanted).then_some(())
        };
        self.wait(&format!("{wanted} pods of {tenant}"), left).await;
    }

    /// A tenant that is deleted takes its pods along; the chart leaves those of the others.
    async fn goes(&self) {
        self.kubectl(&["delete", "modeltenant", "code"]);
        self.pods_of("code", 0).await;
        self.helm(&["uninstall", "sluice", "--namespace", "sluice-system", "--wait", "--timeout", "2m"]);
        self.complete("summary", 8).await;
        assert!(!self.kubectl(&["get", "gpupool", "trial", "-o", "name"]).is_empty());
    }
}

/// Selects the pods of a tenant's slots.
fn slots_of(tenant: &str) -> String {
    format!("sluice.dev/tenant={tenant},app.kubernetes.io/component=slot")
}

/// A sample of a text of metrics; 0 where it is not there.
fn value(metrics: &str, sample: &str) -> f64 {
    let found = metrics.lines().find_map(|line| line.strip_prefix(sample));
    found.map_or(0.0, |value| value.trim().parse().unwrap())
}

#[test]
fn from_helm_install_to_answers_lent_memory_scaling_and_the_end() {
    on_node_alone(async |node| {
        let Some((folder, golden)) = hub::model() else { return };
        let Some(product) = Product::install(node).await else { return };
        let hub = Hub::start("10.244.0.1", "tests/story", &folder);
        product.serves(&hub, golden.as_deref()).await;
        product.lends().await;
        product.is_explained().await;
        product.scales().await;
        product.goes().await;
    });
}
