//! [`DeviceFacts`].

use serde::{Deserialize, Serialize};

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
