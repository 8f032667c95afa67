//! One chunk's pass through one layer on a GPU: what the model does becomes operations of the device.

use sluice_link::model::Dtype;
use sluice_link::slab::Tensor;

use super::Address;
use super::attention::{Attention, AttentionF32, AttentionMerge, SPLIT, Score};
use super::gemm::{Activation, Epilogue, Gemm, Join};
use super::inputs::ChunkInputs;
use super::memory::KvArena;
use super::norm::Norm;
use super::plan::{LaunchPlan, ShapeError};
use super::product::Operation;
use super::rope::RopeKv;
use super::step_plan::StepPlan;
use crate::forward::layer_ops::{LayerOps, Linear, Value};
use crate::simd::product;

/// A chunk in a layer, and the operations so far.
pub(super) struct CudaPass<'a> {
    step: &'a StepPlan<'a>,
    layer: usize,
    /// First token of the chunk in the step.
    first: u32,
    tokens: u32,
    inputs: ChunkInputs,
    /// Whether queries and keys are rotated when K and V are written, which is one kernel.
    rotates: bool,
    operations: Result<Vec<Operation>, ShapeError>,
}

/// A matrix of the step: its address, its columns and its format. Rows are contiguous.
#[derive(Clone, Copy, Debug)]
struct Matrix {
    at: Address,
    columns: u32,
    dtype: Dtype,
}

impl<'a> CudaPass<'a> {
    pub fn new(step: &'a StepPlan<'a>, layer: usize, inputs: ChunkInputs) -> Self {
        let ChunkInputs { first, tokens, .. } = inputs;
        CudaPass { step, layer, first, tokens, inputs, rotates: false, operations: Ok(Vec::new()) }
    }

    /// Returns the operations, in order.
    ///
    /// # Errors
    /// The first operation that no kernel serves.
    pub fn into_operations(self) -> Result<Vec<Operation>, ShapeError> {
        self.operations
    }

    fn push(&mut self, launch: Result<LaunchPlan, ShapeError>) {
        self.extend(launch.map(|launch| vec![launch.into()]));
    }

    fn extend(&mut self, more: Result<Vec<Operation>, ShapeError>) {
        match (&mut self.operations, more) {
            (Ok(operations), Ok(more)) => operations.extend(more),
            (operations @ Ok(_), Err(error)) => *operations = Err(error),
            (Err(_), _) => {}
        }
    }

    fn weight(&self, wanted: Tensor) -> Address {
        self.step.layer(self.layer, wanted)
    }

    /// Returns the address of an array of the step with `bytes` for each token, from the chunk's first token on.
    fn of_chunk(&self, start: Address, bytes: u64) -> Address {
        start + u64::from(self.first) * bytes
    }

    fn value(&self, value: Value) -> Matrix {
        let (step, layout, spec) = (self.step, &self.step.layout, self.step.spec);
        let matrix = |offset, columns, dtype| Matrix { at: step.at(offset), columns, dtype };
        let (queries, kv) = (spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim);
        match value {
            Value::Residual => {
                let whole = matrix(layout.residual, spec.hidden, Dtype::F32);
                Matrix { at: self.of_chunk(whole.at, u64::from(spec.hidden) * 4), ..whole }
            }
            Value::Normed => matrix(layout.normed, spec.hidden, spec.dtype),
            Value::Queries => matrix(layout.queries, queries, Dtype::F32),
            Value::Keys => matrix(layout.keys, kv, Dtype::F32),
            Value::Values => matrix(layout.values, kv, Dtype::F32),
            Value::AttentionOutput => matrix(layout.attention_output, queries, spec.dtype),
            Value::FfnHidden => matrix(layout.ffn_hidden, spec.intermediate, spec.dtype),
        }
    }

    fn product(&mut self, input: Value, weights: Tensor, output: Matrix, epilogue: Epilogue) {
        let input = self.value(input);
        let gemm = Gemm {
            input: input.at,
            weights: self.weight(weights),
            output: output.at,
            epilogue,
            rows: self.tokens,
            columns: output.columns,
            k: input.columns,
            output_stride: output.columns,
        };
        self.extend(self.step.products().plan(&gemm, output.dtype));
    }

    /// Returns the epilogue of a product into `output`.
    fn epilogue(&self, linear: &Linear, output: Matrix) -> Epilogue {
        let plain = |activation| Epilogue::new(self.weight(linear.bias), activation);
        match linear.epilogue {
            product::Epilogue::Store => plain(Activation::None),
            product::Epilogue::Silu => plain(Activation::Silu),
            product::Epilogue::Relu => plain(Activation::Relu),
            product::Epilogue::Add => {
                assert_eq!(output.dtype, Dtype::F32, "a product adds to the residual stream alone");
                plain(Activation::None).join(Join::Add, output.at, output.columns)
            }
            product::Epilogue::Multiply => panic!("only the second product of a gated MLP multiplies"),
        }
    }

    fn arena(&self) -> KvArena {
        let block_bytes = u32::try_from(self.step.spec.layer_block_bytes());
        let block_bytes = block_bytes.expect("a layer-block has less than 4 GiB");
        KvArena::new(self.step.ranges.kv, self.step.chunk_bytes, block_bytes)
    }

    /// Returns the block table of the layer.
    fn table(&self) -> Address {
        let inputs = &self.step.inputs;
        let ids = u64::from(inputs.sequences) * u64::from(inputs.columns);
        inputs.tables + self.layer as u64 * ids * 4
    }

    fn score(&self) -> Score {
        Score::new(1.0 / (self.step.spec.head_dim as f32).sqrt(), None)
    }

    fn attend_f32(&self) -> Result<LaunchPlan, ShapeError> {
        let (step, spec, score) = (self.step, self.step.spec, self.score());
        let attention = AttentionF32 {
            arena: self.arena(),
            queries: step.at(step.layout.rotated),
            output: step.at(step.layout.attention_output),
            positions: self.of_chunk(step.inputs.positions, 4),
            table_rows: self.of_chunk(step.inputs.table_rows, 4),
            table: self.table(),
            columns: step.inputs.columns,
            tokens: self.tokens,
            heads: spec.heads,
            kv_heads: spec.kv_heads,
            dim: spec.head_dim,
            window: 0,
            score_scale: score.scale,
            score_cap: score.cap,
        };
        attention.plan()
    }

    fn attend_on_tensor_cores(&self) -> Result<LaunchPlan, ShapeError> {
        let (step, spec, score) = (self.step, self.step.spec, self.score());
        let attention = Attention {
            arena: self.arena(),
            queries: step.at(step.layout.rotated),
            output: step.at(step.layout.attention_output),
            partial: step.at(step.layout.partial),
            partial_weights: step.at(step.layout.partial_weights),
            table: self.table(),
            sequences: self.inputs.sequences,
            items: self.inputs.items,
            columns: step.inputs.columns,
            heads: spec.heads,
            kv_heads: spec.kv_heads,
            dim: spec.head_dim,
            partial_tokens: self.inputs.merge_count,
            split: SPLIT,
            window: 0,
            score_scale: score.scale,
            score_cap: score.cap,
            unused: 0,
        };
        attention.plan(spec.dtype, self.inputs.item_count)
    }

    fn merge(&self) -> Result<LaunchPlan, ShapeError> {
        let (step, spec) = (self.step, self.step.spec);
        let merge = AttentionMerge {
            partial: step.at(step.layout.partial),
            partial_weights: step.at(step.layout.partial_weights),
            output: step.at(step.layout.attention_output),
            tokens: self.inputs.merge_tokens,
            count: self.inputs.merge_count,
            heads: spec.heads,
            dim: spec.head_dim,
            split: SPLIT,
            window: 0,
            unused: 0,
        };
        merge.plan(spec.dtype)
    }
}

impl LayerOps for CudaPass<'_> {
    fn norm(&mut self, weight: Tensor, bias: Tensor) {
        let spec = self.step.spec;
        let norm = Norm {
            input: self.value(Value::Residual).at,
            addend: 0,
            weight: self.weight(weight),
            bias: self.weight(bias),
            output: self.value(Value::Normed).at,
            rows: 0,
            width: spec.hidden,
            epsilon: spec.norm_eps,
            gain_offset: 0.0,
            unused: 0,
        };
        self.push(norm.plan(spec.dtype, spec.dtype, self.tokens));
    }

    fn multiply(&mut self, input: Value, linears: &[Linear]) {
        for linear in linears {
            let output = self.value(linear.output);
            self.product(input, linear.matrix, output, self.epilogue(linear, output));
        }
    }

    /// The first product leaves f32, which the gate reads once and multiplies.
    fn multiply_gated(&mut self, input: Value, gate: &Linear, up: &Linear) {
        let output = self.value(up.output);
        let factor = Matrix { at: self.step.at(self.step.layout.up), dtype: Dtype::F32, ..output };
        let bias = Epilogue::new(self.weight(up.bias), Activation::None);
        self.product(input, up.matrix, factor, bias);
        let gated = self.epilogue(gate, output).join(Join::Multiply, factor.at, factor.columns);
        self.product(input, gate.matrix, output, gated);
    }

    fn rotate(&mut self) {
        self.rotates = true;
    }

    fn write_kv(&mut self) {
        let (step, spec) = (self.step, self.step.spec);
        let [queries, keys, values] =
            [Value::Queries, Value::Keys, Value::Values].map(|value| self.value(value));
        let angles = self.of_chunk(step.at(step.layout.angles), u64::from(spec.head_dim) * 4);
        let launch = RopeKv {
            arena: self.arena(),
            queries: queries.at,
            keys: keys.at,
            values: values.at,
            output: step.at(step.layout.rotated),
            angles: if self.rotates { angles } else { 0 },
            positions: self.of_chunk(step.inputs.positions, 4),
            table_rows: self.of_chunk(step.inputs.table_rows, 4),
            table: self.table(),
            stopped: step.inputs.stopped,
            columns: step.inputs.columns,
            rows: self.tokens,
            heads: spec.heads,
            kv_heads: spec.kv_heads,
            dim: spec.head_dim,
            rotary: if self.rotates { spec.head_dim } else { 0 },
            query_stride: queries.columns,
            key_stride: keys.columns,
            value_stride: values.columns,
            unused: 0,
        };
        self.push(launch.plan(spec.dtype));
    }

    fn attend(&mut self) {
        if self.step.dtype() == Dtype::F32 {
            return self.push(self.attend_f32());
        }
        self.push(self.attend_on_tensor_cores());
        if self.inputs.merge_count > 0 {
            self.push(self.merge());
        }
    }
}
