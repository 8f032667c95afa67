//! A pool of host memory and a pool of NVIDIA's GPUs in one namespace, on the same nodes: neither gets what is of the
//! other.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};
use kube::api::{Api, DeleteParams, PostParams};
use serde_json::{Value, json};
use sluice_e2e::cluster::eventually;
use sluice_types::{GpuPool, ModelTenant};

use super::test_namespace::TestNamespace;

/// A device `gpu-0` of a driver on a node: both drivers have one of that name.
fn slice(name: &str, driver: &str, node: &str, memory: &str) -> ResourceSlice {
    let device = json!({"name": "gpu-0", "capacity": {"memory": {"value": memory}},
        "attributes": {"uuid": {"string": format!("{driver}-uuid")}}});
    serde_json::from_value(json!({"metadata": {"name": name}, "spec": {"driver": driver, "nodeName": node,
        "pool": {"name": node, "generation": 1, "resourceSliceCount": 1}, "devices": [device]}}))
    .unwrap()
}

async fn allocate(stage: &TestNamespace, claim: &str, driver: &str, node: &str) {
    let result = |request: &str, driver: &str| json!({"request": request, "driver": driver, "pool": node, "device": "gpu-0"});
    let terms = json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]);
    let results = json!([result("gpu", driver), result("neighbourhood", "sluice.dev")]);
    let allocation = json!({"devices": {"results": results}, "nodeSelector": {"nodeSelectorTerms": terms}});
    stage.set_status::<ResourceClaim>(claim, json!({"allocation": allocation})).await;
}

/// Class of the GPU, and the drivers of the claim's parameters.
async fn asked(stage: &TestNamespace, claim: &str) -> (Value, Vec<Value>) {
    let claim = serde_json::to_value(stage.api::<ResourceClaim>().get(claim).await.unwrap()).unwrap();
    let devices = &claim["spec"]["devices"];
    let class = devices["requests"][0]["exactly"]["deviceClassName"].clone();
    let configs = devices["config"].as_array().into_iter().flatten();
    (class, configs.map(|config| config["opaque"]["driver"].clone()).collect())
}

async fn pod_spec(stage: &TestNamespace, slot: &str) -> Value {
    let deployment = stage.api::<Deployment>().get(slot).await.unwrap();
    serde_json::to_value(deployment).unwrap()["spec"]["template"]["spec"].take()
}

#[tokio::test]
async fn host_pools_and_gpu_pools_of_one_cluster_do_not_meet() {
    let Some(stage) = TestNamespace::try_new("kinds").await else { return };
    let operator = stage.operator("one", &[]);
    let node = stage.node("a").await;
    let slices = Api::<ResourceSlice>::all(stage.client.clone());
    let names = ["host", "cuda"].map(|kind| format!("{}-{kind}", stage.namespace));
    for (name, driver, memory) in [(&names[0], "sluice.dev", "96Mi"), (&names[1], "gpu.nvidia.com", "141Gi")]
    {
        slices.create(&PostParams::default(), &slice(name, driver, &node, memory)).await.unwrap();
    }
    stage.pool(json!({"nodeSelector": {"kind": "host"}})).await;
    let cuda = json!({"apiVersion": "sluice.dev/v1alpha1", "kind": "GpuPool", "metadata": {"name": "g"},
        "spec": {"deviceClassName": "gpu.nvidia.com", "nodeSelector": {"kind": "cuda"}, "hostMemoryPerGPU": "64Gi",
            "gpus": [{"name": "chat", "sharing": {"mode": "Spatial"}}]}});
    stage.create::<GpuPool>(&serde_json::from_value(cuda).unwrap()).await;
    stage.tenant("t", json!({})).await;
    // The node has 8 GiB.
    let resources = json!({"limits": {"memory": "1Gi"}});
    let engine = json!({"kind": "Vllm", "image": "vllm/vllm-openai:v1", "resources": resources});
    stage.tenant("v", json!({"poolRef": {"name": "g"}, "engine": engine})).await;
    for tenant in ["t", "v"] {
        stage.inspect_ok(tenant, 8).await;
    }
    stage.deployments(&[("t-0", "p-chat-0-e1"), ("v-0", "g-chat-0-e1")]).await;
    stage.claims(&["g-chat-0-e1", "p-chat-0-e1"]).await;
    assert_eq!(asked(&stage, "p-chat-0-e1").await, (json!("host.sluice.dev"), vec![json!("sluice.dev")]));
    assert_eq!(asked(&stage, "g-chat-0-e1").await, (json!("gpu.nvidia.com"), vec![json!("gpu.nvidia.com")]));

    let (host, cuda) = (pod_spec(&stage, "t-0").await, pod_spec(&stage, "v-0").await);
    assert_eq!(
        (&host["nodeSelector"]["kind"], &cuda["nodeSelector"]["kind"]),
        (&json!("host"), &json!("cuda"))
    );
    assert!(!host.to_string().contains("CUDA") && !host.to_string().contains("NVIDIA"), "{host}");
    assert!(cuda.to_string().contains("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"), "{cuda}");

    // Devices of one name and node, of two drivers: each pool reports its own.
    allocate(&stage, "p-chat-0-e1", "sluice.dev", &node).await;
    allocate(&stage, "g-chat-0-e1", "gpu.nvidia.com", &node).await;
    for (pool, uuid, capacity) in [("p", "sluice.dev-uuid", "96Mi"), ("g", "gpu.nvidia.com-uuid", "141Gi")] {
        eventually(&format!("the device of {pool}"), async || {
            let pool = stage.api::<GpuPool>().get(pool).await.unwrap();
            let gpu = pool.status?.gpus.into_iter().find(|gpu| gpu.uuid.as_deref() == Some(uuid))?;
            (gpu.capacity?.to_string() == capacity).then_some(())
        })
        .await;
    }
    // A claim that fails names the fields of its own pool.
    stage.pod("v-0", "v-0-pod").await;
    stage.set_status::<ResourceClaim>("g-chat-0-e1", json!({"allocation": null})).await;
    stage.mark_unschedulable("v-0-pod", "0/1 nodes are available: cannot allocate all claims").await;
    let lacks = stage.condition("v", "DevicesAllocated", "False", "NotAllocated").await;
    assert!(lacks.message.contains("GpuPool `g` asks for spec.deviceClassName: gpu.nvidia.com"), "{lacks:?}");

    for name in &names {
        slices.delete(name, &DeleteParams::default()).await.unwrap();
    }
    stage.delete::<ModelTenant>("v").await;
    assert_eq!(stage.forbidden_requests(), [""; 0], "{}", operator.log());
}
