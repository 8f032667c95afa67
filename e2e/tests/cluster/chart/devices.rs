//! The driver of a node against a real API server, with the rights and the policy of the chart.

use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use k8s_openapi::api::core::v1::{Node, ServiceAccount};
use k8s_openapi::api::resource::v1::ResourceSlice;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use serde_json::{Value, json};
use sluice_e2e::cluster::{self, eventually};

use super::hook::product;
use super::server::apply;
use super::{Helm, output_text, title};

struct Driver(Child);

impl Drop for Driver {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Writes a kubeconfig with a token of the driver's service account that is bound to a node, like the token of its
/// pod.
fn kubeconfig(server: &cluster::Api, namespace: &str, node: &str, folder: &Path) -> PathBuf {
    let bound = ["--bound-object-kind=Node", "--bound-object-name", node];
    let mut token =
        server.kubectl(&[&["create", "token", "sluice-devices", "-n", namespace], &bound[..]].concat());
    let token = output_text(token.output().unwrap()).unwrap();
    let text = std::fs::read_to_string(server.kubeconfig_path()).unwrap();
    let mut config: Value = serde_yaml::from_str(&text).unwrap();
    config["users"][0]["user"] = json!({"token": token.trim()});
    let path = folder.join(format!("kubeconfig-{node}"));
    std::fs::write(&path, config.to_string()).unwrap();
    path
}

/// Installs service account, rights and policy of the chart, under names of this test.
async fn install(server: &cluster::Api, helm: &Helm, namespace: &str) {
    let account = json!({"metadata": {"name": "sluice-devices"}});
    let account: ServiceAccount = serde_json::from_value(account).unwrap();
    let accounts: Api<ServiceAccount> = Api::namespaced(server.client().await, namespace);
    accounts.create(&PostParams::default(), &account).await.unwrap();
    let needed = |object: &Value| {
        let title = title(object);
        title.contains("Role") && title.ends_with("/sluice-devices")
            || title.ends_with("/sluice-devices-slices")
    };
    let rename = |object: &Value| {
        let mut object = object.clone();
        object["metadata"]["name"] = json!(namespace);
        match object["kind"].as_str().unwrap() {
            "ClusterRoleBinding" => object["roleRef"]["name"] = json!(namespace),
            "ValidatingAdmissionPolicyBinding" => object["spec"]["policyName"] = json!(namespace),
            _ => {}
        }
        object
    };
    let objects = helm.template(namespace, &[]).unwrap();
    let objects: Vec<_> = objects.iter().filter(|object| needed(object)).map(rename).collect();
    assert_eq!(objects.len(), 4);
    apply(server, &objects, &[]).unwrap();
}

#[tokio::test]
async fn a_driver_publishes_its_own_node_and_no_other() {
    let Some(helm) = Helm::find() else { return };
    let Some(server) = cluster::api().await.filter(|server| server.is_own_cluster()) else { return };
    let (client, namespace) = (server.client().await, server.namespace("devices").await);
    install(server, &helm, &namespace).await;
    let nodes: Api<Node> = Api::all(client.clone());
    let names = ["one", "two"].map(|name| format!("{namespace}-{name}"));
    for name in &names {
        let node = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
        nodes.create(&PostParams::default(), &node).await.unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    let own = kubeconfig(server, &namespace, &names[0], folder.path());
    let start = |node: &str, config: &Path| {
        let mut command = product("sluice-devices")?;
        let root = folder.path().join(node);
        command.args(["--node-name", node, "--http", "127.0.0.1:0", "--host-gpus", "1"]);
        // The API server writes this value differently, which must not look like a change either.
        command.args(["--host-memory", "1.5Gi", "--kubelet-folder"]);
        command.arg(root.join("kubelet")).arg("--cdi-folder").arg(root.join("cdi")).env("KUBECONFIG", config);
        Some(Driver(command.stderr(Stdio::null()).spawn().unwrap()))
    };
    let Some(_driver) = start(&names[0], &own) else { return };
    let slices: Api<ResourceSlice> = Api::all(client.clone());
    let name = format!("sluice.dev-{}", names[0]);
    let there = async || slices.get_opt(&name).await.unwrap();
    let slice = eventually("the slice is published", there).await;
    assert_eq!(slice.metadata.owner_references.unwrap()[0].name, names[0]);
    let devices = slice.spec.devices.unwrap();
    assert_eq!((devices.len(), devices[0].name.as_str()), (65, "gpu-0"));

    // The kubelet deletes the slices of a driver that was not running.
    slices.delete(&name, &DeleteParams::default()).await.unwrap();
    let back = eventually("the slice is back", there).await;
    // Fields that the API server normalizes must not look like a change.
    assert_eq!(back.spec.pool.generation, 1);

    // The driver's token names node one.
    let mut foreign: Value = serde_json::to_value(back).unwrap();
    foreign["metadata"] = json!({"name": "foreign"});
    (foreign["spec"]["nodeName"], foreign["spec"]["pool"]["name"]) = (json!(names[1]), json!(names[1]));
    let foreign: ResourceSlice = serde_json::from_value(foreign).unwrap();
    let read = kube::config::Kubeconfig::read_from(&own).unwrap();
    let config =
        kube::Config::from_custom_kubeconfig(read, &kube::config::KubeConfigOptions::default()).await;
    let driver: Api<ResourceSlice> = Api::all(kube::Client::try_from(config.unwrap()).unwrap());
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    // The policy takes effect shortly after it is stored.
    let refused = eventually("the policy holds", async || driver.create(&dry, &foreign).await.err()).await;
    let refused = crate::fixture::words(refused);
    assert!(refused.contains(&format!("the driver of node `{}` writes only", names[0])), "{refused}");
    let own = driver.delete(&name, &DeleteParams { dry_run: true, ..DeleteParams::default() }).await;
    assert!(own.is_ok(), "its own slices are its own");
    slices.delete(&name, &DeleteParams::default()).await.unwrap();
}
