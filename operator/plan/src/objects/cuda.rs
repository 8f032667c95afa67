//! What a native tenant's containers get on a CUDA device: variables of NVIDIA's libraries and a folder for compiled
//! kernels. Images of other engines bring their own variables.
//!
//! Not set, because nothing reads it: `CUDA_DEVICE_ORDER` (a process finds its device by UUID, or sees one alone),
//! `NVIDIA_VISIBLE_DEVICES` (the DRA driver adds devices by CDI; set, it would make the runtime add more).

use k8s_openapi::api::core::v1::EnvVar;
use sluice_types::pool::SharingMode;

use super::container_parts::env_var;
use super::placed_slot::PlacedSlot;
use super::volumes::CUDA_CACHE;

/// Most bytes of compiled kernels that the driver keeps, below the limit of their volume: a pod above it is evicted.
const CUDA_CACHE_BYTES: u64 = 256 << 20;
/// Work queues from a process to its device. The driver's default is 8, and 32 the most (CUDA programming guide, 5.2):
/// streams that share a queue wait for each other, and a stream may wait for a word that another stream writes.
const MAX_CONNECTIONS: &str = "32";

/// Returns the variables of a sidecar, whose context has no kernels of ours: code that is loaded when it is used takes
/// 364 MiB less for a pair of contexts (docs/gpu-probe.md, `handles`). Drivers before CUDA 12.2 load all at once.
pub(super) fn sidecar_env(placed: &PlacedSlot<'_>) -> Vec<EnvVar> {
    of_cuda(placed, &[("CUDA_MODULE_LOADING", "LAZY".to_owned())])
}

/// Returns the variables of a native engine. Its supervisor sets `CUDA_MODULE_LOADING` for the worker. The driver
/// compiles the kernels at the first start and keeps them in a volume, because the root file system is read-only.
pub(super) fn engine_env(placed: &PlacedSlot<'_>) -> Vec<EnvVar> {
    let folder = ("CUDA_CACHE_PATH", CUDA_CACHE.to_owned());
    of_cuda(placed, &[folder, ("CUDA_CACHE_MAXSIZE", CUDA_CACHE_BYTES.to_string())])
}

/// Adds the variables of every process on a CUDA device. `NVIDIA_DRIVER_CAPABILITIES` is read by a runtime that adds
/// the driver's libraries itself (`runtimeClassName: nvidia`).
fn of_cuda(placed: &PlacedSlot<'_>, own: &[(&str, String)]) -> Vec<EnvVar> {
    let settings = &placed.gpu.settings;
    if settings.is_host_backed() {
        return Vec::new();
    }
    // Clients of one MPS server share its queues, and a client that asks for more leaves fewer for others
    // (docs.nvidia.com/deploy/mps, 4.2.4).
    let alone = settings.sharing.mode != SharingMode::Spatial;
    let queues = alone.then(|| ("CUDA_DEVICE_MAX_CONNECTIONS", MAX_CONNECTIONS.to_owned()));
    let libraries = ("NVIDIA_DRIVER_CAPABILITIES", "compute,utility".to_owned());
    let all = std::iter::once(libraries).chain(queues).chain(own.iter().cloned());
    all.map(|(name, value)| env_var(name, &value)).collect()
}
