//! What the container runtime is told about a claim's devices: one CDI specification for each claim.
//!
//! Version 0.7.0 of the specification is the first with `additionalGids`; containerd 2.0 and CRI-O 1.31 read it.

use std::path::Path;

use serde_json::{Value, json};

use crate::claim::{AllocatedDevice, PreparedClaim};
use crate::devices::DeviceKind;

/// Vendor and class of all our CDI devices.
const KIND: &str = "sluice.dev/claim";
/// Start of the names of our files in the CDI folder.
pub const FILE_PREFIX: &str = "sluice.dev-claim-";
/// Where a container finds the neighbourhood.
pub const MOUNT: &str = "/run/sluice-neighbourhood";

/// Name of the claim's file in the CDI folder.
pub fn file_name(uid: &str) -> String {
    format!("{FILE_PREFIX}{uid}.json")
}

/// The name by which the container runtime finds a device of a claim.
pub fn device_id(uid: &str, device: &str) -> String {
    format!("{KIND}={}", device_name(uid, device))
}

fn device_name(uid: &str, device: &str) -> String {
    format!("{uid}-{device}")
}

/// The specification of a claim whose pods share `folder`, of which the group is `group`.
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
