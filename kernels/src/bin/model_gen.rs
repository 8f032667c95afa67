//! `sluice-model-gen`: writes a random-weight model as a Hugging Face folder, for tests, demos and benchmarks.

use std::path::PathBuf;

use anyhow::Context;
use clap::{Parser, ValueEnum};
use sluice_kernels::generate::RandomModel;
use sluice_link::model::{Dtype, Family, ModelSpec, RopeScaling};

const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (commit ", env!("SLUICE_COMMIT"), ")");

/// Write a model with random weights as a Hugging Face folder.
///
/// The folder holds config.json, safetensors, a byte-level tokenizer, a chat template and generation_config.json.
/// Equal arguments give equal files. Example, the shape of SmolLM2-135M:
///
///   sluice-model-gen --out smol --layers 30 --hidden 576 --heads 9 --kv-heads 3 --intermediate 1536
#[derive(Parser)]
#[command(name = "sluice-model-gen", version = VERSION, verbatim_doc_comment)]
struct Arguments {
    /// Folder to write; created when absent
    #[arg(long)]
    out: PathBuf,
    /// Which forward pass
    #[arg(long, value_enum, default_value_t = FamilyName::Llama)]
    family: FamilyName,
    /// Transformer layers
    #[arg(long, default_value_t = 4)]
    layers: u16,
    /// Width of the residual stream
    #[arg(long, default_value_t = 128)]
    hidden: u32,
    /// Query heads
    #[arg(long, default_value_t = 4)]
    heads: u32,
    /// Key and value heads [default: as many as query heads]
    #[arg(long)]
    kv_heads: Option<u32>,
    /// Width of a head [default: hidden / heads]
    #[arg(long)]
    head_dim: Option<u32>,
    /// Width of the MLP [default: 4 x hidden]
    #[arg(long)]
    intermediate: Option<u32>,
    /// Tokens of the vocabulary, at least 258
    #[arg(long, default_value_t = 512)]
    vocab: u32,
    /// Precision of the weights
    #[arg(long, value_enum, default_value_t = DtypeName::Bf16)]
    dtype: DtypeName,
    /// Longest sequence
    #[arg(long, default_value_t = 2048)]
    max_positions: u32,
    /// The head has weights of its own instead of the embedding's
    #[arg(long)]
    untied: bool,
    /// Equal seeds give equal weights
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Number of safetensors files
    #[arg(long, default_value_t = 1)]
    shards: usize,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum FamilyName {
    Llama,
    Opt,
}

#[derive(Clone, Copy, ValueEnum)]
enum DtypeName {
    F32,
    F16,
    Bf16,
}

impl Arguments {
    fn model(&self) -> RandomModel {
        let opt = self.family == FamilyName::Opt;
        let spec = ModelSpec {
            family: if opt { Family::Opt } else { Family::Llama },
            dtype: match self.dtype {
                DtypeName::F32 => Dtype::F32,
                DtypeName::F16 => Dtype::F16,
                DtypeName::Bf16 => Dtype::Bf16,
            },
            vocab: self.vocab,
            hidden: self.hidden,
            intermediate: self.intermediate.unwrap_or(4 * self.hidden),
            layers: self.layers,
            heads: self.heads,
            kv_heads: self.kv_heads.unwrap_or(self.heads),
            head_dim: self.head_dim.unwrap_or(self.hidden / self.heads.max(1)),
            max_positions: self.max_positions,
            norm_eps: 1e-5,
            rope_theta: 10_000.0,
            rope_scaling: RopeScaling::None,
            tied_embeddings: !self.untied,
            attention_bias: opt,
            mlp_bias: opt,
        };
        RandomModel { spec, seed: self.seed, shards: self.shards }
    }
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let out = &arguments.out;
    arguments.model().write(out).with_context(|| format!("generating a model in {}", out.display()))
}
