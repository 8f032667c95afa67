//! Which device each GPU is, and what is said of a machine without enough of them.

use std::path::PathBuf;

use sluice_wire::config::{CudaConfig, SidecarConfig};
use sluice_wire::geometry::Geometry;

use super::*;
use crate::up::plan::tests::options;
use crate::up::plan::{LaunchPlan, inputs, plan};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// `count` is on line 7, or 21 of the second pool.
const POOL: &str = "apiVersion: sluice.dev/v1alpha1
kind: GpuPool
metadata: {name: POOL}
spec:
  deviceClassName: gpu.nvidia.com
  gpus:
    - {name: chat, count: 1}
    - {name: code, count: 1}
  hostMemoryPerGPU: 8Gi
  policy: Oneiros
---
";
const TENANT: &str = "apiVersion: sluice.dev/v1alpha1
kind: ModelTenant
metadata: {name: NAME}
spec: {poolRef: {name: POOL}, model: {source: {type: File, file: {path: m}}}}
---
";

fn pool(name: &str) -> String {
    POOL.replace("POOL", name)
}

fn tenant(name: &str, pool: &str) -> String {
    TENANT.replace("NAME", name).replace("POOL", pool)
}

fn device(number: usize, free_bytes: u64) -> CudaDevice {
    CudaDevice {
        uuid: format!("GPU-{number}"),
        name: "NVIDIA H100".into(),
        total_bytes: 80 * GIB,
        free_bytes,
        problem: None,
    }
}

/// Devices without other processes.
fn devices(count: usize) -> FoundDevices {
    Ok((0..count).map(|number| device(number, 80 * GIB)).collect())
}

fn objects(yaml: &str) -> Vec<SourceObject> {
    let objects = sluice_types::load::load_located_str(yaml, "up.yaml").unwrap_or_else(|e| panic!("{e:?}"));
    objects.into_iter().map(|located| SourceObject { located, folder: PathBuf::new() }).collect()
}

fn assigned(yaml: &str, found: FoundDevices) -> Result<Vec<(String, String)>, String> {
    let objects = objects(yaml);
    let inputs = inputs(&objects, &options()).unwrap();
    let assigned = CudaPools::new(&objects, &inputs).assign(found).map_err(|errors| errors.to_string())?;
    Ok(assigned.into_iter().map(|((_, gpu), device)| (gpu, device.uuid)).collect())
}

fn pairs(list: &[(&str, &str)]) -> Result<Vec<(String, String)>, String> {
    Ok(list.iter().map(|(gpu, uuid)| ((*gpu).to_owned(), (*uuid).to_owned())).collect())
}

#[test]
fn gpus_take_devices_in_the_order_of_the_files_and_of_the_driver() {
    // The second pool is first by its name. The last has no tenant, and takes none.
    let yaml = [pool("z"), pool("a"), pool("unused"), tenant("one", "z"), tenant("two", "a")].concat();
    let expected =
        [("a-chat-0", "GPU-2"), ("a-code-0", "GPU-3"), ("z-chat-0", "GPU-0"), ("z-code-0", "GPU-1")];
    assert_eq!(assigned(&yaml, devices(4)), pairs(&expected));
    // A device that the kernels do not run on is passed over.
    let mut found = devices(5).unwrap();
    found[1].problem = Some("compute capability 7.5, and the kernels need 8.0".into());
    let expected =
        [("a-chat-0", "GPU-3"), ("a-code-0", "GPU-4"), ("z-chat-0", "GPU-0"), ("z-code-0", "GPU-2")];
    assert_eq!(assigned(&yaml, Ok(found)), pairs(&expected));
}

#[test]
fn only_pools_of_cuda_devices_need_a_driver() {
    let host = "deviceClassName: host.sluice.dev\n  device: {host: {memory: 96Mi}}";
    let yaml = pool("p").replace("deviceClassName: gpu.nvidia.com", host) + &tenant("one", "p");
    let objects = objects(&yaml);
    assert!(CudaPools::new(&objects, &inputs(&objects, &options()).unwrap()).is_empty());
}

#[test]
fn a_machine_without_a_device_is_refused_at_the_class() {
    let yaml = pool("p") + &tenant("one", "p");
    let refused = |found| assigned(&yaml, found).unwrap_err();
    let driver = refused(Err("no CUDA driver: libcuda.so.1 is not on the library path".into()));
    let expected = "up.yaml:5:3: spec.deviceClassName: `gpu.nvidia.com` needs a CUDA device, and there is none: no \
                    CUDA driver: libcuda.so.1 is not on the library path; host.sluice.dev makes GPUs of host memory";
    assert!(driver.contains(expected), "{driver}");
    assert!(refused(devices(0)).contains("CUDA_VISIBLE_DEVICES hides it"));
    let old = CudaDevice { problem: Some("compute capability 7.5".into()), ..device(0, GIB) };
    let old = refused(Ok(vec![old]));
    assert!(old.contains("up.yaml:5:3: ") && old.contains("(GPU-0, 80 GiB: compute cap"), "{old}");
}

#[test]
fn a_group_with_more_gpus_than_devices_is_refused_at_its_count() {
    let yaml = [pool("p"), pool("q").replace("count: 1", "count: 2"), tenant("one", "p"), tenant("two", "q")];
    let error = assigned(&yaml.concat(), devices(3)).unwrap_err();
    let lines: Vec<&str> = error.lines().filter(|line| line.contains("CUDA device")).collect();
    assert_eq!(lines.len(), 2, "{error}");
    let at = |line: &str, field: &str, left: &str| {
        let start = line.starts_with("up.yaml:")
            && line.contains(&format!("{field}: the group needs 2 CUDA devices"));
        start && line.contains(left)
    };
    assert!(
        lines[0].starts_with("up.yaml:18:") && at(lines[0], "spec.gpus[0].count", "and 1 is left"),
        "{error}"
    );
    assert!(
        lines[1].starts_with("up.yaml:19:") && at(lines[1], "spec.gpus[1].count", "and 0 are left"),
        "{error}"
    );
    assert!(
        lines[0].contains("the driver has NVIDIA H100 (GPU-0, 80 GiB free of 80 GiB), NVIDIA"),
        "{error}"
    );
}

/// 32 layers of 416 MiB and a little, as Llama-3-8B in bf16.
fn llama() -> Geometry {
    Geometry {
        global_bytes: 2 * GIB,
        layer_bytes: 416 * MIB + (16 << 10),
        layers: 32,
        kv_bytes_per_token: 128 << 10,
        max_model_len: 8192,
        activation_bytes: 100 * MIB,
        step_activation_bytes: 200 * MIB,
        thread_bytes: 0,
        staging_bytes: 0,
        download_bytes: None,
    }
}

fn planned(yaml: &str, found: FoundDevices) -> Result<LaunchPlan, String> {
    let objects = objects(yaml);
    let mut inputs = inputs(&objects, &options()).unwrap();
    inputs.devices = CudaPools::new(&objects, &inputs).assign(found).unwrap();
    for key in inputs.unknown_sizes() {
        inputs.inspections.insert(key, Ok(llama()));
    }
    plan(&objects, &inputs, &options()).map_err(|error| error.to_string())
}

fn one_gpu(yaml: &str) -> String {
    yaml.replace("    - {name: code, count: 1}\n", "").replace("8Gi", "64Gi")
}

#[test]
fn tenants_get_the_device_and_its_memory_without_their_contexts() {
    let yaml = one_gpu(&[pool("p"), tenant("one", "p"), tenant("two", "p")].concat());
    let plan = planned(&yaml, devices(1)).unwrap();
    let cuda = |config: &SidecarConfig| config.gpu.cuda.clone();
    let expected = Some(CudaConfig { uuid: Some("GPU-0".into()) });
    assert!(plan.configs.iter().all(|config| cuda(config) == expected), "{:?}", plan.configs);
    // Each tenant's two contexts take 1280 MiB by default.
    let usable = 80 * GIB - 2 * 1280 * MIB;
    let gpu = &plan.shared[0];
    assert_eq!((gpu.memory_bytes, gpu.uuid.as_deref()), (usable, Some("GPU-0")));
    assert!(plan.configs.iter().all(|config| config.gpu.memory_bytes == usable));
    let shares: Vec<u64> =
        plan.configs.iter().map(|config| config.gpu_ledger.as_ref().unwrap().share_bytes).collect();
    assert_eq!(shares, [usable / 2; 2], "both models are equal");
    // The pool may say what its contexts take, and other processes leave less.
    let own = yaml.replace("  gpus:", "  device: {contextReserve: 512Mi}\n  gpus:");
    let plan = planned(&own, Ok(vec![device(0, 60 * GIB)])).unwrap();
    assert_eq!(plan.shared[0].memory_bytes, 60 * GIB - GIB);
    let alone = one_gpu(&[pool("p"), tenant("one", "p")].concat());
    let plan = planned(&alone, devices(1)).unwrap();
    assert_eq!(plan.configs[0].gpu.memory_bytes, 80 * GIB - 1280 * MIB, "with a GPU to itself too");
    assert!(plan.configs[0].gpu_ledger.is_none());
}

#[test]
fn a_device_that_is_too_small_is_named() {
    let yaml = one_gpu(&[pool("p"), tenant("one", "p")].concat());
    let error = planned(&yaml, Ok(vec![device(0, 4 * GIB)])).unwrap_err();
    // In MiB: 2048 of other weights, 14 layers (19 of 32 share one slot) of 27 chunks, 1024 of KV, 208 of activations,
    // 1280 of contexts: 10,608 in all.
    let expected = "default/one: cannot be served\n\
                    up.yaml:5: GpuPool/p spec.deviceClassName: the tenant's floor of 10.4 GiB, of which 1.2 GiB \
                    are for CUDA contexts (device.contextReserve), exceeds its largest usable GPU, which has 4 GiB";
    assert!(error.starts_with(expected), "{error}");
    assert!(error.contains("; p-chat-0 is NVIDIA H100 (GPU-0, 4 GiB free of 80 GiB)\n"), "{error}");
}
