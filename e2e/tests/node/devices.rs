//! The chart's driver on a real node: the kubelet registers it, the scheduler allocates its devices to a claim,
//! containerd reads its CDI files, and two pods of the claim share a folder.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use k8s_openapi::api::core::v1::{Event, Pod};
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use serde_json::json;
use sluice_e2e::cluster::{Binaries, ClusterNode, eventually, on_node};

/// Group of the shared folders (`devices.group` of the chart).
const GROUP: u32 = 65_500;
/// An image with a program that only waits; every node has it.
const WAITS: &str = "registry.k8s.io/pause:3.10.1";

/// Installs the chart. Only the driver's image is loaded.
fn install(node: &ClusterNode, namespace: &str) {
    let chart = concat!(env!("CARGO_MANIFEST_DIR"), "/../charts/sluice");
    let values = ["--set", "trial.enabled=true,trial.memory=96Mi,operator.replicas=1"];
    let install =
        ["install", "sluice", chart, "--namespace", namespace, "--take-ownership", "--force-conflicts"];
    helm(node, &[&install[..], &values].concat());
}

/// The installed chart. Dropping this value uninstalls it, also after a failure: the next test's driver would have
/// the same name.
struct Installed<'a>(&'a ClusterNode, &'a str);

impl Drop for Installed<'_> {
    fn drop(&mut self) {
        // No hooks: they need the operator's image, which is not loaded.
        helm(self.0, &["uninstall", "sluice", "--namespace", self.1, "--no-hooks", "--wait"]);
    }
}

fn helm(node: &ClusterNode, arguments: &[&str]) {
    let home = tempfile::tempdir().unwrap();
    let mut helm = Command::new(Binaries::find().expect("a node has binaries").path("helm"));
    helm.env("HOME", home.path()).env("KUBECONFIG", node.api().kubeconfig_path());
    let output = helm.args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn claim(name: &str, memory: &str) -> ResourceClaim {
    let request = |name: &str, class: &str| json!({"name": name, "exactly": {"deviceClassName": class}});
    let parameters = json!({
        "apiVersion": "sluice.dev/v1alpha1", "kind": "HostGpuConfig", "memory": memory, "chunkBytes": "64Ki",
    });
    let claim = json!({"metadata": {"name": name}, "spec": {"devices": {
        "requests": [request("gpu", "host.sluice.dev"), request("neighbourhood", "neighbourhood.sluice.dev")],
        "config": [{"requests": ["gpu"], "opaque": {"driver": "sluice.dev", "parameters": parameters}}],
    }}});
    serde_json::from_value(claim).unwrap()
}

/// Returns a pod of two containers, as the operator makes them. Each sleeps for a unique number of seconds, by
/// which it is found.
fn pod(name: &str, claim: &str, marks: [u32; 2]) -> Pod {
    let container = |name: &str, mark: u32, requests: &[&str]| {
        let claims: Vec<_> =
            requests.iter().map(|request| json!({"name": "gpu", "request": request})).collect();
        json!({
            "name": name, "image": WAITS, "imagePullPolicy": "IfNotPresent", "command": ["sleep", mark.to_string()],
            "resources": {"claims": claims},
            "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
        })
    };
    let mut sidecar = container("sidecar", marks[0], &["gpu", "neighbourhood"]);
    sidecar["restartPolicy"] = json!("Always");
    let pod = json!({"metadata": {"name": name}, "spec": {
        "resourceClaims": [{"name": "gpu", "resourceClaimName": claim}],
        "securityContext": {"runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532,
                            "seccompProfile": {"type": "RuntimeDefault"}},
        "terminationGracePeriodSeconds": 0, "automountServiceAccountToken": false,
        "initContainers": [sidecar], "containers": [container("engine", marks[1], &["gpu"])],
    }});
    serde_json::from_value(pod).unwrap()
}

/// A process of a container, in the host's `/proc`.
struct Process(PathBuf);

impl Process {
    /// Finds the process whose last argument is `mark`.
    fn find(mark: &str) -> Option<Process> {
        let processes = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
        let marked = |folder: &PathBuf| {
            let line = fs::read(folder.join("cmdline")).unwrap_or_default();
            line.strip_suffix(b"\0").is_some_and(|line| line.ends_with(format!("\0{mark}").as_bytes()))
        };
        processes.into_iter().find(marked).map(Process)
    }

    fn environment(&self) -> BTreeMap<String, String> {
        let text = String::from_utf8(fs::read(self.0.join("environ")).unwrap()).unwrap();
        let pairs = text.split('\0').filter_map(|pair| pair.split_once('='));
        pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    fn groups(&self) -> Vec<u32> {
        let status = fs::read_to_string(self.0.join("status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap();
        line.split_whitespace().map(|group| group.parse().unwrap()).collect()
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.join("root").join(path)
    }
}

async fn process(mark: u32) -> Process {
    eventually(&format!("a process {mark}"), async || Process::find(&mark.to_string())).await
}

/// Creates the pod once its namespace has its service account.
async fn create(pods: &Api<Pod>, pod: &Pod) {
    eventually("a pod that is taken", async || pods.create(&PostParams::default(), pod).await.ok()).await;
}

async fn published(client: &Client) -> ResourceSlice {
    let slices: Api<ResourceSlice> = Api::all(client.clone());
    let ours = ListParams::default().fields("spec.driver=sluice.dev");
    // The slice of another test's driver stays for half a minute.
    let new = |slice: &ResourceSlice| {
        let first = slice.spec.devices.iter().flatten().next();
        let memory = first.and_then(|device| device.capacity.as_ref()?.get("memory"));
        memory.is_some_and(|memory| memory.value.0 == "96Mi")
    };
    eventually("a slice", async || slices.list(&ours).await.unwrap().items.into_iter().find(new)).await
}

#[test]
fn pods_of_claim_share_folder_and_claim_errors_are_reported() {
    on_node(async |node| {
        let Some(_) = node.image("devices").filter(|_| node.api().is_own_cluster()) else { return };
        let client = node.api().client().await;
        let system = node.api().namespace("system").await;
        install(node, &system);
        let _installed = Installed(node, &system);
        let slice = published(&client).await;
        assert_eq!(slice.spec.devices.unwrap()[0].name, "gpu-0");

        let namespace = node.api().namespace("team").await;
        let claims: Api<ResourceClaim> = Api::namespaced(client.clone(), &namespace);
        let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
        claims.create(&PostParams::default(), &claim("good", "96Mi")).await.unwrap();
        create(&pods, &pod("one", "good", [86_400_101, 86_400_102])).await;
        create(&pods, &pod("two", "good", [86_400_201, 86_400_202])).await;
        let [sidecar, engine] = [process(86_400_101).await, process(86_400_102).await];
        let other = process(86_400_201).await;
        for process in [&sidecar, &engine, &other] {
            assert!(process.environment()["SLUICE_DEVICE"].starts_with("gpu-"));
        }
        assert_eq!(sidecar.environment()["SLUICE_DEVICE"], other.environment()["SLUICE_DEVICE"]);
        let folder = "run/sluice-neighbourhood";
        fs::write(sidecar.path(folder).join("ledger"), "shared").unwrap();
        assert_eq!(fs::read_to_string(other.path(folder).join("ledger")).unwrap(), "shared");
        assert!(sidecar.groups().contains(&GROUP) && other.groups().contains(&GROUP));
        assert!(!engine.path(folder).exists(), "the engine asked for the GPU alone");

        let driver = driver().await;
        let prepared =
            || fs::read_dir(driver.path("var/lib/kubelet/plugins/sluice.dev/claims")).unwrap().count();
        assert_eq!(prepared(), 1);
        for name in ["one", "two"] {
            pods.delete(name, &DeleteParams::default()).await.unwrap();
        }
        eventually("the claim is taken back", async || (prepared() == 0).then_some(())).await;

        claims.create(&PostParams::default(), &claim("large", "97Mi")).await.unwrap();
        create(&pods, &pod("three", "large", [86_400_301, 86_400_302])).await;
        let message = refusal(&client, &namespace, "three").await;
        assert!(message.contains("request gpu: memory 97Mi exceeds the memory of device gpu-"), "{message}");
        pods.delete("three", &DeleteParams::default()).await.unwrap();
    });
}

/// Finds the driver's process by its last argument, the host's memory.
async fn driver() -> Process {
    eventually("the driver", async || Process::find("--host-memory=96Mi")).await
}

/// Returns the kubelet's event about a pod whose claim is refused.
async fn refusal(client: &Client, namespace: &str, pod: &str) -> String {
    let events: Api<Event> = Api::namespaced(client.clone(), namespace);
    let of_pod = ListParams::default().fields(&format!("involvedObject.name={pod}"));
    eventually("an event of the refusal", async || {
        let all = events.list(&of_pod).await.unwrap().items;
        let refused =
            all.into_iter().find(|event| event.reason.as_deref() == Some("FailedPrepareDynamicResources"));
        refused?.message
    })
    .await
}
