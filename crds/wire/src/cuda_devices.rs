//! CUDA devices that a process sees: `sluice-sidecar devices` reports them to `sluice up`, which links no driver. And
//! the variables of CUDA that `sluice up` and the operator give to a process.

use serde::{Deserialize, Serialize};

use crate::message::{ReadError, read};

/// Newest major of the report that this build knows, and the one that it writes.
pub const VERSION: u32 = 1;

/// Lets a sidecar, whose context has no kernels of ours, load code when it is used: that takes 364 MiB less for a pair of
/// contexts (docs/gpu-probe.md, `handles`). Drivers before CUDA 12.2 load all at once.
pub const SIDECAR_LOADING: (&str, &str) = ("CUDA_MODULE_LOADING", "LAZY");

/// Work queues from a process to its device. The driver's default is 8, and 32 the most (CUDA programming guide, 5.2):
/// streams that share a queue wait for each other, and a stream may wait for a word that another stream writes.
/// Clients of one MPS server share its queues, and a client that asks for more leaves fewer for others
/// (docs.nvidia.com/deploy/mps, 4.2.4).
pub const QUEUES: (&str, &str) = ("CUDA_DEVICE_MAX_CONNECTIONS", "32");

/// One device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CudaDevice {
    /// UUID as `nvidia-smi -L` shows it.
    pub uuid: String,
    /// Name, such as "NVIDIA H200".
    pub name: String,
    /// Memory, bytes.
    pub total_bytes: u64,
    /// Memory that no process holds, bytes; the context that asked for it counts as used. 0 for a device with a problem.
    pub free_bytes: u64,
    /// Why the native engine cannot use it; `None` = it can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// What was found: devices in the order of the driver, or why there are none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CudaDeviceReport {
    /// Major of this message.
    pub version: u32,
    /// The devices.
    #[serde(default)]
    pub devices: Vec<CudaDevice>,
    /// Why there is no usable driver, or none of its devices answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<String>,
}

impl CudaDeviceReport {
    /// A report of what was found.
    pub fn new(found: Result<Vec<CudaDevice>, String>) -> CudaDeviceReport {
        let (devices, refusal) = match found {
            Ok(devices) => (devices, None),
            Err(refusal) => (Vec::new(), Some(refusal)),
        };
        CudaDeviceReport { version: VERSION, devices, refusal }
    }

    /// What was found.
    ///
    /// # Errors
    /// The text is no report, or one of a newer major.
    pub fn from_json(text: &[u8]) -> Result<Result<Vec<CudaDevice>, String>, ReadError> {
        let report: CudaDeviceReport = read(text, VERSION)?;
        Ok(report.refusal.map_or(Ok(report.devices), Err))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_has_devices_or_a_refusal() {
        let device = CudaDevice {
            uuid: "GPU-00010203-0405-0607-0809-0a0b0c0d0eff".into(),
            name: "NVIDIA H200".into(),
            total_bytes: 150 << 30,
            free_bytes: 149 << 30,
            problem: None,
        };
        for found in [Ok(vec![device]), Ok(Vec::new()), Err("no CUDA driver".to_owned())] {
            let text = serde_json::to_vec(&CudaDeviceReport::new(found.clone())).expect("it is plain data");
            assert_eq!(CudaDeviceReport::from_json(&text).expect("the version is ours"), found);
        }
        assert!(CudaDeviceReport::from_json(b"{\"version\":2,\"devices\":[]}").is_err());
    }
}
