//! The model to generate, and why generation fails.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::Value;
use sluice_link::model::{Family, ModelSpec};
use thiserror::Error;

use super::tokenizer::SMALLEST_VOCAB;

/// The model to generate.
#[derive(Clone, Debug, PartialEq)]
pub struct RandomModel {
    /// Shape and dtype.
    pub spec: ModelSpec,
    /// Equal seeds give equal files.
    pub seed: u64,
    /// Number of safetensors files; with two or more, an index is written.
    pub shards: usize,
}

impl RandomModel {
    /// Refuses a shape that the family cannot express.
    pub(super) fn check(&self) -> Result<(), GenerateError> {
        let spec = &self.spec;
        let opt = spec.family == Family::Opt;
        let rules = [
            (spec.vocab >= SMALLEST_VOCAB, "vocab must hold 2 special tokens and 256 bytes"),
            (spec.heads > 0 && spec.kv_heads > 0 && spec.layers > 0, "a size is zero"),
            (spec.kv_heads > 0 && spec.heads.is_multiple_of(spec.kv_heads), "kv_heads must divide heads"),
            (spec.head_dim > 0 && spec.head_dim.is_multiple_of(2), "head_dim must be even"),
            (!opt || spec.kv_heads == spec.heads, "OPT has as many key heads as query heads"),
            (!opt || spec.heads * spec.head_dim == spec.hidden, "OPT's heads must make up its width"),
            (!opt || (spec.attention_bias && spec.mlp_bias), "OPT's matrices always have biases"),
            (!opt || spec.norm_eps == 1e-5, "OPT's norm_eps is always 1e-5"),
            (self.shards > 0, "at least one shard"),
        ];
        match rules.iter().find(|(holds, _)| !holds) {
            Some((_, message)) => Err(GenerateError::Shape(message)),
            None => Ok(()),
        }
    }
}

/// Errors of generation.
#[derive(Debug, Error)]
pub enum GenerateError {
    /// The family's configuration cannot express the shape.
    #[error("model shape: {0}")]
    Shape(&'static str),
    /// A file could not be written.
    #[error("cannot write {path}: {source}")]
    Write {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
}

pub(super) fn in_file<T>(path: &Path, result: io::Result<T>) -> Result<T, GenerateError> {
    result.map_err(|source| GenerateError::Write { path: path.to_owned(), source })
}

pub(super) fn write_json(folder: &Path, name: &str, value: &Value) -> Result<(), GenerateError> {
    let path = folder.join(name);
    in_file(&path, fs::write(&path, format!("{value:#}\n")))
}
