//! What is rendered for CUDA devices: claims that NVIDIA's driver accepts, variables and volumes of the containers.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};
use sluice_plan::objects::{claim, deployment};
use sluice_types::{GpuPool, ModelTenant};

use super::fixtures::{first_gpu, host_pool, placed, pool, release, tenant};

fn sharing(mode: &str) -> Value {
    let mut sharing = json!({"mode": mode});
    if mode == "Isolated" {
        sharing["isolated"] = json!({"profile": "3g.71gb"});
    }
    json!({"gpus": [{"name": "chat", "sharing": sharing}]})
}

fn claim_of(pool: &GpuPool) -> Value {
    serde_json::to_value(claim(pool, &first_gpu(pool), 3)).unwrap()["spec"]["devices"].take()
}

fn pod(pool: &GpuPool, tenant: &ModelTenant) -> Value {
    let gpu = first_gpu(pool);
    let deployment = deployment(&placed(pool, tenant, &gpu), &release());
    serde_json::to_value(deployment).unwrap()["spec"]["template"]["spec"].take()
}

fn native() -> ModelTenant {
    tenant("t", json!({}))
}

fn vllm() -> ModelTenant {
    tenant("t", json!({"engine": {"kind": "Vllm", "image": "vllm/vllm-openai:v1"}}))
}

fn container<'a>(pod: &'a Value, name: &str) -> &'a Value {
    let all = ["initContainers", "containers"].map(|list| pod[list].as_array().unwrap());
    all.into_iter().flatten().find(|one| one["name"] == name).unwrap()
}

fn env<'a>(pod: &'a Value, name: &str) -> BTreeMap<&'a str, &'a str> {
    let all = container(pod, name)["env"].as_array();
    let pair = |one: &'a Value| (one["name"].as_str().unwrap(), one["value"].as_str().unwrap());
    all.into_iter().flatten().map(pair).collect()
}

/// The parameters as NVIDIA's driver v0.4.1 decodes them: `api/nvidia.com/resource/v1beta1` of
/// github.com/kubernetes-sigs/dra-driver-nvidia-gpu. Its decoder refuses other fields too.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct DeviceConfig {
    api_version: String,
    kind: String,
    sharing: DeviceSharing,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct DeviceSharing {
    strategy: String,
    mps_config: MpsConfig,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct MpsConfig {
    #[serde(default)]
    default_active_thread_percentage: Option<u8>,
}

#[test]
fn only_mps_needs_parameters_and_nvidias_driver_decodes_them() {
    for mode in ["Temporal", "Isolated"] {
        assert_eq!(claim_of(&pool(sharing(mode))).get("config"), None, "{mode}: no feature gate is needed");
    }
    for (class, kind) in [("gpu.nvidia.com", "GpuConfig"), ("mig.nvidia.com", "MigDeviceConfig")] {
        let mut spec = sharing("Spatial");
        spec["deviceClassName"] = json!(class);
        let devices = claim_of(&pool(spec));
        let configs = devices["config"].as_array().unwrap();
        assert_eq!((configs.len(), &configs[0]["requests"]), (1, &json!(["gpu"])));
        assert_eq!(configs[0]["opaque"]["driver"], "gpu.nvidia.com");
        let parameters = configs[0]["opaque"]["parameters"].clone();
        let read: DeviceConfig = serde_json::from_value(parameters.clone()).unwrap();
        assert_eq!(read.api_version, "resource.nvidia.com/v1beta1");
        assert_eq!((read.kind.as_str(), read.sharing.strategy.as_str()), (kind, "MPS"));
        // Each engine has its own share, which must not be capped by that of another tenant.
        assert_eq!(read.sharing.mps_config.default_active_thread_percentage, None);
        let mut wrong = parameters;
        wrong["sharing"]["mpsConfig"]["activeThreadPercentage"] = json!(30);
        assert!(serde_json::from_value::<DeviceConfig>(wrong).is_err(), "the reader above is as strict");
    }
}

#[test]
fn an_instance_is_requested_by_profile_whatever_class_the_pool_names() {
    for class in ["gpu.nvidia.com", "mig.nvidia.com", "h200.example.org"] {
        let mut spec = sharing("Isolated");
        spec["deviceClassName"] = json!(class);
        let request = claim_of(&pool(spec))["requests"][0]["exactly"].take();
        assert_eq!(request["deviceClassName"], "mig.nvidia.com");
        let expected = "device.attributes['gpu.nvidia.com'].profile == '3g.71gb'";
        assert_eq!(request["selectors"], json!([{"cel": {"expression": expected}}]));
    }
}

#[test]
fn native_processes_get_the_variables_of_cuda() {
    let pod = pod(&pool(json!({})), &native());
    let common = [("CUDA_DEVICE_MAX_CONNECTIONS", "32"), ("NVIDIA_DRIVER_CAPABILITIES", "compute,utility")];
    let sidecar = common.into_iter().chain([("CUDA_MODULE_LOADING", "LAZY")]);
    assert_eq!(env(&pod, "sidecar"), sidecar.collect());
    let cache = [("CUDA_CACHE_PATH", "/var/cache/cuda"), ("CUDA_CACHE_MAXSIZE", "268435456")];
    let live = ("SLUICE_ENGINE_LIVE", "0.0.0.0:8004");
    assert_eq!(env(&pod, "engine"), common.into_iter().chain(cache).chain([live]).collect());
}

#[test]
fn a_variable_of_the_tenant_replaces_ours() {
    let written = json!([{"name": "CUDA_DEVICE_MAX_CONNECTIONS", "value": "8"}]);
    let pod = pod(&pool(json!({})), &tenant("t", json!({"engine": {"env": written}})));
    let all = container(&pod, "engine")["env"].as_array().unwrap();
    let found: Vec<&Value> = all.iter().filter(|one| one["name"] == "CUDA_DEVICE_MAX_CONNECTIONS").collect();
    assert_eq!(found, [&written[0]]);
}

#[test]
fn clients_of_mps_keep_the_drivers_queues_and_run_as_one_user() {
    for tenant in [native(), vllm()] {
        let pod = pod(&pool(sharing("Spatial")), &tenant);
        assert!(!env(&pod, "engine").contains_key("CUDA_DEVICE_MAX_CONNECTIONS"));
        assert_eq!(env(&pod, "engine")["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"], "50");
        assert!(!env(&pod, "sidecar").contains_key("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"), "it has no kernels");
        assert_eq!(pod["securityContext"]["runAsUser"], 65_532);
        for list in ["initContainers", "containers"] {
            for one in pod[list].as_array().unwrap() {
                assert_eq!(one["securityContext"].get("runAsUser"), None, "{}", one["name"]);
                // The driver adds the folder of its daemon, and memory at /dev/shm.
                let mounts = one["volumeMounts"].as_array().unwrap();
                assert!(mounts.iter().all(|mount| mount["mountPath"] != "/dev/shm"), "{}", one["name"]);
                let names = one["env"].as_array().into_iter().flatten().map(|env| &env["name"]);
                assert!(names.into_iter().all(|name| name != "CUDA_MPS_PIPE_DIRECTORY"));
            }
        }
    }
}

/// The mount of a volume in a container, and the volume.
fn mounted(pod: &Value, name: &str, path: &str) -> Option<Value> {
    let mount =
        container(pod, name)["volumeMounts"].as_array()?.iter().find(|one| one["mountPath"] == path)?;
    let volume = pod["volumes"].as_array()?.iter().find(|volume| volume["name"] == mount["name"])?;
    assert_eq!(mount.get("readOnly"), None);
    Some(volume["emptyDir"].clone())
}

#[test]
fn the_cache_of_compiled_kernels_fits_its_volume() {
    let pod = pod(&pool(json!({})), &native());
    let env = env(&pod, "engine");
    let volume = mounted(&pod, "engine", env["CUDA_CACHE_PATH"]).unwrap();
    assert_eq!(volume, json!({"sizeLimit": "512Mi"}));
    assert!(env["CUDA_CACHE_MAXSIZE"].parse::<u64>().unwrap() < 512 << 20, "above it the pod is evicted");
}

#[test]
fn shared_memory_is_that_of_a_proxied_engine() {
    let vllm = pod(&pool(json!({})), &vllm());
    let memory = mounted(&vllm, "engine", "/dev/shm").unwrap();
    assert_eq!(memory, json!({"medium": "Memory", "sizeLimit": "1Gi"}));
    assert_eq!(mounted(&vllm, "sidecar", "/dev/shm"), None);
    let native = pod(&pool(json!({})), &native());
    assert_eq!(mounted(&native, "engine", "/dev/shm"), None, "native processes share memfds");
}

#[test]
fn a_gpu_of_host_memory_gets_nothing_of_cuda() {
    let pool = host_pool();
    let pod = pod(&pool, &native());
    for name in ["sidecar", "engine"] {
        let env = env(&pod, name);
        let foreign = env.keys().find(|name| name.starts_with("CUDA") || name.starts_with("NVIDIA"));
        assert_eq!(foreign, None, "{name}");
    }
    assert!(!pod["volumes"].to_string().contains("cuda"));
    let claim = claim_of(&pool);
    let drivers: Vec<&Value> =
        claim["config"].as_array().unwrap().iter().map(|config| &config["opaque"]["driver"]).collect();
    assert_eq!(drivers, ["sluice.dev"]);
    assert!(!claim.to_string().contains("nvidia"));
}
