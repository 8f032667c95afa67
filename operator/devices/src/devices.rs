//! Builds the list of devices that a node offers, and the ResourceSlice that publishes it. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::{
    Device, DeviceAttribute, DeviceCapacity, ResourcePool, ResourceSlice, ResourceSliceSpec,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use sluice_types::Quantity;

use crate::DRIVER;

/// Most devices in one ResourceSlice.
pub const MAX_DEVICES: u32 = 128;

/// Name prefix of neighbourhood devices.
const NEIGHBOURHOOD: &str = "neighbourhood-";
/// Name prefix of host-backed GPUs.
const GPU: &str = "gpu-";

/// Value of the attribute `type` of neighbourhoods. Device classes select by it.
pub const TYPE_NEIGHBOURHOOD: &str = "neighbourhood";
/// Value of the attribute `type` of host-backed GPUs.
pub const TYPE_HOST_GPU: &str = "host-gpu";

/// Devices that a node offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Name of the node and of its pool.
    pub node: String,
    /// Number of claims that can have a neighbourhood at the same time.
    pub neighbourhoods: u32,
    /// Number of host-backed GPUs.
    pub host_gpus: u32,
    /// Most device memory of each host-backed GPU.
    pub host_memory: Quantity,
}

/// Kind of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// A folder that the claim's pods share.
    Neighbourhood,
    /// A GPU simulated in host memory.
    HostGpu,
}

impl DeviceKind {
    /// Returns the kind of the device `name`, or `None` if this driver has no device of that name.
    pub fn from_name(name: &str) -> Option<DeviceKind> {
        let numbered = |start| name.strip_prefix(start).is_some_and(|rest| rest.parse::<u32>().is_ok());
        if numbered(NEIGHBOURHOOD) {
            Some(DeviceKind::Neighbourhood)
        } else {
            numbered(GPU).then_some(DeviceKind::HostGpu)
        }
    }
}

/// Returns all devices of the node, without the attributes that depend on the node's UID.
pub fn devices(offer: &Offer) -> Vec<Device> {
    let gpus = (0..offer.host_gpus).map(|index| gpu(offer, index));
    let folders = (0..offer.neighbourhoods)
        .map(|index| device(format!("{NEIGHBOURHOOD}{index}"), TYPE_NEIGHBOURHOOD, index));
    gpus.chain(folders).collect()
}

fn gpu(offer: &Offer, index: u32) -> Device {
    let memory = DeviceCapacity { request_policy: None, value: Text(offer.host_memory.as_str().into()) };
    Device {
        capacity: Some(BTreeMap::from([("memory".to_owned(), memory)])),
        ..device(format!("{GPU}{index}"), TYPE_HOST_GPU, index)
    }
}

fn device(name: String, kind: &str, index: u32) -> Device {
    let kind = DeviceAttribute { string: Some(kind.into()), ..DeviceAttribute::default() };
    let index = DeviceAttribute { int: Some(i64::from(index)), ..DeviceAttribute::default() };
    let version =
        DeviceAttribute { version: Some(env!("CARGO_PKG_VERSION").into()), ..DeviceAttribute::default() };
    let attributes = [("type", kind), ("index", index), ("driverVersion", version)];
    Device {
        name,
        attributes: Some(attributes.map(|(name, value)| (name.to_owned(), value)).into()),
        ..Device::default()
    }
}

/// Returns all devices of the node, each GPU with its UUID. As on a real GPU, the UUID is unique and stays the same
/// as long as the node exists.
fn slice_devices(offer: &Offer, node_uid: &str) -> Vec<Device> {
    let mut all = devices(offer);
    for (index, gpu) in (0..offer.host_gpus).zip(&mut all) {
        let uuid = format!("HOST-{node_uid}-{index}");
        let uuid = DeviceAttribute { string: Some(uuid), ..DeviceAttribute::default() };
        gpu.attributes.get_or_insert_default().insert("uuid".to_owned(), uuid);
    }
    all
}

/// Returns the name of the node's slice.
pub fn slice_name(node: &str) -> String {
    format!("{DRIVER}-{node}")
}

/// Builds the node's slice. The node owns the slice, so Kubernetes deletes both together. `generation` counts changes
/// of the pool.
pub fn slice(offer: &Offer, node_uid: &str, generation: i64) -> ResourceSlice {
    let owner = OwnerReference {
        api_version: "v1".into(),
        kind: "Node".into(),
        name: offer.node.clone(),
        uid: node_uid.into(),
        controller: Some(true),
        block_owner_deletion: None,
    };
    ResourceSlice {
        metadata: ObjectMeta {
            name: Some(slice_name(&offer.node)),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        spec: ResourceSliceSpec {
            driver: DRIVER.into(),
            node_name: Some(offer.node.clone()),
            pool: ResourcePool { name: offer.node.clone(), generation, resource_slice_count: 1 },
            devices: Some(slice_devices(offer, node_uid)),
            ..ResourceSliceSpec::default()
        },
    }
}

#[cfg(test)]
mod tests {
    use sluice_types::Quantity;

    use super::{DeviceKind, Offer, devices, slice};

    fn offer() -> Offer {
        let host_memory = Quantity::from_bytes(96 << 20);
        Offer { node: "one".into(), neighbourhoods: 2, host_gpus: 1, host_memory }
    }

    #[test]
    fn a_node_offers_its_gpus_and_then_its_neighbourhoods() {
        let devices = devices(&offer());
        let names: Vec<_> = devices.iter().map(|device| device.name.as_str()).collect();
        assert_eq!(names, ["gpu-0", "neighbourhood-0", "neighbourhood-1"]);
        let kinds: Vec<_> = names.iter().map(|name| DeviceKind::from_name(name)).collect();
        assert_eq!(
            kinds,
            [Some(DeviceKind::HostGpu), Some(DeviceKind::Neighbourhood), Some(DeviceKind::Neighbourhood)]
        );
        assert_eq!(devices[0].capacity.as_ref().unwrap()["memory"].value.0, "96Mi");
        assert_eq!(devices[1].capacity, None);
    }

    #[test]
    fn a_name_that_no_device_has_is_of_no_kind() {
        for name in ["", "gpu-", "gpu-x", "gpu", "neighbourhood", "fpga-0", "gpu-0x", "gpu--1"] {
            assert_eq!(DeviceKind::from_name(name), None, "{name}");
        }
    }

    #[test]
    fn a_slice_belongs_to_its_node_and_is_the_whole_pool() {
        let slice = slice(&offer(), "uid-of-node", 3);
        let owner = &slice.metadata.owner_references.as_ref().unwrap()[0];
        assert_eq!((owner.kind.as_str(), owner.uid.as_str()), ("Node", "uid-of-node"));
        assert_eq!(slice.spec.node_name.as_deref(), Some("one"));
        assert_eq!((slice.spec.pool.generation, slice.spec.pool.resource_slice_count), (3, 1));
        let devices = slice.spec.devices.unwrap();
        let uuid = |at: usize| devices[at].attributes.as_ref()?.get("uuid")?.string.as_deref();
        assert_eq!([0, 1].map(uuid), [Some("HOST-uid-of-node-0"), None], "of GPUs alone");
    }
}
