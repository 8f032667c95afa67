//! The measured models: published shapes, smaller ones for `--quick` and for the stand-in.

use sluice_link::model::{Dtype, Family, ModelSpec, RopeScaling};

use crate::device_model::StepWork;
use crate::scale::Scale;

/// A model with the steps that are measured.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Name in figures. It says what is smaller than in the published model.
    pub name: &'static str,
    /// The shape.
    pub spec: ModelSpec,
    /// Steps, small ones first.
    pub steps: Vec<StepWork>,
}

/// Returns the models of this scale.
pub fn all(scale: Scale) -> Vec<Shape> {
    let [few, some, many] = [1, 16, 64].map(|sequences| StepWork::decode(sequences, 1024));
    let prefill = StepWork::prefill(2048);
    scale.pick(
        tiny(),
        vec![Shape {
            name: "Llama-3-8B of 4 layers",
            spec: ModelSpec { layers: 4, ..llama_3_8b() },
            steps: vec![few, some, prefill],
        }],
        vec![
            Shape { name: "Llama-3-8B", spec: llama_3_8b(), steps: vec![few, some, many, prefill] },
            // K and V of 64 sequences are 50 GiB.
            Shape { name: "OPT-13B", spec: opt_13b(), steps: vec![few, some, prefill] },
        ],
    )
}

/// Llama-3-8B in bf16.
fn llama_3_8b() -> ModelSpec {
    ModelSpec {
        family: Family::Llama,
        dtype: Dtype::Bf16,
        vocab: 128_256,
        hidden: 4096,
        intermediate: 14_336,
        layers: 32,
        heads: 32,
        kv_heads: 8,
        head_dim: 128,
        max_positions: 8192,
        norm_eps: 1e-5,
        rope_theta: 500_000.0,
        rope_scaling: RopeScaling::None,
        tied_embeddings: false,
        attention_bias: false,
        mlp_bias: false,
    }
}

/// OPT-13B in bf16.
fn opt_13b() -> ModelSpec {
    ModelSpec {
        family: Family::Opt,
        vocab: 50_272,
        hidden: 5120,
        intermediate: 20_480,
        layers: 40,
        heads: 40,
        kv_heads: 40,
        max_positions: 2048,
        tied_embeddings: true,
        attention_bias: true,
        mlp_bias: true,
        ..llama_3_8b()
    }
}

/// Four layers of each family, small enough for the interpreter.
fn tiny() -> Vec<Shape> {
    let small = |spec: ModelSpec| ModelSpec {
        vocab: 128,
        hidden: 64,
        intermediate: 96,
        layers: 4,
        heads: 4,
        kv_heads: if spec.family == Family::Opt { 4 } else { 2 },
        head_dim: 16,
        max_positions: 128,
        ..spec
    };
    let steps = vec![StepWork::decode(1, 40), StepWork::decode(2, 40), StepWork::prefill(24)];
    vec![
        Shape { name: "Llama of 4 tiny layers", spec: small(llama_3_8b()), steps: steps.clone() },
        Shape { name: "OPT of 4 tiny layers", spec: small(opt_13b()), steps },
    ]
}

impl Shape {
    /// Returns the name of a step in figures.
    pub fn step_name(&self, step: StepWork) -> String {
        let StepWork { sequences, start, tokens } = step;
        match step.is_decode() {
            true => format!("{}: decode of {sequences} at {} tokens", self.name, start + 1),
            false => format!("{}: prefill of {tokens} tokens", self.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The parameter counts are published numbers, in billions. OPT-13B counts its learned positions.
    #[test]
    fn models_have_the_parameters_of_their_names() {
        for (spec, billions) in [(llama_3_8b(), 8.03), (opt_13b(), 12.85)] {
            let slabs = sluice_link::slab::slab_layout(&spec);
            let bytes = slabs.global.bytes + u64::from(spec.layers) * slabs.layer.bytes;
            let ours = bytes as f64 / 2.0 / 1e9;
            assert!((ours / billions - 1.0).abs() < 0.01, "{ours} against {billions}");
        }
    }
}
