//! Messages as JSON. The table in the documentation of this crate is their reference.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sluice_link::message::{
    Demand, Device, Held, KvExtents, KvLayout, Loaded, Moving, Resume, Retired, SetupRefused, WorkerSetup,
};

use crate::failure::Failure;

/// What a worker receives.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum WorkerIncoming<'a> {
    Remap { id: u64, maps: usize, unmaps: usize },
    Zero { id: u64, positions: usize },
    Moving(&'a Moving),
    Captured,
    KvAccepted(KvExtents),
    SetupRefused(&'a SetupRefused),
    Bye,
}

/// What a worker sends.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum WorkerOutgoing {
    Loaded(Loaded),
    KvLayout(KvLayout),
    Applied { id: u64 },
    Refused { id: u64, message: String },
    Bye,
}

/// What a scheduler receives.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum SchedulerIncoming<'a> {
    Hold { id: u64 },
    Retire { id: u64, extents: u32 },
    Resume(&'a Resume),
    Bye,
}

/// What a scheduler sends.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum SchedulerOutgoing {
    Held(Held),
    Retired(Retired),
    Demand(Demand),
    Bye,
}

/// The memory of a worker.
#[derive(Debug, Serialize)]
pub(crate) struct WorkerSetupText<'a> {
    device: &'static str,
    device_uuid: Option<String>,
    chunk_bytes: u64,
    capacity_chunks: u32,
    layer_chunks: &'a [u32],
    kv_chunks: u32,
}

impl<'a> From<&'a WorkerSetup> for WorkerSetupText<'a> {
    fn from(setup: &'a WorkerSetup) -> Self {
        let (device, device_uuid) = match setup.device {
            Device::Host => ("host", None),
            Device::Cuda { uuid } => ("cuda", Some(uuid_text(uuid))),
        };
        WorkerSetupText {
            device,
            device_uuid,
            chunk_bytes: setup.chunk_bytes,
            capacity_chunks: setup.capacity_chunks,
            layer_chunks: &setup.layer_chunks,
            kv_chunks: setup.kv_chunks,
        }
    }
}

/// Returns a UUID in five groups of hexadecimal digits, as PyTorch writes that of a device.
fn uuid_text(uuid: [u8; 16]) -> String {
    let digits: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]].join("-")
}

/// Reads JSON.
pub(crate) fn read<T: DeserializeOwned>(text: &[u8]) -> Result<T, Failure> {
    serde_json::from_slice(text).map_err(|error| Failure::Invalid(format!("the JSON is not valid: {error}")))
}

/// Writes JSON.
pub(crate) fn write<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("plain data with names for keys is always JSON")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_have_five_groups() {
        let uuid = std::array::from_fn(|at| 0x10 * at as u8 + 1);
        assert_eq!(uuid_text(uuid), "01112131-4151-6171-8191-a1b1c1d1e1f1");
    }

    #[test]
    fn json_with_unknown_fields_or_types_is_refused() {
        assert!(read::<WorkerOutgoing>(br#"{"type":"loaded","layer_bytes":[1]}"#).is_ok());
        assert!(read::<WorkerOutgoing>(br#"{"type":"bye"}"#).is_ok());
        for text in [
            r#"{"type":"loaded","layer_bytes":[1],"more":1}"#,
            r#"{"type":"loaded"}"#,
            r#"{"type":"loaded","layer_bytes":[-1]}"#,
            r#"{"type":"applied","id":1,"more":1}"#,
            r#"{"type":"held","id":1}"#,
            r#"{"layer_bytes":[1]}"#,
            "",
            "[]",
        ] {
            assert!(matches!(read::<WorkerOutgoing>(text.as_bytes()), Err(Failure::Invalid(_))), "{text}");
        }
    }
}
