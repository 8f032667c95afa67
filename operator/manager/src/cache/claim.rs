//! A claim: its allocation, and whether it is unchanged since it was applied.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::NodeSelector;
use k8s_openapi::api::resource::v1::{AllocationResult, ResourceClaim};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use sluice_plan::gpu_settings::GpuSettings;
use sluice_plan::objects::{CLAIM_DIGEST, GPU_REQUEST, SETTINGS, SHARING_MODE};
use sluice_plan::observed::{ObservedClaim, ObservedDevice};
use sluice_types::pool::SharingMode;

use super::{DeviceId, ObservedChild};

/// A claim of a pool.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClaimEntry {
    pub child: ObservedChild,
    /// Its observed state; capacity and UUID are in its device's slice.
    pub claim: ObservedClaim,
    /// The allocated device.
    pub device: Option<DeviceId>,
}

impl ClaimEntry {
    /// Whether two versions differ in no relevant field.
    pub fn is_equivalent(&self, other: &ClaimEntry) -> bool {
        self.child.is_equivalent(&other.child) && self.claim == other.claim && self.device == other.device
    }

    /// Returns the relevant parts of a claim.
    pub fn observe(claim: &ResourceClaim, before: Option<&ClaimEntry>) -> ClaimEntry {
        let allocation = claim.status.as_ref().and_then(|status| status.allocation.as_ref());
        let (device, seen) = allocation.and_then(device).unzip();
        let mut entry = ClaimEntry::observe_metadata(&claim.metadata, before);
        entry.claim.device = seen;
        entry.device = device;
        entry
    }

    /// Returns the claim from new metadata; the allocation stays as before.
    pub fn observe_metadata(metadata: &ObjectMeta, before: Option<&ClaimEntry>) -> ClaimEntry {
        let empty = BTreeMap::new();
        let annotations = metadata.annotations.as_ref().unwrap_or(&empty);
        let child = ObservedChild::observe(metadata, before.map(|before| &before.child));
        let same = before.filter(|before| before.child.uid == child.uid);
        let claim = ObservedClaim {
            name: metadata.name.clone().unwrap_or_default(),
            uid: child.uid.clone(),
            digest: annotations.get(CLAIM_DIGEST).cloned().unwrap_or_default(),
            mode: annotations.get(SHARING_MODE).and_then(|mode| sharing(mode)),
            settings: annotations.get(SETTINGS).and_then(|text| GpuSettings::from_json(text)),
            is_deleting: child.is_deleting,
            device: same.and_then(|before| before.claim.device.clone()),
        };
        ClaimEntry { child, claim, device: same.and_then(|before| before.device.clone()) }
    }
}

fn sharing(mode: &str) -> Option<SharingMode> {
    serde_json::from_value(serde_json::Value::from(mode)).ok()
}

/// Returns the GPU of an allocation: its id, and the claim's own data on it.
fn device(allocation: &AllocationResult) -> Option<(DeviceId, ObservedDevice)> {
    let results = allocation.devices.as_ref()?.results.as_ref()?;
    let gpu = results.iter().find(|result| result.request == GPU_REQUEST)?;
    let id = DeviceId { driver: gpu.driver.clone(), pool: gpu.pool.clone(), name: gpu.device.clone() };
    let node = allocation.node_selector.as_ref().and_then(node);
    Some((id, ObservedDevice { node, name: gpu.device.clone(), ..ObservedDevice::default() }))
}

/// Returns the only node in a selector.
fn node(selector: &NodeSelector) -> Option<String> {
    let terms = selector.node_selector_terms.iter();
    let mut fields = terms.flat_map(|term| term.match_fields.iter().flatten());
    let named = fields.find(|field| field.key == "metadata.name")?;
    named.values.as_ref()?.first().cloned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn claim_names_its_gpu_and_node() {
        let claim: ResourceClaim = serde_json::from_value(json!({
            "metadata": {"name": "p-chat-0-e2", "uid": "u", "annotations": {
                "sluice.dev/claim-digest": "d", "sluice.dev/sharing-mode": "Spatial"}},
            "spec": {},
            "status": {"allocation": {
                "devices": {"results": [
                    {"request": "neighbourhood", "driver": "sluice.dev", "pool": "n", "device": "folder-1"},
                    {"request": "gpu", "driver": "gpu.nvidia.com", "pool": "n", "device": "gpu-3"}]},
                "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [
                    {"key": "metadata.name", "operator": "In", "values": ["node-7"]}]}]}}}
        }))
        .unwrap();
        let entry = ClaimEntry::observe(&claim, None);
        let device = entry.claim.device.clone().unwrap();
        assert_eq!((device.name.as_str(), device.node.as_deref()), ("gpu-3", Some("node-7")));
        assert_eq!((entry.claim.digest.as_str(), entry.claim.mode), ("d", Some(SharingMode::Spatial)));
        assert_eq!(entry.device.as_ref().unwrap().driver, "gpu.nvidia.com");
        let again = ClaimEntry::observe_metadata(&claim.metadata, Some(&entry));
        assert_eq!(again.claim.device, entry.claim.device);
    }
}
