//! Devices of DRA drivers, with memory and UUID.

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::{Device, ResourceSlice};
use sluice_types::Quantity;

/// A device, by driver and pool of devices.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId {
    /// Its driver.
    pub driver: String,
    /// The driver's device pool, usually a node.
    pub pool: String,
    /// Its name in the pool.
    pub name: String,
}

/// The relevant parts of a ResourceSlice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceSlice {
    /// Its driver.
    pub driver: String,
    /// The driver's device pool.
    pub pool: String,
    /// Memory in bytes and UUID of its devices that have memory, by name.
    pub devices: BTreeMap<String, (u64, Option<String>)>,
}

impl DeviceSlice {
    /// Returns the relevant parts of `slice`; `None` = none of its devices has memory.
    pub fn from_resource_slice(slice: &ResourceSlice) -> Option<DeviceSlice> {
        let spec = &slice.spec;
        let devices: BTreeMap<_, _> = spec.devices.iter().flatten().filter_map(device).collect();
        (!devices.is_empty()).then(|| DeviceSlice {
            driver: spec.driver.clone(),
            pool: spec.pool.name.clone(),
            devices,
        })
    }
}

fn device(device: &Device) -> Option<(String, (u64, Option<String>))> {
    let memory = device.capacity.as_ref()?.get("memory")?;
    let bytes: Quantity = serde_json::from_value(serde_json::Value::from(memory.value.0.as_str())).ok()?;
    let uuid = device.attributes.as_ref().and_then(|attributes| attributes.get("uuid")?.string.clone());
    Some((device.name.clone(), (bytes.bytes(), uuid)))
}
