//! Tests which devices claims from the API server get.

use k8s_openapi::api::resource::v1::ResourceClaim;
use serde_json::{Value, json};
use sluice_types::Quantity;

use super::{AllocatedDevice, is_uid, prepared_claim};
use crate::devices::Offer;
use crate::proto::dra;

fn offer() -> Offer {
    let host_memory = Quantity::from_bytes(96 << 20);
    Offer { node: "one".into(), neighbourhoods: 2, host_gpus: 1, host_memory }
}

fn asked() -> dra::Claim {
    dra::Claim { namespace: "team".into(), uid: "u-1".into(), name: "chat-0-e1".into() }
}

fn result(request: &str, device: &str) -> Value {
    json!({"request": request, "driver": "sluice.dev", "pool": "one", "device": device})
}

fn config(requests: Value, driver: &str, memory: &str) -> Value {
    let parameters = json!({
        "apiVersion": "sluice.dev/v1alpha1", "kind": "HostGpuConfig", "memory": memory, "chunkBytes": "64Ki",
    });
    json!({"source": "FromClaim", "requests": requests, "opaque": {"driver": driver, "parameters": parameters}})
}

fn claim(results: Value, config: Value) -> ResourceClaim {
    let allocation = json!({"devices": {"results": results, "config": config}});
    let metadata = json!({"namespace": "team", "name": "chat-0-e1", "uid": "u-1"});
    serde_json::from_value(json!({"metadata": metadata, "spec": {}, "status": {"allocation": allocation}}))
        .unwrap()
}

fn error_text(results: Value, config: Value) -> String {
    prepared_claim(&claim(results, config), &asked(), &offer()).unwrap_err().to_string()
}

#[test]
fn a_claim_gets_its_devices_and_not_those_of_other_drivers_and_nodes() {
    let foreign = json!({"request": "gpu", "driver": "gpu.nvidia.com", "pool": "one", "device": "gpu-0"});
    let elsewhere = json!({"request": "x", "driver": "sluice.dev", "pool": "two", "device": "gpu-0"});
    let all = json!([foreign, elsewhere, result("neighbourhood", "neighbourhood-1")]);
    let granted = prepared_claim(&claim(all, json!([])), &asked(), &offer()).unwrap();
    let only = AllocatedDevice {
        request: "neighbourhood".into(),
        pool: "one".into(),
        device: "neighbourhood-1".into(),
    };
    assert_eq!((granted.devices, granted.uid.as_str()), (vec![only], "u-1"));
}

#[test]
fn recreated_claim_is_refused_with_both_uids() {
    let mut other = claim(json!([result("gpu", "gpu-0")]), json!([]));
    other.metadata.uid = Some("u-2".into());
    let said = prepared_claim(&other, &asked(), &offer()).unwrap_err().to_string();
    assert_eq!(said, "claim team/chat-0-e1 has the UID u-2, not u-1: it was deleted and created again");
}

#[test]
fn a_claim_without_devices_of_ours_is_refused() {
    assert!(
        error_text(json!([]), json!([])).ends_with("has no device of sluice.dev in the pool of this node")
    );
    let absent = error_text(json!([result("gpu", "gpu-1")]), json!([]));
    assert_eq!(absent, "claim team/chat-0-e1: this node has no device `gpu-1`");
    let mut unallocated = claim(json!([]), json!([]));
    unallocated.status = None;
    let said = prepared_claim(&unallocated, &asked(), &offer()).unwrap_err().to_string();
    assert_eq!(said, "claim team/chat-0-e1 is not allocated yet");
}

#[test]
fn the_configuration_of_a_request_counts_and_the_last_one_wins() {
    let gpu = || json!([result("gpu", "gpu-0"), result("neighbourhood", "neighbourhood-0")]);
    let large = |requests: Value| config(requests, "sluice.dev", "1Gi");
    let small = || config(json!(["gpu"]), "sluice.dev", "96Mi");
    let passes = |configs| prepared_claim(&claim(gpu(), configs), &asked(), &offer()).is_ok();
    assert!(passes(json!([small()])));
    assert!(!passes(json!([large(json!(["gpu"]))])));
    assert!(!passes(json!([large(json!([]))])), "for all requests");
    assert!(!passes(json!([large(Value::Null)])), "for all requests");
    let folder = error_text(gpu(), json!([large(json!(["neighbourhood"]))]));
    assert!(
        folder
            .ends_with("device neighbourhood-0 is a neighbourhood, and a neighbourhood has no configuration"),
        "{folder}"
    );
    assert!(passes(json!([config(json!(["gpu"]), "other.dev", "1Gi")])), "for another driver");
    assert!(passes(json!([large(json!(["gpu"])), small()])));
    assert!(!passes(json!([small(), large(json!(["gpu"]))])));
    let said = error_text(gpu(), json!([large(json!(["gpu"]))]));
    assert!(said.starts_with("claim team/chat-0-e1, request gpu: memory 1Gi exceeds"), "{said}");
}

#[test]
fn an_alternative_has_the_configuration_of_its_request_and_is_called_by_the_containers_name_for_it() {
    let results = || json!([result("gpu/large", "gpu-0")]);
    assert!(
        error_text(results(), json!([config(json!(["gpu"]), "sluice.dev", "1Gi")])).contains("gpu/large")
    );
    let granted = prepared_claim(&claim(results(), json!([])), &asked(), &offer()).unwrap();
    assert_eq!(granted.devices[0].request, "gpu");
}

#[test]
fn uid_has_only_file_name_characters() {
    assert!(is_uid("0d5b8e4a-97a1-4f8e-8b7b-0a4d4f1c2b3d"));
    for text in ["", "..", "a/b", "a b", "ü", &"a".repeat(65)] {
        assert!(!is_uid(text), "{text}");
    }
}
