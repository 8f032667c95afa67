//! Tests how the kubelet prepares and unprepares claims.

use std::fs;

use serde_json::{Value, json};

use crate::node::{Node, until};
use crate::server::Server;

const BOTH: &[(&str, &str)] = &[("gpu", "gpu-0"), ("neighbourhood", "neighbourhood-3")];
const TRIAL: &[&str] = &["--host-gpus", "2", "--host-memory", "96Mi"];

fn config(memory: &str) -> Value {
    let parameters = json!({
        "apiVersion": "sluice.dev/v1alpha1", "kind": "HostGpuConfig", "memory": memory, "chunkBytes": "64Ki",
    });
    json!([{"source": "FromClaim", "requests": ["gpu"],
            "opaque": {"driver": "sluice.dev", "parameters": parameters}}])
}

async fn node() -> Node {
    Node::new(&Server::start().await)
}

#[tokio::test]
async fn two_pods_of_a_claim_get_the_same_devices_and_the_same_folder() {
    let node = node().await;
    node.server().allocate("chat-0-e1", "u-1", BOTH, config("96Mi"));
    let driver = node.start(TRIAL);
    let first = driver.prepare_one("chat-0-e1", "u-1").await;
    assert_eq!(first.error, "");
    let ids: Vec<_> = first.devices.iter().map(|device| device.cdi_device_ids.concat()).collect();
    assert_eq!(ids, ["sluice.dev/claim=u-1-gpu-0", "sluice.dev/claim=u-1-neighbourhood-3"]);
    let requests: Vec<_> = first.devices.iter().map(|device| device.request_names.concat()).collect();
    assert_eq!(requests, ["gpu", "neighbourhood"]);
    assert!(first.devices.iter().all(|device| device.pool_name == "one"));
    let spec = fs::read(node.spec("u-1")).unwrap();
    assert_eq!(driver.prepare_one("chat-0-e1", "u-1").await, first);
    assert_eq!(fs::read(node.spec("u-1")).unwrap(), spec);
    let spec: Value = serde_json::from_slice(&spec).unwrap();
    let shared = spec["devices"][1]["containerEdits"]["mounts"][0]["hostPath"].as_str().unwrap();
    assert!(fs::metadata(shared).unwrap().is_dir());
}

#[tokio::test]
async fn each_claim_of_a_call_has_an_answer_of_its_own() {
    let node = node().await;
    node.server().allocate("good", "u-1", &[("neighbourhood", "neighbourhood-0")], json!([]));
    node.server().allocate("large", "u-2", BOTH, config("97Mi"));
    node.server().allocate("recreated", "u-4", BOTH, config("96Mi"));
    let driver = node.start(TRIAL);
    let asked = [("good", "u-1"), ("large", "u-2"), ("recreated", "u-3"), ("absent", "u-5")];
    let answer = driver.prepare(&asked).await.claims;
    assert_eq!(answer["u-1"].error, "");
    assert!(
        answer["u-2"].error.starts_with(
            "claim team/large, request gpu: memory 97Mi exceeds the memory of device gpu-0 (96Mi)"
        ),
        "{}",
        answer["u-2"].error
    );
    let recreated = "claim team/recreated has the UID u-4, not u-3: it was deleted and created again";
    assert_eq!(answer["u-3"].error, recreated);
    assert!(answer["u-5"].error.starts_with("claim team/absent cannot be read: "), "{}", answer["u-5"].error);
    let specs: Vec<_> = fs::read_dir(node.path("cdi")).unwrap().map(|file| file.unwrap().path()).collect();
    assert_eq!(specs, [node.spec("u-1")], "what is refused leaves nothing");
}

#[tokio::test]
async fn a_device_that_the_node_does_not_offer_is_refused() {
    let node = node().await;
    node.server().allocate("chat-0-e1", "u-1", BOTH, config("96Mi"));
    let refused = node.start(&[]).prepare_one("chat-0-e1", "u-1").await;
    assert_eq!(refused.error, "claim team/chat-0-e1: this node has no device `gpu-0`");
}

#[tokio::test]
async fn unprepare_removes_everything_and_is_idempotent() {
    let node = node().await;
    node.server().allocate("a", "u-1", BOTH, config("96Mi"));
    node.server().allocate("b", "u-2", &[("neighbourhood", "neighbourhood-4")], json!([]));
    let driver = node.start(TRIAL);
    assert_eq!(driver.unprepare("a", "u-1").await, "", "before it was prepared");
    driver.prepare(&[("a", "u-1"), ("b", "u-2")]).await;
    // The kubelet also unprepares a claim after its deletion.
    node.server().forget("a");
    assert_eq!(driver.unprepare("a", "u-1").await, "");
    assert_eq!(driver.unprepare("a", "u-1").await, "");
    assert!(!node.spec("u-1").exists() && node.spec("u-2").exists());
    assert!(!node.path("kubelet/plugins/sluice.dev/neighbourhoods/u-1").exists());
    assert_eq!(driver.unprepare("b", "u-2").await, "");
    assert_eq!(fs::read_dir(node.path("cdi")).unwrap().count(), 0);
}

#[tokio::test]
async fn a_claim_survives_the_driver_and_the_folder_of_specifications() {
    let node = node().await;
    node.server().allocate("a", "u-1", BOTH, config("96Mi"));
    let driver = node.start(TRIAL);
    let before = driver.prepare_one("a", "u-1").await;
    let spec = fs::read(node.spec("u-1")).unwrap();
    drop(driver);
    // A reboot empties /var/run.
    fs::remove_dir_all(node.path("cdi")).unwrap();
    let driver = node.start(TRIAL);
    assert_eq!(fs::read(node.spec("u-1")).unwrap(), spec);
    assert_eq!(driver.prepare_one("a", "u-1").await, before);
    assert_eq!(driver.unprepare("a", "u-1").await, "");
    assert!(!node.spec("u-1").exists());
}

#[tokio::test]
async fn deleted_or_reallocated_claims_are_collected_on_second_sweep() {
    let node = node().await;
    const FOLDER: &[(&str, &str)] = &[("neighbourhood", "neighbourhood-0")];
    let all = [("gone", "u-1"), ("recreated", "u-2"), ("elsewhere", "u-3"), ("kept", "u-4")];
    for (name, uid) in all {
        node.server().allocate(name, uid, FOLDER, json!([]));
    }
    let driver = node.start(&[]);
    driver.prepare(&all).await;
    drop(driver);
    node.server().forget("gone");
    node.server().allocate("recreated", "u-9", FOLDER, json!([]));
    node.server().allocate("elsewhere", "u-3", &[], json!([]));
    let _driver = node.start(&["--sweep-seconds", "1"]);
    node.server().read("kept", 1).await;
    assert!(node.spec("u-1").exists(), "swept at the first look");
    let swept = async || ["u-1", "u-2", "u-3"].iter().all(|uid| !node.spec(uid).exists());
    until("three are swept", swept).await;
    assert!(node.spec("u-4").exists());
}

#[tokio::test]
async fn a_prepared_claim_keeps_its_devices_when_the_node_offers_less() {
    let node = node().await;
    node.server().allocate("a", "u-1", &[("gpu", "gpu-1")], config("96Mi"));
    let driver = node.start(TRIAL);
    let before = driver.prepare_one("a", "u-1").await;
    drop(driver);
    let driver = node.start(&["--host-gpus", "1", "--host-memory", "64Mi"]);
    assert_eq!(driver.prepare_one("a", "u-1").await, before);
    node.server().allocate("a", "u-1", &[("gpu", "gpu-0")], config("96Mi"));
    let recreated = driver.prepare_one("a", "u-1").await.error;
    assert!(recreated.contains("memory 96Mi exceeds the memory of device gpu-0 (64Mi)"), "{recreated}");
}

#[tokio::test]
async fn calls_and_claims_are_counted() {
    let node = node().await;
    node.server().allocate("a", "u-1", &[("neighbourhood", "neighbourhood-0")], json!([]));
    let driver = node.start(&[]);
    driver.prepare(&[("a", "u-1"), ("b", "u-2")]).await;
    let (status, text) = driver.get("/metrics").await;
    assert_eq!(status, 200);
    for line in [
        "sluice_devices_calls_total{call=\"prepare\",result=\"ok\"} 1",
        "sluice_devices_calls_total{call=\"prepare\",result=\"error\"} 1",
        "sluice_devices_claims 1",
        "sluice_devices_bad_records 0",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
}
