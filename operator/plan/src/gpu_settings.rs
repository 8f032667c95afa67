//! What the claim of a GPU and the pods on it are made of, as their pool says it.
//!
//! A claim keeps what it was made of, in an annotation: while a change of the pool waits, its pods are made of the same.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sluice_types::pool::{GpuGroup, HostDevice, Sharing, SharingMode};
use sluice_types::shared::{Label, Toleration};
use sluice_types::{GpuPoolSpec, HOST_DEVICE_CLASS, Quantity};

use crate::resource_demand::DemandParams;

/// Device memory of the contexts of a slot's two processes on a CUDA device, bytes, where the pool does not say it.
const CUDA_CONTEXT_BYTES: u64 = 1 << 30;
/// Unit in which memory of a CUDA device changes hands, bytes.
const CUDA_CHUNK_BYTES: u64 = 2 << 20;

/// What a GPU's claim and pods take from their pool and group. What a directive changes in a running sidecar is not part of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GpuSettings {
    /// DRA device class of the GPU.
    pub device_class_name: String,
    /// What a host-backed GPU is made of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<HostDevice>,
    /// How its slots share it.
    pub sharing: Sharing,
    /// Labels that a node must have.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, Label>,
    /// Taints that its pods accept.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Toleration>,
    /// RuntimeClass of its pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime_class_name: Option<String>,
}

impl GpuSettings {
    /// What the pool and one of its groups say.
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

    /// As a claim's annotation keeps them.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("settings serialise")
    }

    /// What a claim's annotation keeps; `None` = it was written by an operator that kept less, or more.
    pub fn from_json(text: &str) -> Option<GpuSettings> {
        serde_json::from_str(text).ok()
    }

    /// The same in another mode, of which nothing but its name is known.
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

    /// Unit in which device memory changes hands, bytes.
    pub fn chunk_bytes(&self) -> u64 {
        self.host.as_ref().map_or(CUDA_CHUNK_BYTES, |host| host.chunk_bytes.bytes().max(1))
    }

    /// Device memory as it is declared; `None` = a driver tells it.
    pub fn device_bytes(&self) -> Option<u64> {
        self.host.as_ref().map(|host| host.memory.bytes())
    }

    /// What every slot of the GPU pays. What the pool says of contexts is a measurement, and holds at once.
    pub fn demand_params(&self, pool: &GpuPoolSpec) -> DemandParams {
        let told = pool.device.as_ref().and_then(|device| device.context_reserve.as_ref());
        let context_bytes =
            if self.is_host_backed() { 0 } else { told.map_or(CUDA_CONTEXT_BYTES, Quantity::bytes) };
        DemandParams {
            chunk_bytes: self.chunk_bytes(),
            context_bytes,
            host_gpu_bytes: self.device_bytes(),
            policy: pool.policy,
        }
    }
}

/// With what is left out: a default that somebody writes out is no change.
fn with_defaults(sharing: &Sharing) -> Sharing {
    let of = |mode| sharing.mode == mode;
    Sharing {
        mode: sharing.mode,
        temporal: of(SharingMode::Temporal).then(|| sharing.temporal.clone().unwrap_or_default()),
        spatial: of(SharingMode::Spatial).then(|| sharing.spatial.clone().unwrap_or_default()),
        isolated: sharing.isolated.clone(),
    }
}
