//! Files of a model.

use serde::{Deserialize, Serialize};

/// A file of a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelFile {
    /// Name in the model's folder.
    pub name: String,
    /// Length, bytes.
    pub bytes: u64,
    /// Expected digest.
    pub expected: ExpectedDigest,
    /// Tag of this version of the object.
    pub tag: Option<String>,
}

/// Digest that a source gives for a file, in hexadecimal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExpectedDigest {
    /// SHA-256 of the bytes.
    Sha256(String),
    /// Git blob id: SHA-1 of "blob", the length, a zero byte, and the bytes.
    GitBlob(String),
    /// No digest, only the length.
    Length,
}

/// Whether a sidecar reads a file of this name. Excludes weights in other formats, their copies (`consolidated`), and
/// everything in subfolders.
pub(super) fn is_model_file(name: &str) -> bool {
    let weights = name.ends_with(".safetensors") && !name.starts_with("consolidated");
    let rest = name.ends_with(".json") || name.ends_with(".jinja") || name == "tokenizer.model";
    !name.contains(['/', '\\']) && !name.starts_with('.') && (weights || rest)
}
