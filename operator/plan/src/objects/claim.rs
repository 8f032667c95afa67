//! The ResourceClaim that all slots of a GPU share.

use k8s_openapi::api::resource::v1::{
    CELDeviceSelector, DeviceClaim, DeviceClaimConfiguration, DeviceRequest, DeviceSelector,
    ExactDeviceRequest, OpaqueDeviceConfiguration, ResourceClaim, ResourceClaimSpec,
};
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use serde_json::{Value, json};
use sluice_common::hash::fnv1a;
use sluice_types::pool::{HostDevice, SharingMode};
use sluice_types::{API_VERSION, GpuPool};

use super::{CLAIM_DIGEST, SETTINGS, SHARING_MODE, gpu_labels, label, object_meta};
use crate::gpu::Gpu;

/// Name of the request for the GPU.
pub const GPU_REQUEST: &str = "gpu";
/// Name of the request for the ledger folder that the GPU's tenants share, and its device class.
const LEDGER_REQUEST: &str = "neighbourhood";
const LEDGER_CLASS: &str = "neighbourhood.sluice.dev";
/// Device class of MIG instances.
const MIG_CLASS: &str = "mig.nvidia.com";
/// The drivers that read the configuration of host-backed GPUs and ledger folders, and of NVIDIA GPUs.
const OUR_DRIVER: &str = "sluice.dev";
const NVIDIA_DRIVER: &str = "gpu.nvidia.com";
const NVIDIA_CONFIG: &str = "resource.nvidia.com/v1beta1";

/// Returns the name of a GPU's claim in one epoch. A claim's spec is immutable and pinned to its node, so a lost node
/// or another mode needs a new epoch.
pub fn claim_name(gpu: &Gpu, epoch: u32) -> String {
    format!("{}-e{epoch}", gpu.name)
}

/// Parses the GPU and the epoch from a claim's name.
pub fn parse_claim_name(name: &str) -> Option<(&str, u32)> {
    let (gpu, epoch) = name.rsplit_once("-e")?;
    Some((gpu, epoch.parse().ok()?))
}

/// Renders the claim of `gpu` in `epoch`.
pub fn claim(pool: &GpuPool, gpu: &Gpu, epoch: u32) -> ResourceClaim {
    let spec = claim_spec(pool, gpu);
    let mut metadata = object_meta(pool, claim_name(gpu, epoch), gpu_labels(pool, gpu));
    let mode = format!("{:?}", gpu.settings.sharing.mode);
    let pairs = [(CLAIM_DIGEST, digest_of(&spec)), (SHARING_MODE, mode), (SETTINGS, gpu.settings.to_json())];
    metadata.annotations = Some(pairs.map(|(key, value)| (key.to_owned(), value)).into());
    ResourceClaim { metadata, spec, status: None }
}

/// Returns the digest of what the claim of `gpu` requests. Another digest needs another claim.
pub fn claim_digest(pool: &GpuPool, gpu: &Gpu) -> String {
    digest_of(&claim_spec(pool, gpu))
}

fn digest_of(spec: &ResourceClaimSpec) -> String {
    let text = serde_json::to_string(spec).expect("a claim serialises");
    format!("{:016x}", fnv1a(text.bytes()))
}

fn claim_spec(pool: &GpuPool, gpu: &Gpu) -> ResourceClaimSpec {
    let claim = DeviceClaim {
        requests: Some(vec![gpu_request(pool, gpu), request(LEDGER_REQUEST, LEDGER_CLASS, None)]),
        config: Some(configs(gpu)).filter(|configs| !configs.is_empty()),
        constraints: None,
    };
    ResourceClaimSpec { devices: Some(claim) }
}

fn gpu_request(pool: &GpuPool, gpu: &Gpu) -> DeviceRequest {
    let selectors = pool.spec.device.iter().flat_map(|device| &device.selectors).cloned();
    let profile =
        profile(gpu).map(|profile| format!("device.attributes['{NVIDIA_DRIVER}'].profile == '{profile}'"));
    let class = if profile.is_some() { MIG_CLASS } else { gpu.settings.device_class_name.as_str() };
    let selectors: Vec<_> = selectors.chain(profile).map(selector).collect();
    request(GPU_REQUEST, class, Some(selectors).filter(|selectors| !selectors.is_empty()))
}

/// Returns the MIG profile of an instance. A host-backed GPU has none.
fn profile(gpu: &Gpu) -> Option<&str> {
    if gpu.settings.is_host_backed() {
        return None;
    }
    gpu.settings.sharing.isolated.as_ref().map(|isolated| isolated.profile.as_str())
}

fn selector(expression: String) -> DeviceSelector {
    DeviceSelector { cel: Some(CELDeviceSelector { expression }) }
}

fn request(name: &str, class: &str, selectors: Option<Vec<DeviceSelector>>) -> DeviceRequest {
    let exactly =
        ExactDeviceRequest { device_class_name: class.into(), selectors, ..ExactDeviceRequest::default() };
    DeviceRequest { name: name.into(), exactly: Some(exactly), first_available: None }
}

/// Returns the driver configuration: the parameters of a host-backed GPU, or MPS for a GPU in mode `Spatial`.
fn configs(gpu: &Gpu) -> Vec<DeviceClaimConfiguration> {
    let host = gpu.settings.host.as_ref();
    let ours = host.map(|host| opaque(OUR_DRIVER, host_config(host)));
    let shared = host.is_none() && gpu.settings.sharing.mode == SharingMode::Spatial;
    let mps = shared.then(|| opaque(NVIDIA_DRIVER, mps_config(&gpu.settings.device_class_name)));
    ours.into_iter().chain(mps).collect()
}

fn host_config(host: &HostDevice) -> Value {
    let mut config = json!({
        "apiVersion": API_VERSION,
        "kind": "HostGpuConfig",
        "memory": host.memory,
        "chunkBytes": host.chunk_bytes,
    });
    if let Some(link) = &host.link_bytes_per_second {
        config["linkBytesPerSecond"] = json!(link);
    }
    config
}

/// Returns the configuration by which NVIDIA's driver starts one MPS daemon for the claim. The share of a tenant is set
/// in its engine's environment, so that tenants may have different shares.
///
/// As of v0.4.1 of github.com/kubernetes-sigs/dra-driver-nvidia-gpu:
/// - `api/nvidia.com/resource/v1beta1`: fields, which are decoded strictly; a MIG instance has a kind of its own. Without
///   the feature gate `MPSSupport` the driver refuses the claim, and for time slices it would need another gate.
/// - `cmd/gpu-kubelet-plugin/sharing.go`: the daemon is a Deployment of the driver and serves one user at a time, so all
///   pods of a GPU run as one. The driver sets the compute mode `EXCLUSIVE_PROCESS` and gives each container that uses
///   the request `CUDA_MPS_PIPE_DIRECTORY`, its folder and `/dev/shm`. No process outside MPS gets a context in that
///   mode, so the sidecars are clients too, although docs/gpu-probe.md finds them safer outside.
fn mps_config(class: &str) -> Value {
    json!({
        "apiVersion": NVIDIA_CONFIG,
        "kind": if class == MIG_CLASS { "MigDeviceConfig" } else { "GpuConfig" },
        "sharing": {"strategy": "MPS", "mpsConfig": {}},
    })
}

fn opaque(driver: &str, parameters: Value) -> DeviceClaimConfiguration {
    let opaque = OpaqueDeviceConfiguration { driver: driver.into(), parameters: RawExtension(parameters) };
    DeviceClaimConfiguration { opaque: Some(opaque), requests: Some(vec![GPU_REQUEST.into()]) }
}

/// Returns the name of the ledger in the claim's folder. It is the same as in earlier releases: pods of both releases
/// share the folder during an upgrade.
pub(super) fn ledger_name(pool: &GpuPool, gpu: &Gpu, epoch: u32) -> String {
    format!("{}.{}", claim_name(gpu, epoch), super::name(pool))
}

/// Returns the claim's title, which is a role in the certificates of its sidecars. It contains the pool's uid, so
/// that no other pool has the same title, even with the same name in another namespace or after recreation. Epochs
/// restart at 1 once a GPU has had no slot: a title may then repeat, but only among tenants of the same pool.
pub(super) fn title(pool: &GpuPool, gpu: &Gpu, epoch: u32) -> String {
    let uid = pool.metadata.uid.as_deref().unwrap_or_default();
    // At most 128 characters, the limit for claim names among sidecars.
    format!("{}.{uid}", label(&claim_name(gpu, epoch)))
}
