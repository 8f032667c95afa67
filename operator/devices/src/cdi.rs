//! Builds the CDI specification of each claim, which describes the claim's devices to the container runtime.
//!
//! Version 0.7.0 of the specification is the first with `additionalGids`; containerd 2.0 and CRI-O 1.31 read it.

use std::path::Path;

use serde_json::{Value, json};

use crate::claim::{AllocatedDevice, PreparedClaim};
use crate::devices::DeviceKind;

/// Vendor and class of the driver's CDI devices.
const KIND: &str = "sluice.dev/claim";
/// Prefix of the driver's file names in the CDI folder.
pub const FILE_PREFIX: &str = "sluice.dev-claim-";
/// Path of the neighbourhood in a container.
pub const MOUNT: &str = "/run/sluice-neighbourhood";

/// Returns the name of the claim's file in the CDI folder.
pub fn file_name(uid: &str) -> String {
    format!("{FILE_PREFIX}{uid}.json")
}

/// Returns the name by which the container runtime finds a device of a claim.
pub fn device_id(uid: &str, device: &str) -> String {
    format!("{KIND}={}", device_name(uid, device))
}

fn device_name(uid: &str, device: &str) -> String {
    format!("{uid}-{device}")
}

/// Builds the specification of a claim whose pods share `folder`, which belongs to `group`.
pub fn spec(granted: &PreparedClaim, folder: &Path, group: u32) -> Value {
    let device = |given: &AllocatedDevice| {
        let edits = match DeviceKind::from_name(&given.device) {
            Some(DeviceKind::Neighbourhood) => ledger_edits(folder, group),
            _ => json!({"env": [format!("SLUICE_DEVICE={}", given.device)]}),
        };
        json!({"name": device_name(&granted.uid, &given.device), "containerEdits": edits})
    };
    let devices: Vec<_> = granted.devices.iter().map(device).collect();
    json!({"cdiVersion": "0.7.0", "kind": KIND, "devices": devices})
}

fn ledger_edits(folder: &Path, group: u32) -> Value {
    let mount = json!({
        "hostPath": folder,
        "containerPath": MOUNT,
        "type": "bind",
        "options": ["rw", "rbind", "nosuid", "nodev", "noexec"],
    });
    json!({"mounts": [mount], "additionalGids": [group]})
}
