//! Pool settings that a GPU's claim and the pods on it are built from.
//!
//! A claim records its settings in an annotation: while an update of the pool is pending, new pods use the recorded
//! settings.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sluice_types::pool::{GpuGroup, HostDevice, Sharing, SharingMode};
use sluice_types::shared::{Label, Toleration};
use sluice_types::{GpuPoolSpec, HOST_DEVICE_CLASS, Quantity};

use crate::resource_demand::DemandParams;

/// Default device memory for the contexts of a slot's two processes on a CUDA device, bytes: the 1055 MiB that the probe
/// measured on an H200 and an H100, and a fifth more for the kernels of an engine.
const CUDA_CONTEXT_BYTES: u64 = 1280 << 20;
/// Unit in which memory of a CUDA device changes owners, bytes: the least power of two with which a tenant grows by
/// 200 MiB in 10 ms on a measured GPU. Each chunk is created and mapped, and its handle is exported to the engine, which
/// takes a time for each handle and not for its bytes (the figures are in the test below). A layer wastes less than one
/// chunk: of Llama-3-8B, whose layers have 416 MiB and 16 KiB in bf16, that is 4 %.
const CUDA_CHUNK_BYTES: u64 = 16 << 20;

/// The settings that a GPU's claim and pods take from their pool and group. Settings that a directive changes in a
/// running sidecar are excluded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GpuSettings {
    /// DRA device class of the GPU.
    pub device_class_name: String,
    /// Parameters of a host-backed GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<HostDevice>,
    /// How its slots share it.
    pub sharing: Sharing,
    /// Required node labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, Label>,
    /// Tolerations of its pods.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Toleration>,
    /// RuntimeClass of its pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime_class_name: Option<String>,
}

impl GpuSettings {
    /// Returns the settings of a pool and one of its groups.
    pub fn from_group(pool: &GpuPoolSpec, group: &GpuGroup) -> GpuSettings {
        GpuSettings {
            device_class_name: pool.device_class_name.clone(),
            host: pool.device.as_ref().and_then(|device| device.host.clone()),
            sharing: with_defaults(&group.sharing),
            node_selector: pool.node_selector.clone(),
            tolerations: pool.tolerations.clone(),
            runtime_class_name: pool.runtime_class_name.clone(),
        }
    }

    /// Serialises the settings for a claim's annotation.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("settings serialise")
    }

    /// Parses a claim's annotation; `None` = an operator of another version wrote it, with other fields.
    pub fn from_json(text: &str) -> Option<GpuSettings> {
        serde_json::from_str(text).ok()
    }

    /// Returns the settings in another mode, for which only the name of the mode is known.
    pub(crate) fn with_mode(self, mode: SharingMode) -> GpuSettings {
        match mode == self.sharing.mode {
            true => self,
            false => GpuSettings { sharing: with_defaults(&Sharing { mode, ..Sharing::default() }), ..self },
        }
    }

    /// Whether the GPU is made of host memory.
    pub fn is_host_backed(&self) -> bool {
        self.device_class_name == HOST_DEVICE_CLASS
    }

    /// Unit in which device memory changes owners, bytes.
    pub fn chunk_bytes(&self) -> u64 {
        self.host.as_ref().map_or(CUDA_CHUNK_BYTES, |host| host.chunk_bytes.bytes().max(1))
    }

    /// Returns the declared device memory; `None` = a driver reports it.
    pub fn device_bytes(&self) -> Option<u64> {
        self.host.as_ref().map(|host| host.memory.bytes())
    }

    /// Returns the per-slot parameters of demand. The pool's context reserve is a measurement and takes effect at
    /// once.
    pub fn demand_params(&self, pool: &GpuPoolSpec) -> DemandParams {
        let reserve = pool.device.as_ref().and_then(|device| device.context_reserve.as_ref());
        let context_bytes =
            if self.is_host_backed() { 0 } else { reserve.map_or(CUDA_CONTEXT_BYTES, Quantity::bytes) };
        DemandParams {
            chunk_bytes: self.chunk_bytes(),
            context_bytes,
            host_gpu_bytes: self.device_bytes(),
            policy: pool.policy,
        }
    }
}

/// Fills in defaults, so that an explicit default is not a change.
fn with_defaults(sharing: &Sharing) -> Sharing {
    let of = |mode| sharing.mode == mode;
    Sharing {
        mode: sharing.mode,
        temporal: of(SharingMode::Temporal).then(|| sharing.temporal.clone().unwrap_or_default()),
        spatial: of(SharingMode::Spatial).then(|| sharing.spatial.clone().unwrap_or_default()),
        isolated: sharing.isolated.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::CUDA_CHUNK_BYTES;

    /// What docs/gpu-probe.md reports of the slower of two GPUs, an H100, in microseconds: the export of a handle, and
    /// creating and mapping one chunk of 100.
    const EXPORT_US: u64 = 600;
    const CREATE_AND_MAP_US: u64 = 33;

    #[test]
    fn the_chunk_of_cuda_is_the_smallest_with_which_200_mib_are_there_in_10_ms() {
        let grow_us = |chunk: u64| (200_u64 << 20).div_ceil(chunk) * (EXPORT_US + CREATE_AND_MAP_US);
        // 13 chunks take 8.2 ms, 25 take 15.8 ms.
        let smallest = (0..6).map(|power| (2 << 20) << power).find(|chunk| grow_us(*chunk) <= 10_000);
        assert_eq!(smallest, Some(CUDA_CHUNK_BYTES));
    }

    #[test]
    fn a_new_engine_has_all_memory_of_an_h200_within_its_time_for_the_first_mapping() {
        // A first mapping that takes 60 s counts as a hang; a restart should be far from it. 139.8 GiB, in MiB.
        let handles = 143_155_u64.div_ceil(CUDA_CHUNK_BYTES >> 20);
        assert!(handles * EXPORT_US < 60_000_000 / 10, "{handles} handles");
        assert!(143_155_u64.div_ceil(2) * EXPORT_US > 60_000_000 / 2, "with chunks of 2 MiB it is near");
    }
}
