//! A step while it is planned: the addresses of its values, and the launches before and after the layers.

use sluice_link::activation::cuda::CudaLayout;
use sluice_link::model::{Dtype, Family, ModelSpec};
use sluice_link::slab::{Slab, SlabLayout, Tensor};

use super::embedding::Embed;
use super::gemm::{Epilogue, Gemm};
use super::inputs::Inputs;
use super::norm::Norm;
use super::product::{Operation, ProductPlanner, Products};
use super::program::Results;
use super::rope::RopeAngles;
use super::{Address, ShapeError, sampling};

/// Addresses of the engine's ranges on the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceRanges {
    /// Slab of embeddings, head and final norm.
    pub global: Address,
    /// Slab of each layer, first layer first.
    pub layers: Vec<Address>,
    /// KV arena, laid out as [`super::memory::KvArena`] says.
    pub kv: Address,
    /// Blocks in the arena. Every block id is below this number.
    pub layer_blocks: u32,
    /// Activation range.
    pub activations: Address,
    /// Backed bytes of the activation range.
    pub activation_limit_bytes: u64,
}

/// A step while it is planned.
pub(super) struct StepPlan<'a> {
    pub spec: &'a ModelSpec,
    pub slabs: &'a SlabLayout,
    /// Size of a device chunk, in bytes.
    pub chunk_bytes: u64,
    pub ranges: &'a DeviceRanges,
    pub layout: CudaLayout,
    pub inputs: Inputs,
    pub products: Products,
    /// Tokens of the step.
    pub tokens: u32,
    /// Rows of logits.
    pub rows: u32,
}

/// Returns the address of a tensor; 0 (null) if the slab has none.
fn tensor(slab: &Slab, base: Address, tensor: Tensor) -> Address {
    slab.span(tensor).map_or(0, |span| base + span.offset_bytes)
}

impl StepPlan<'_> {
    /// Returns the address of a value of the layout.
    pub fn at(&self, offset: u64) -> Address {
        self.ranges.activations + offset
    }

    /// Returns the model's format.
    pub fn dtype(&self) -> Dtype {
        self.spec.dtype
    }

    /// Returns the address of a tensor of a layer; 0 (null) if the layer has none.
    pub fn layer(&self, layer: usize, wanted: Tensor) -> Address {
        tensor(&self.slabs.layer, self.ranges.layers[layer], wanted)
    }

    fn global(&self, wanted: Tensor) -> Address {
        tensor(&self.slabs.global, self.ranges.global, wanted)
    }

    /// Returns what plans products. Sums of cuBLASLt lie where a gate would.
    pub fn products(&self) -> ProductPlanner {
        ProductPlanner {
            products: self.products,
            format: self.dtype(),
            sums: self.at(self.layout.gate),
            workspace: self.at(self.layout.workspace),
        }
    }

    /// Returns embeddings and rotary angles.
    pub fn prologue(&self) -> Result<Vec<Operation>, ShapeError> {
        let spec = self.spec;
        let embed = Embed {
            table: self.global(Tensor::Embedding),
            learned: self.global(Tensor::Positions),
            output: self.at(self.layout.residual),
            tokens: self.inputs.tokens,
            positions: self.inputs.positions,
            width: spec.hidden,
            // OPT's table starts with two unused rows.
            offset: 2,
            scale: 1.0,
            unused: 0,
        };
        let angles = RopeAngles {
            positions: self.inputs.positions,
            frequencies: self.inputs.frequencies,
            angles: self.at(self.layout.angles),
            rows: self.tokens,
            pairs: spec.head_dim / 2,
        };
        let rotates = self.spec.family == Family::Llama;
        let embed = embed.plan(self.dtype(), self.tokens)?;
        Ok(std::iter::once(embed).chain(rotates.then(|| angles.plan())).map(Operation::from).collect())
    }

    /// Returns the final norm, logits and their largest tokens.
    pub fn head(&self) -> Result<Vec<Operation>, ShapeError> {
        let (spec, dtype) = (self.spec, self.dtype());
        if self.rows == 0 {
            return Ok(Vec::new());
        }
        let hidden = self.at(self.layout.last_hidden);
        let norm = Norm {
            input: self.at(self.layout.residual),
            addend: 0,
            weight: self.global(Tensor::FinalNorm),
            bias: self.global(Tensor::FinalNormBias),
            output: hidden,
            rows: self.inputs.logit_rows,
            width: spec.hidden,
            epsilon: spec.norm_eps,
            gain_offset: 0.0,
            unused: 0,
        };
        let matrix = if spec.tied_embeddings { Tensor::Embedding } else { Tensor::Head };
        let Results { logits, tokens, .. } = self.results();
        let product = Gemm {
            input: hidden,
            weights: self.global(matrix),
            output: logits,
            epilogue: Epilogue::default(),
            rows: self.rows,
            columns: spec.vocab,
            k: spec.hidden,
            output_stride: spec.vocab,
        };
        let keys = self.at(self.layout.argmax_keys);
        let [parts, rows] = sampling::argmax(logits, keys, tokens, spec.vocab, self.rows);
        let norm = norm.plan(dtype, dtype, self.rows)?;
        let product = self.products().plan(&product, Dtype::F32)?;
        Ok([vec![norm.into()], product, vec![parts.into(), rows.into()]].concat())
    }

    /// Returns where the step leaves its results.
    pub fn results(&self) -> Results {
        Results {
            logits: self.at(self.layout.logits),
            tokens: self.at(self.layout.argmax_tokens),
            rows: self.rows,
        }
    }
}
