//! Slab layout: the offset of each tensor in the contiguous range of its layer. Both ends use the same function, and
//! `Hello` carries its digest, so that two builds with different layouts refuse each other.

use sluice_common::hash::fnv1a;

use crate::model::{Family, ModelSpec};

/// Alignment of every tensor, for SIMD loads and device copies.
pub const TENSOR_ALIGN: u64 = 64;

/// A tensor's role in the forward pass. Matrices are row-major `[outputs, inputs]`, as Hugging Face stores them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Tensor {
    /// `[vocab, hidden]`
    Embedding,
    /// `[max_positions + 2, hidden]` (OPT)
    Positions,
    /// `[hidden]`
    FinalNorm,
    /// `[hidden]` (OPT)
    FinalNormBias,
    /// `[vocab, hidden]`, absent when tied.
    Head,
    /// `[hidden]`
    AttentionNorm,
    /// `[hidden]` (OPT)
    AttentionNormBias,
    /// `[heads * head_dim, hidden]`
    Query,
    /// `[heads * head_dim]`
    QueryBias,
    /// `[kv_heads * head_dim, hidden]`
    Key,
    /// `[kv_heads * head_dim]`
    KeyBias,
    /// `[kv_heads * head_dim, hidden]`
    Value,
    /// `[kv_heads * head_dim]`
    ValueBias,
    /// `[hidden, heads * head_dim]`
    Output,
    /// `[hidden]`
    OutputBias,
    /// `[hidden]`
    MlpNorm,
    /// `[hidden]` (OPT)
    MlpNormBias,
    /// `[intermediate, hidden]` (Llama)
    Gate,
    /// `[intermediate]` (Llama with `mlp_bias`)
    GateBias,
    /// `[intermediate, hidden]` (`fc1` in OPT)
    Up,
    /// `[intermediate]`
    UpBias,
    /// `[hidden, intermediate]` (`fc2` in OPT)
    Down,
    /// `[hidden]`
    DownBias,
}

/// One tensor in a slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorSpan {
    /// Role of the tensor.
    pub tensor: Tensor,
    /// Rows (outputs); 1 for a vector.
    pub rows: u32,
    /// Columns (inputs).
    pub columns: u32,
    /// Offset from the slab's start, bytes.
    pub offset_bytes: u64,
    /// Size of the tensor, bytes.
    pub bytes: u64,
}

/// A contiguous range of tensors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slab {
    /// Tensors, sorted by offset.
    pub tensors: Vec<TensorSpan>,
    /// Size of the range, bytes.
    pub bytes: u64,
}

impl Slab {
    /// Returns the span of `tensor`, if this slab has it.
    pub fn span(&self, tensor: Tensor) -> Option<&TensorSpan> {
        self.tensors.iter().find(|place| place.tensor == tensor)
    }

    fn push(&mut self, spec: &ModelSpec, tensor: Tensor, rows: u32, columns: u32) {
        let offset_bytes = self.bytes.next_multiple_of(TENSOR_ALIGN);
        let bytes = u64::from(rows) * u64::from(columns) * spec.dtype.bytes() as u64;
        self.tensors.push(TensorSpan { tensor, rows, columns, offset_bytes, bytes });
        self.bytes = offset_bytes + bytes;
    }

    fn push_if(&mut self, spec: &ModelSpec, wanted: bool, tensor: Tensor, rows: u32, columns: u32) {
        if wanted {
            self.push(spec, tensor, rows, columns);
        }
    }
}

/// Offset of every tensor of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlabLayout {
    /// Embeddings, head and final norm.
    pub global: Slab,
    /// One layer; all layers have the same layout.
    pub layer: Slab,
}

/// Returns the layout of a model.
pub fn slab_layout(spec: &ModelSpec) -> SlabLayout {
    SlabLayout { global: global_slab(spec), layer: layer_slab(spec) }
}

fn global_slab(spec: &ModelSpec) -> Slab {
    let opt = spec.family == Family::Opt;
    let mut slab = Slab::default();
    slab.push(spec, Tensor::Embedding, spec.vocab, spec.hidden);
    slab.push_if(spec, opt, Tensor::Positions, spec.max_positions + 2, spec.hidden);
    slab.push(spec, Tensor::FinalNorm, 1, spec.hidden);
    slab.push_if(spec, opt, Tensor::FinalNormBias, 1, spec.hidden);
    slab.push_if(spec, !spec.tied_embeddings, Tensor::Head, spec.vocab, spec.hidden);
    slab
}

fn layer_slab(spec: &ModelSpec) -> Slab {
    let opt = spec.family == Family::Opt;
    let (queries, keys) = (spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim);
    let mut slab = Slab::default();
    slab.push(spec, Tensor::AttentionNorm, 1, spec.hidden);
    slab.push_if(spec, opt, Tensor::AttentionNormBias, 1, spec.hidden);
    for (matrix, bias, outputs, inputs) in [
        (Tensor::Query, Tensor::QueryBias, queries, spec.hidden),
        (Tensor::Key, Tensor::KeyBias, keys, spec.hidden),
        (Tensor::Value, Tensor::ValueBias, keys, spec.hidden),
        (Tensor::Output, Tensor::OutputBias, spec.hidden, queries),
    ] {
        slab.push(spec, matrix, outputs, inputs);
        slab.push_if(spec, spec.attention_bias, bias, 1, outputs);
    }
    slab.push(spec, Tensor::MlpNorm, 1, spec.hidden);
    slab.push_if(spec, opt, Tensor::MlpNormBias, 1, spec.hidden);
    slab.push_if(spec, !opt, Tensor::Gate, spec.intermediate, spec.hidden);
    slab.push_if(spec, !opt && spec.mlp_bias, Tensor::GateBias, 1, spec.intermediate);
    slab.push(spec, Tensor::Up, spec.intermediate, spec.hidden);
    slab.push_if(spec, spec.mlp_bias, Tensor::UpBias, 1, spec.intermediate);
    slab.push(spec, Tensor::Down, spec.hidden, spec.intermediate);
    slab.push_if(spec, spec.mlp_bias, Tensor::DownBias, 1, spec.hidden);
    slab
}

impl SlabLayout {
    /// Returns FNV-1a over every span: equal digests mean that both ends read each tensor at the same offset.
    pub fn digest(&self) -> u64 {
        let words_of = |p: &TensorSpan| {
            [p.tensor as u64, u64::from(p.rows), u64::from(p.columns), p.offset_bytes, p.bytes]
        };
        let slabs = [&self.global, &self.layer].into_iter();
        let words =
            slabs.flat_map(|slab| std::iter::once(slab.bytes).chain(slab.tensors.iter().flat_map(words_of)));
        fnv1a(words.flat_map(u64::to_le_bytes))
    }
}

/// Returns the digest of the layouts of two fixed models that together have every tensor. `Hello` carries it before the
/// model is known, so that builds with the same link version and different layouts refuse each other at once.
pub fn reference_digest() -> u64 {
    let llama = reference_spec(Family::Llama, false);
    let opt = reference_spec(Family::Opt, true);
    slab_layout(&llama).digest().rotate_left(1) ^ slab_layout(&opt).digest()
}

fn reference_spec(family: Family, tied_embeddings: bool) -> ModelSpec {
    ModelSpec {
        family,
        dtype: crate::model::Dtype::Bf16,
        vocab: 1009,
        hidden: 96,
        intermediate: 250,
        layers: 3,
        heads: 6,
        kv_heads: 2,
        head_dim: 18,
        max_positions: 77,
        norm_eps: 1e-5,
        rope_theta: 10_000.0,
        rope_scaling: crate::model::RopeScaling::None,
        tied_embeddings,
        attention_bias: true,
        mlp_bias: true,
    }
}
