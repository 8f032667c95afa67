//! What can be wrong with a model folder. Every message names the file, and the field or tensor.

use std::path::{Path, PathBuf};

/// A model folder that cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A file is absent or unreadable.
    #[error("{}: {source}", path.display())]
    Io {
        /// File.
        path: PathBuf,
        /// The system's words.
        source: std::io::Error,
    },
    /// A JSON file is malformed.
    #[error("{}: {source}", path.display())]
    Json {
        /// File.
        path: PathBuf,
        /// Line, column and what was expected there.
        source: serde_json::Error,
    },
    /// A field is missing, has an impossible value, or asks for what is not built.
    #[error("{}: {field}: {problem}", path.display())]
    Field {
        /// File.
        path: PathBuf,
        /// Field.
        field: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A weights file is malformed.
    #[error("{}: {problem}", path.display())]
    Safetensors {
        /// File.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A tensor is missing or has another shape or format than the configuration says.
    #[error("{}: tensor {tensor}: {problem}", path.display())]
    Tensor {
        /// File, or the folder when no file holds the tensor.
        path: PathBuf,
        /// Name in the file.
        tensor: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The tokenizer or the chat template cannot be used.
    #[error("{}: {problem}", path.display())]
    Text {
        /// File.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
}

impl ModelError {
    /// A field of `path`.
    pub fn field(path: &Path, field: impl Into<String>, problem: impl Into<String>) -> Self {
        ModelError::Field { path: path.to_owned(), field: field.into(), problem: problem.into() }
    }

    /// A tensor of `path`.
    pub fn tensor(path: &Path, tensor: &str, problem: impl Into<String>) -> Self {
        ModelError::Tensor { path: path.to_owned(), tensor: tensor.to_owned(), problem: problem.into() }
    }

    /// Text handling of `path`.
    pub fn text(path: &Path, problem: impl ToString) -> Self {
        ModelError::Text { path: path.to_owned(), problem: problem.to_string() }
    }
}

/// Reads a whole file.
pub fn read(path: &Path) -> Result<Vec<u8>, ModelError> {
    std::fs::read(path).map_err(|source| ModelError::Io { path: path.to_owned(), source })
}

/// Reads and parses a JSON file.
pub fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T, ModelError> {
    serde_json::from_slice(&read(path)?).map_err(|source| ModelError::Json { path: path.to_owned(), source })
}

/// Like [`read_json`]; `None` when the file is absent.
pub fn read_optional_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<Option<T>, ModelError> {
    if path.exists() { read_json(path).map(Some) } else { Ok(None) }
}
