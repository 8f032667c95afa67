//! [`DeviceFacts`].

use serde::{Deserialize, Serialize};
use sluice_memory::cuda::Device;

use crate::{Error, machine};

/// Identity of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceFacts {
    /// Name.
    pub name: String,
    /// UUID.
    pub uuid: String,
    /// PCI address.
    pub pci: String,
    /// Compute capability.
    pub compute_capability: String,
    /// Number of multiprocessors.
    pub multiprocessors: u32,
    /// Bytes of device memory.
    pub memory_bytes: u64,
    /// Version of the driver, such as "580.65.06"; `None` if neither the kernel nor the library's file name shows it.
    pub driver: Option<String>,
    /// CUDA version of the driver.
    pub cuda: String,
}

impl DeviceFacts {
    /// Asks the driver.
    pub fn of(device: Device) -> Result<DeviceFacts, Error> {
        Ok(DeviceFacts {
            name: device.name()?,
            uuid: device.uuid()?,
            pci: device.pci()?,
            compute_capability: device.compute_capability()?,
            multiprocessors: device.multiprocessors()?,
            memory_bytes: device.total_bytes()?,
            driver: machine::driver_version(),
            cuda: device.driver().cuda_version(),
        })
    }
}
