//! Result of a model's inspection: its sizes, or why it has none.
//!
//! `sluice-sidecar inspect` writes it, to standard output and into its pod's termination message, and the operator
//! places tenants by it.

use serde::{Deserialize, Serialize};

use crate::message::{Invalid, ReadError, read};

/// Newest major of the report that this build knows, and the one that it writes.
pub const VERSION: u32 = 1;
/// Longest report, bytes: as much as the kubelet takes of a container's termination message.
pub const MAX_BYTES: usize = 4096;

// The report comes from a pod that reads untrusted files. With these bounds no sum or product of a plan overflows.
/// Most layers: of a model that a sidecar serves.
pub const MAX_LAYERS: u64 = 256;
/// Most tokens of a sequence: that of `maxModelLen` in the CRD.
pub const MAX_TOKENS: u64 = 16_777_216;
/// Most KV of a token, bytes.
pub const MAX_TOKEN_BYTES: u64 = 1 << 30;
/// Most of anything else, bytes: 16 TiB.
pub const MAX_SIZE_BYTES: u64 = 1 << 44;

/// Sizes of a model once it is in memory, in the number format asked for. Bytes. The sizes of a tenant on one GPU are
/// the policy's `Geometry`, in chunks of that GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Geometry {
    /// Weights that belong to no layer: embeddings, head, norms.
    pub global_bytes: u64,
    /// Weights of the largest layer.
    pub layer_bytes: u64,
    /// Layers; at least 1.
    pub layers: u32,
    /// KV of one token over all layers.
    pub kv_bytes_per_token: u64,
    /// Tokens that the model was made for; at least 1.
    pub max_model_len: u32,
    /// Activations of the smallest step that is always possible, without what each thread of the engine needs.
    pub activation_bytes: u64,
    /// Activations of the largest step, without what each thread of the engine needs.
    pub step_activation_bytes: u64,
    /// Activations more for each thread of the engine.
    pub thread_bytes: u64,
    /// Staging buffers.
    pub staging_bytes: u64,
    /// Size of the model's stored files, which a download transfers; `None` = no download, or not inspected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub download_bytes: Option<u64>,
}

/// Why a model has no geometry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GeometryErrorKind {
    /// Its files cannot be had: no such repository, bucket, folder or file, or not with this credential.
    Unreadable,
    /// Its files are there and are no model that is served: another architecture, another format, damaged.
    Unsupported,
    /// Its files could not be had just now: trying again may help.
    Unavailable,
}

/// A model without a geometry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GeometryError {
    /// Why, for programs.
    pub reason: GeometryErrorKind,
    /// Why, for people: the file, and the field or tensor.
    pub message: String,
}

/// What was found: a geometry or a refusal, never both.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GeometryReport {
    /// Major of this message.
    pub version: u32,
    /// The sizes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub geometry: Option<Geometry>,
    /// Why there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<GeometryError>,
}

impl GeometryReport {
    /// A report of what was found.
    pub fn new(found: Result<Geometry, GeometryError>) -> GeometryReport {
        let (geometry, refusal) = match found {
            Ok(geometry) => (Some(geometry), None),
            Err(refusal) => (None, Some(refusal)),
        };
        GeometryReport { version: VERSION, geometry, refusal }
    }

    /// What was found.
    ///
    /// # Errors
    /// The text is no report, or one of a newer major.
    pub fn from_json(text: &[u8]) -> Result<Result<Geometry, GeometryError>, ReadError> {
        let report: GeometryReport = read(text, VERSION)?;
        match (report.geometry, report.refusal) {
            (Some(geometry), None) => Ok(Ok(geometry.checked()?)),
            (None, Some(refusal)) => Ok(Err(refusal)),
            _ => Err(Invalid::new(".", "exactly one of `geometry` and `refusal` must be set").into()),
        }
    }

    /// The report as JSON of one line, at most [`MAX_BYTES`]: the message of a refusal is cut to fit.
    pub fn to_json(mut self) -> String {
        loop {
            let text = serde_json::to_string(&self).expect("a report serialises");
            let over = text.len().saturating_sub(MAX_BYTES);
            match &mut self.refusal {
                // A character may take six bytes in JSON: cutting as many as are over ends after a few rounds.
                Some(refusal) if over > 0 => truncate(&mut refusal.message, over.div_ceil(6)),
                _ => return text,
            }
        }
    }
}

/// Takes `characters` off the end.
fn truncate(text: &mut String, characters: usize) {
    for _ in 0..characters {
        text.pop();
    }
}

impl Geometry {
    fn checked(self) -> Result<Geometry, Invalid> {
        let least = [
            ("geometry.layers", u64::from(self.layers)),
            ("geometry.max_model_len", u64::from(self.max_model_len)),
            ("geometry.layer_bytes", self.layer_bytes),
            ("geometry.kv_bytes_per_token", self.kv_bytes_per_token),
        ];
        if let Some((field, _)) = least.into_iter().find(|(_, value)| *value == 0) {
            return Err(Invalid::new(field, "0 is less than the minimum, 1"));
        }
        let most = [
            ("geometry.layers", u64::from(self.layers), MAX_LAYERS),
            ("geometry.max_model_len", u64::from(self.max_model_len), MAX_TOKENS),
            ("geometry.kv_bytes_per_token", self.kv_bytes_per_token, MAX_TOKEN_BYTES),
            ("geometry.global_bytes", self.global_bytes, MAX_SIZE_BYTES),
            ("geometry.layer_bytes", self.layer_bytes, MAX_SIZE_BYTES),
            ("geometry.activation_bytes", self.activation_bytes, MAX_SIZE_BYTES),
            ("geometry.step_activation_bytes", self.step_activation_bytes, MAX_SIZE_BYTES),
            ("geometry.thread_bytes", self.thread_bytes, MAX_SIZE_BYTES),
            ("geometry.staging_bytes", self.staging_bytes, MAX_SIZE_BYTES),
            ("geometry.download_bytes", self.download_bytes.unwrap_or(0), MAX_SIZE_BYTES),
        ];
        match most.into_iter().find(|(_, value, most)| value > most) {
            Some((field, value, most)) => {
                Err(Invalid::new(field, format!("{value} exceeds the maximum, {most}")))
            }
            None => Ok(self),
        }
    }
}
