//! The operator as a process, with exactly the RBAC rights that it ships with.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use kube::Client;
use kube::api::{Api, PostParams};
use serde_json::{Value, json};
use sluice_common::metrics_text::sum;
use sluice_e2e::cluster::{self, ProcessSpawner, eventually};

use super::sizes::Sizes;

/// The shipped RBAC rights.
const RBAC: &str = include_str!("../../../../operator/manager/rbac.yaml");

/// Allocator settings of the chart: `charts/sluice/templates/operator.yaml`.
const ALLOCATOR: [(&str, &str); 3] =
    [("MALLOC_ARENA_MAX", "1"), ("MALLOC_MMAP_THRESHOLD_", "131072"), ("MALLOC_TRIM_THRESHOLD_", "131072")];

/// Configuration for starting operators.
pub struct ProcessDirs {
    kubeconfig: PathBuf,
    binary: PathBuf,
    namespace: String,
    user: String,
    flags: Vec<String>,
    logs: PathBuf,
    /// Removed on drop, with its logs.
    _scratch: Option<tempfile::TempDir>,
}

/// A running operator, killed when dropped.
pub struct Operator {
    child: Child,
    log: PathBuf,
    address: String,
}

/// Resource use of a process so far.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// CPU time of all threads, in user mode and in the kernel.
    pub cpu: Duration,
    /// Peak resident memory, MiB.
    pub peak_mib: f64,
    /// Resident memory, MiB.
    pub resident_mib: f64,
}

impl ProcessDirs {
    /// Creates a namespace for operators on `server`, with the rights that they need and no others.
    pub async fn new(
        server: &cluster::Api,
        binary: &Path,
        logs: Option<PathBuf>,
        sidecar_port: u16,
        sizes: &Sizes,
    ) -> ProcessDirs {
        let namespace = server.namespace("operator").await;
        let user = format!("system:serviceaccount:{namespace}:sluice-operator");
        grant(&server.client().await, &namespace, &user).await;
        let mut flags = vec!["--sidecar-port".to_owned(), sidecar_port.to_string()];
        if let Some(seconds) = sizes.poll_seconds {
            flags.extend(["--poll-seconds".to_owned(), seconds.to_string()]);
        }
        flags.extend(["--status-seconds".to_owned(), sizes.status_seconds.to_string()]);
        flags.extend(sizes.no_polling.then(|| "--no-polling".to_owned()));
        let scratch = logs.is_none().then(|| tempfile::tempdir().expect("a temporary folder"));
        let logs = logs.or_else(|| Some(scratch.as_ref()?.path().to_owned())).expect("one or the other");
        let kubeconfig = server.kubeconfig_of(&user, None);
        ProcessDirs { kubeconfig, binary: binary.to_owned(), namespace, user, flags, logs, _scratch: scratch }
    }

    /// User name of the operators at the API server.
    pub fn user(&self) -> &str {
        &self.user
    }

    /// Starts an operator and waits until it serves its metrics.
    pub async fn start(&self, name: &str) -> Operator {
        let log = self.logs.join(format!("{name}.log"));
        let file = File::create(&log).unwrap_or_else(|e| panic!("{}: {e}", log.display()));
        let mut command = Command::new(&self.binary);
        command
            .env_clear()
            .envs(ALLOCATOR)
            .env("KUBECONFIG", &self.kubeconfig)
            .args(["--own-namespace", &self.namespace, "--identity", name])
            .args(["--listen", "127.0.0.1:0", "--read-listen", "127.0.0.1:0", "--log-format", "json"])
            .args(["--sidecar-image", "example.org/sidecar:1", "--engine-image", "example.org/engine:1"])
            .args(&self.flags)
            .stdin(Stdio::null())
            .stderr(file);
        // The kernel kills it when the tests exit.
        let child = ProcessSpawner::plain().spawn(command);
        let child = child.unwrap_or_else(|e| panic!("{}: {e}", self.binary.display()));
        let mut operator = Operator { child, log, address: String::new() };
        operator.address = operator.serves().await;
        operator
    }
}

async fn grant(client: &Client, namespace: &str, user: &str) {
    let documents: Vec<Value> =
        RBAC.split("\n---\n").map(|text| serde_yaml::from_str(text).expect("rbac.yaml is YAML")).collect();
    let subject = json!([{"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"}]);
    let of = |kind: &str| json!({"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": "sluice-operator"});
    let binding = |kind: &str| json!({"metadata": {"name": "sluice-operator"}, "subjects": subject, "roleRef": of(kind)});
    let params = PostParams::default();
    let all: Api<ClusterRole> = Api::all(client.clone());
    all.create(&params, &typed(documents[0].clone())).await.expect("a cluster role");
    let own: Api<Role> = Api::namespaced(client.clone(), namespace);
    own.create(&params, &typed(documents[1].clone())).await.expect("a role");
    let all: Api<ClusterRoleBinding> = Api::all(client.clone());
    all.create(&params, &typed(binding("ClusterRole"))).await.expect("its binding");
    let own: Api<RoleBinding> = Api::namespaced(client.clone(), namespace);
    own.create(&params, &typed(binding("Role"))).await.expect("its binding");
}

fn typed<K: serde::de::DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).expect("it is of this kind")
}

impl Operator {
    /// Checks that the process runs.
    ///
    /// # Panics
    /// If it has exited, with the end of its log.
    pub fn assert_alive(&self) {
        let path = format!("/proc/{}/stat", self.child.id());
        let stat = std::fs::read_to_string(path).unwrap_or_default();
        let state = stat.rsplit(')').next().and_then(|rest| rest.trim().chars().next());
        assert!(!matches!(state, None | Some('Z')), "the operator has ended:\n{}", self.tail());
    }

    /// SIGTERM; waits until it has ended well.
    pub fn end(mut self) {
        let status = Command::new("kill").arg(self.child.id().to_string()).status().expect("kill");
        assert!(status.success(), "the operator process runs");
        let ended = self.child.wait().expect("a child can be waited for");
        assert!(ended.success(), "it ends well:\n{}", self.tail());
    }

    /// A figure of its metrics.
    pub async fn figure(&self, name: &str) -> Option<f64> {
        let url = format!("http://{}/metrics", self.address);
        let text = reqwest::get(url).await.ok()?.text().await.ok()?;
        sum(&text, name, &[])
    }

    /// What it has cost so far.
    pub fn cost(&self) -> Cost {
        let read = |file: &str| {
            let path = format!("/proc/{}/{file}", self.child.id());
            std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}\n{}", self.tail()))
        };
        let status = read("status");
        let mib = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("every process has it");
            line.trim().trim_end_matches(" kB").parse::<f64>().expect("kilobytes") / 1024.0
        };
        let cpu = cpu(&read("stat"));
        Cost { cpu, peak_mib: mib("VmHWM:"), resident_mib: mib("VmRSS:") }
    }

    fn tail(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    async fn serves(&self) -> String {
        let said = "serving health and metrics";
        eventually(said, async || {
            let log = std::fs::read_to_string(&self.log).ok()?;
            let line = log.lines().find(|line| line.contains(said))?;
            let line: Value = serde_json::from_str(line).ok()?;
            Some(line["fields"]["address"].as_str()?.to_owned())
        })
        .await
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Processor time in the text of `/proc/PID/stat`: the 14th and the 15th field, hundredths of a second.
fn cpu(stat: &str) -> Duration {
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok()).expect("a number");
    Duration::from_millis((ticks(11) + ticks(12)) * 10)
}
