//! Shapes of the models that are compared.

use sluice_link::model::{Dtype, Family, ModelSpec, RopeScaling};

/// A named shape.
pub struct Shape {
    /// As on the command line.
    pub name: &'static str,
    /// Sizes, in f32.
    pub spec: ModelSpec,
}

/// All of them.
pub fn all() -> Vec<Shape> {
    let base = ModelSpec {
        family: Family::Llama,
        dtype: Dtype::F32,
        vocab: 8192,
        hidden: 768,
        intermediate: 2048,
        layers: 12,
        heads: 12,
        kv_heads: 4,
        head_dim: 64,
        max_positions: 2048,
        norm_eps: 1e-5,
        rope_theta: 10_000.0,
        rope_scaling: RopeScaling::None,
        tied_embeddings: false,
        attention_bias: false,
        mlp_bias: false,
    };
    let smollm2 = ModelSpec {
        vocab: 49_152,
        hidden: 576,
        intermediate: 1536,
        layers: 30,
        heads: 9,
        kv_heads: 3,
        tied_embeddings: true,
        ..base.clone()
    };
    vec![Shape { name: "llama-88m", spec: base }, Shape { name: "smollm2-135m", spec: smollm2 }]
}
