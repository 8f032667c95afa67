//! Errors of a model folder. Every message names the file, and the field or tensor.

use std::path::{Path, PathBuf};

/// Reason why a model folder cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// There is no model.
    #[error("{}: {what}; expected a folder in Hugging Face layout: config.json, tokenizer.json, \
             *.safetensors", folder.display())]
    Absent {
        /// Expected folder.
        folder: PathBuf,
        /// Missing part.
        what: &'static str,
    },
    /// A file is absent or unreadable.
    #[error("{}: {source}", path.display())]
    Io {
        /// File.
        path: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
    /// A JSON file is malformed.
    #[error("{}: {source}", path.display())]
    Json {
        /// File.
        path: PathBuf,
        /// Line, column and the problem there.
        source: serde_json::Error,
    },
    /// A field is missing, has an impossible value, or requests an unsupported feature.
    #[error("{}: {field}: {problem}", path.display())]
    Field {
        /// File.
        path: PathBuf,
        /// Field.
        field: String,
        /// Problem with the field.
        problem: String,
    },
    /// A weights file is malformed.
    #[error("{}: {problem}", path.display())]
    Safetensors {
        /// File.
        path: PathBuf,
        /// Problem with the file.
        problem: String,
    },
    /// A tensor is missing or has a shape or format that differs from the configuration.
    #[error("{}: tensor {tensor}: {problem}", path.display())]
    Tensor {
        /// File, or the folder if no file has the tensor.
        path: PathBuf,
        /// Name in the file.
        tensor: String,
        /// Problem with the tensor.
        problem: String,
    },
    /// The tokenizer or the chat template cannot be used.
    #[error("{}: {problem}", path.display())]
    Text {
        /// File.
        path: PathBuf,
        /// Problem with the file.
        problem: String,
    },
}

impl ModelError {
    /// Creates an error of a field of `path`.
    pub fn field(path: &Path, field: impl Into<String>, problem: impl Into<String>) -> Self {
        ModelError::Field { path: path.to_owned(), field: field.into(), problem: problem.into() }
    }

    /// Creates an error of a tensor of `path`.
    pub fn tensor(path: &Path, tensor: &str, problem: impl Into<String>) -> Self {
        ModelError::Tensor { path: path.to_owned(), tensor: tensor.to_owned(), problem: problem.into() }
    }

    /// Returns an error if there is no model in `folder`. `None` if there is one, or if that cannot be determined.
    pub fn find_absent(folder: &Path) -> Option<Self> {
        let missing = |path: &Path| {
            std::fs::metadata(path).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
        };
        let what = match folder {
            folder if missing(folder) => "no such folder",
            folder if folder.is_file() => "not a folder",
            folder if missing(&folder.join("config.json")) => "has no config.json",
            _ => return None,
        };
        Some(ModelError::Absent { folder: folder.to_owned(), what })
    }

    /// Creates an error of text handling of `path`.
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

/// Like [`read_json`]. `None` if the file is absent.
pub fn read_optional_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<Option<T>, ModelError> {
    if path.exists() { read_json(path).map(Some) } else { Ok(None) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_model_names_what_is_missing() {
        let folder = tempfile::tempdir().unwrap();
        let error_of =
            |path: &Path| ModelError::find_absent(path).map(|error| error.to_string()).unwrap_or_default();
        let expected = "expected a folder in Hugging Face layout: config.json, tokenizer.json, *.safetensors";
        let of = |path: &Path, what: &str| format!("{}: {what}; {expected}", path.display());
        assert_eq!(error_of(&folder.path().join("no")), of(&folder.path().join("no"), "no such folder"));
        assert_eq!(error_of(folder.path()), of(folder.path(), "has no config.json"));
        let file = folder.path().join("config.json");
        std::fs::write(&file, "{}").unwrap();
        assert_eq!(error_of(&file), of(&file, "not a folder"));
        assert!(ModelError::find_absent(folder.path()).is_none());
    }
}
