//! Prerequisites of the other tests on the shared node: our images run, Services and names route to pods, logs and
//! commands return output.

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener};

use k8s_openapi::api::core::v1::{Namespace, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Api, LogParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use sluice_e2e::cluster::{ClusterNode, WAIT_LIMIT, eventually, on_node};

/// Creates a namespace that only admits pods of the `restricted` level.
async fn restricted(node: &ClusterNode, name: &str) -> String {
    let namespace = node.api().namespace(name).await;
    let labels = json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}});
    let all = Api::<Namespace>::all(node.api().client().await);
    all.patch(&namespace, &PatchParams::default(), &Patch::Merge(labels)).await.unwrap();
    namespace
}

fn pod(image: &str, args: &[&str]) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one", "labels": {"app": "one"}},
        "spec": {
            "restartPolicy": "Never", "automountServiceAccountToken": false,
            "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{
                "name": "main", "image": image, "args": args, "imagePullPolicy": "IfNotPresent",
                "securityContext": {
                    "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
                    "capabilities": {"drop": ["ALL"]},
                },
            }],
        },
    })
}

async fn pods(node: &ClusterNode, namespace: &str) -> Api<Pod> {
    Api::namespaced(node.api().client().await, namespace)
}

/// Creates the pod once its namespace has its service account.
async fn create(api: &Api<Pod>, pod: Value) {
    let pod: Pod = serde_json::from_value(pod).unwrap();
    eventually("a pod that is taken", async || match api.create(&PostParams::default(), &pod).await {
        Ok(_) => Some(()),
        Err(kube::Error::Api(status)) if status.message.contains("serviceaccount") => None,
        Err(error) => panic!("{error}"),
    })
    .await;
}

async fn phase(api: &Api<Pod>, wanted: &str) {
    eventually(&format!("a pod that is {wanted}"), async || {
        let status = api.get("one").await.unwrap().status.unwrap_or_default();
        let phase = status.phase.unwrap_or_default();
        assert!(phase == wanted || phase != "Failed", "the pod is {phase}: {:?}", status.container_statuses);
        (phase == wanted).then_some(())
    })
    .await;
}

#[test]
fn images_run_unprivileged_and_write_logs() {
    on_node(async |node| {
        for name in ["sidecar", "engine", "operator", "devices"] {
            let Some(image) = node.image(name) else { return };
            let namespace = restricted(node, name).await;
            let api = pods(node, &namespace).await;
            create(&api, pod(&image, &["--version"])).await;
            phase(&api, "Succeeded").await;
            let log = api.logs("one", &LogParams::default()).await.unwrap();
            let version = format!("sluice-{name} {} (commit ", env!("CARGO_PKG_VERSION"));
            assert!(log.starts_with(&version), "{log}");
        }
    });
}

#[test]
fn the_restricted_level_is_in_force() {
    on_node(async |node| {
        let namespace = restricted(node, "refused").await;
        let api = pods(node, &namespace).await;
        let mut pod = pod("sluice.dev/sidecar:none", &[]);
        pod["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = json!(true);
        let refused = eventually("a refusal", async || {
            let pod: Pod = serde_json::from_value(pod.clone()).unwrap();
            let error =
                api.create(&PostParams::default(), &pod).await.expect_err("it must be refused").to_string();
            (!error.contains("serviceaccount")).then_some(error)
        })
        .await;
        assert!(
            refused.contains("violates PodSecurity") && refused.contains("allowPrivilegeEscalation"),
            "{refused}"
        );
    });
}

/// Creates a Service `hub` that routes to a port of the node itself.
async fn service_to(node: &ClusterNode, namespace: &str, at: SocketAddr) {
    let client = node.api().client().await;
    let service =
        json!({"metadata": {"name": "hub"}, "spec": {"ports": [{"port": 80, "targetPort": at.port()}]}});
    let service: Service = serde_json::from_value(service).unwrap();
    Api::namespaced(client.clone(), namespace).create(&PostParams::default(), &service).await.unwrap();
    let slice = json!({
        "metadata": {"name": "hub", "labels": {"kubernetes.io/service-name": "hub"}},
        "addressType": "IPv4", "endpoints": [{"addresses": [at.ip()]}], "ports": [{"port": at.port()}],
    });
    let slice: EndpointSlice = serde_json::from_value(slice).unwrap();
    Api::namespaced(client, namespace).create(&PostParams::default(), &slice).await.unwrap();
}

/// Returns the head of the first HTTP request.
fn first_request(listener: &TcpListener) -> String {
    let (stream, _) = listener.accept().unwrap();
    let lines = BufReader::new(&stream).lines().map(|line| line.unwrap());
    lines.take_while(|line| !line.is_empty()).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_pod_of_ours_finds_a_service_by_its_name() {
    on_node(async |node| {
        let Some(image) = node.image("sidecar").filter(|_| node.api().is_own_cluster()) else { return };
        let namespace = restricted(node, "names").await;
        let listener = TcpListener::bind((node.address_for_pods().await, 0)).unwrap();
        service_to(node, &namespace, listener.local_addr().unwrap()).await;
        let host = format!("hub.{namespace}.svc.cluster.local");
        let endpoint = format!("http://{host}");
        let fetch = ["fetch", "hugging-face", "--repo", "a/b", "--endpoint", &endpoint, "--to", "/tmp/model"];
        let api = pods(node, &namespace).await;
        create(&api, pod(&image, &fetch)).await;
        // A detached thread: there may be no request at all.
        let (tell, asked) = tokio::sync::oneshot::channel();
        std::thread::spawn(move || tell.send(first_request(&listener)));
        let asked = tokio::time::timeout(WAIT_LIMIT, asked).await.expect("a request in time").unwrap();
        assert!(asked.contains("a/b") && asked.to_lowercase().contains(&format!("host: {host}")), "{asked}");
    });
}

#[test]
fn a_command_in_a_pod_is_reached_through_the_api_server() {
    on_node(async |node| {
        let Some(image) = node.image("engine") else { return };
        let namespace = restricted(node, "exec").await;
        let api = pods(node, &namespace).await;
        // An engine without its sidecar waits for the socket.
        create(&api, pod(&image, &["--socket", "/tmp/engine.sock"])).await;
        phase(&api, "Running").await;
        let arguments = ["exec", "-n", &namespace, "one", "--", "/usr/bin/sluice-engine", "--version"];
        let output = node.api().kubectl(&arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(said.starts_with("sluice-engine "), "{output:?}");
    });
}
