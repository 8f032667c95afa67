//! What a native tenant's containers get on a CUDA device: variables of NVIDIA's libraries and a folder for compiled
//! kernels. Images of other engines bring their own variables.
//!
//! Not set, because nothing reads it: `CUDA_DEVICE_ORDER` (a process finds its device by UUID, or sees one alone),
//! `NVIDIA_VISIBLE_DEVICES` (the DRA driver adds devices by CDI; set, it would make the runtime add more).

use k8s_openapi::api::core::v1::EnvVar;
use sluice_types::pool::SharingMode;
use sluice_wire::cuda_devices::{QUEUES, SIDECAR_LOADING};

use super::container_parts::env_var;
use super::placed_slot::PlacedSlot;
use super::volumes::CUDA_CACHE;

/// Most bytes of compiled kernels that the driver keeps, below the limit of their volume: a pod above it is evicted.
const CUDA_CACHE_BYTES: u64 = 256 << 20;

/// Returns the variables of a sidecar.
pub(super) fn sidecar_env(placed: &PlacedSlot<'_>) -> Vec<EnvVar> {
    of_cuda(placed, &[SIDECAR_LOADING])
}

/// Returns the variables of a native engine. Its worker sets `CUDA_MODULE_LOADING` for itself. The driver
/// compiles the kernels at the first start and keeps them in a volume, because the root file system is read-only.
pub(super) fn engine_env(placed: &PlacedSlot<'_>) -> Vec<EnvVar> {
    let most = CUDA_CACHE_BYTES.to_string();
    of_cuda(placed, &[("CUDA_CACHE_PATH", CUDA_CACHE), ("CUDA_CACHE_MAXSIZE", &most)])
}

/// Adds the variables of every process on a CUDA device. `NVIDIA_DRIVER_CAPABILITIES` is read by a runtime that adds
/// the driver's libraries itself (`runtimeClassName: nvidia`).
fn of_cuda(placed: &PlacedSlot<'_>, own: &[(&str, &str)]) -> Vec<EnvVar> {
    let settings = &placed.gpu.settings;
    if settings.is_host_backed() {
        return Vec::new();
    }
    let queues = (settings.sharing.mode != SharingMode::Spatial).then_some(QUEUES);
    let libraries = ("NVIDIA_DRIVER_CAPABILITIES", "compute,utility");
    let all = std::iter::once(libraries).chain(queues).chain(own.iter().copied());
    all.map(|(name, value)| env_var(name, value)).collect()
}
