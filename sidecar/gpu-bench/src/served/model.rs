//! [`ServedModel`]: a folder with a model of random weights, which sidecars load like any other.

use std::path::{Path, PathBuf};

use sluice_kernels::generate::RandomModel;
use sluice_link::model::{Dtype, Family, ModelSpec, RopeScaling};

use super::error::ServedError;
use super::folder::RunFolder;
use super::load::Load;
use crate::scale::Scale;

/// A model in a folder.
#[derive(Clone, Debug)]
pub struct ServedModel {
    /// Name in figures: it says what the model is.
    pub name: &'static str,
    /// Unit in which its memory changes hands, bytes.
    pub chunk_bytes: u64,
    spec: ModelSpec,
    path: PathBuf,
}

impl ServedModel {
    /// Writes the model of this scale.
    pub fn write(scale: Scale, folder: &RunFolder) -> Result<ServedModel, ServedError> {
        let (name, spec) = scale.pick(
            ("Llama of 4 tiny layers", tiny()),
            ("Llama of 8 layers, 0.5 billion parameters", ModelSpec { layers: 8, ..small() }),
            ("Llama of 24 layers, 1.3 billion parameters", small()),
        );
        // The granularity of the device, and the default of pools.
        let chunk_bytes = scale.pick(2 << 20, 16 << 20, 16 << 20);
        let path = folder.path().join("model");
        RandomModel { spec: spec.clone(), seed: 1, shards: 1 }.write(&path)?;
        Ok(ServedModel { name, chunk_bytes, spec, path })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Number of tokens that it knows.
    pub fn vocab(&self) -> u32 {
        self.spec.vocab
    }

    /// Device memory in which it can serve a load without a lack of KV, bytes.
    pub fn ample_bytes(&self, load: &Load) -> u64 {
        let slabs = sluice_link::slab::slab_layout(&self.spec);
        let chunks = |bytes: u64| bytes.next_multiple_of(self.chunk_bytes);
        let weights = chunks(slabs.global.bytes) + u64::from(self.spec.layers) * chunks(slabs.layer.bytes);
        let requests = u64::from(load.concurrency) + 1;
        // Activations of a step, and the workspace of matrix products.
        let rest = 16 * self.chunk_bytes + (256 << 20);
        chunks(weights + requests * self.kv_bytes(load) + rest)
    }

    /// KV of one request of a load, bytes.
    pub fn kv_bytes(&self, load: &Load) -> u64 {
        let blocks = load.context().div_ceil(sluice_link::vocabulary::BLOCK_TOKENS);
        u64::from(blocks) * u64::from(self.spec.layers) * self.spec.layer_block_bytes()
    }
}

/// K and V of a token are 192 KiB, so that a load of few tokens fills the memory of some layers.
fn small() -> ModelSpec {
    ModelSpec {
        family: Family::Llama,
        dtype: Dtype::Bf16,
        vocab: 32_000,
        hidden: 2048,
        // A layer is hardly less than six chunks of 16 MiB.
        intermediate: 5376,
        layers: 24,
        heads: 16,
        kv_heads: 16,
        head_dim: 128,
        max_positions: 2048,
        norm_eps: 1e-5,
        rope_theta: 10_000.0,
        rope_scaling: RopeScaling::None,
        tied_embeddings: true,
        attention_bias: false,
        mlp_bias: false,
    }
}

/// For the stand-in, whose interpreter computes: little arithmetic, and 16 KiB of K and V a token, so that a chunk holds
/// eight blocks.
fn tiny() -> ModelSpec {
    ModelSpec {
        vocab: 300,
        hidden: 64,
        intermediate: 96,
        layers: 4,
        heads: 8,
        kv_heads: 8,
        max_positions: 512,
        ..small()
    }
}

#[cfg(test)]
mod tests {
    use sluice_link::slab::slab_layout;

    use super::*;

    #[test]
    fn a_layer_wastes_little_of_its_chunks() {
        let bytes = slab_layout(&small()).layer.bytes as f64 / f64::from(16 << 20);
        assert!(bytes > 5.8 && bytes <= 6.0, "{bytes} chunks");
        let spec = small();
        let slabs = slab_layout(&spec);
        let numbers = (slabs.global.bytes + u64::from(spec.layers) * slabs.layer.bytes) / 2;
        assert!((1.2e9..1.35e9).contains(&(numbers as f64)), "{numbers}");
    }
}
