//! Random-weight models of any shape, written as Hugging Face folders: `config.json`, `model.safetensors` (or shards
//! with an index), a byte-level `tokenizer.json`, `tokenizer_config.json` with a chat template,
//! `generation_config.json`.
//!
//! A value depends only on the seed, the tensor's name and the value's index. Weights are scaled so that greedy output
//! varies instead of repeating one token: layers outweigh the embedding in the residual stream, and attention is
//! peaked. Memory holds one piece of one tensor at a time.

mod config;
mod names;
mod random_model;
mod tokenizer;
mod weights;

pub use names::tensor_name;
pub use random_model::{GenerateError, RandomModel};
pub use tokenizer::{BOS, EOS, SMALLEST_VOCAB};

use std::fs;
use std::path::Path;

use random_model::{in_file, write_json};

impl RandomModel {
    /// Writes the folder. Creates it if absent and overwrites files of the same names.
    pub fn write(&self, folder: &Path) -> Result<(), GenerateError> {
        self.check()?;
        in_file(folder, fs::create_dir_all(folder))?;
        let spec = &self.spec;
        write_json(folder, "config.json", &config::config(spec))?;
        write_json(folder, "generation_config.json", &config::generation())?;
        write_json(folder, "tokenizer_config.json", &config::tokenizer(spec))?;
        write_json(folder, "tokenizer.json", &tokenizer::tokenizer(spec.vocab))?;
        weights::write(self, folder)
    }
}
