//! A minimal sidecar memory: aligned slabs, a poisoned KV arena and a poisoned activation arena.

use half::{bf16, f16};
use sluice_kernels::forward::{
    BLOCK_TOKENS, Batch, BlockTable, ForwardError, Model, NoHooks, RangeParts, Ranges, Sequence, StepShape,
};
use sluice_link::model::{Dtype, ModelSpec};

use crate::checkpoint::Checkpoint;

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Bytes aligned to 64.
pub struct Bytes(Vec<Line>);

impl Bytes {
    /// Allocates bytes of all ones: NaN in every dtype, and not a valid index.
    pub fn poisoned(bytes: usize) -> Bytes {
        Bytes(vec![Line([0xff; 64]); bytes.div_ceil(64)])
    }

    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: the lines are plain bytes, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), self.0.len() * 64) }
    }

    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the lines are plain bytes, and `self` is borrowed.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), self.0.len() * 64) }
    }

    fn base(&mut self) -> *mut u8 {
        self.0.as_mut_ptr().cast()
    }
}

/// Slabs and arenas of one model.
pub struct Memory {
    pub spec: ModelSpec,
    pub global: Bytes,
    pub layers: Vec<Bytes>,
    pub kv: Bytes,
    pub chunk_bytes: u64,
    pub layer_blocks: u32,
}

/// One sequence's part of a step, with its blocks as `[layers][kv_blocks]`.
#[derive(Clone)]
pub struct TestSequence<'a> {
    pub start: usize,
    pub tokens: &'a [u32],
    pub layer_blocks: &'a [u32],
    pub kv_blocks: usize,
    pub rows: usize,
}

impl<'a> TestSequence<'a> {
    /// Returns the sequence for a forward pass.
    pub fn sequence(&self) -> Sequence<'a> {
        Sequence {
            start: self.start as u32,
            tokens: self.tokens,
            layer_blocks: BlockTable::by_layer(self.layer_blocks, self.kv_blocks),
            logit_rows: self.rows,
        }
    }
}

impl Memory {
    /// Creates a KV arena of at least `layer_blocks` poisoned blocks; the chunks have unused space after their last
    /// block.
    pub fn new(spec: &ModelSpec, checkpoint: &Checkpoint, layer_blocks: u32) -> Memory {
        let layer_block_bytes = spec.layer_block_bytes();
        let chunk_bytes = (3 * layer_block_bytes + 64).next_multiple_of(4096);
        let per_chunk = chunk_bytes / layer_block_bytes;
        let chunks = u64::from(layer_blocks).div_ceil(per_chunk);
        Memory {
            spec: spec.clone(),
            global: checkpoint.global_slab(spec),
            layers: (0..usize::from(spec.layers)).map(|layer| checkpoint.layer_slab(spec, layer)).collect(),
            kv: Bytes::poisoned((chunks * chunk_bytes) as usize),
            chunk_bytes,
            layer_blocks,
        }
    }

    pub fn model(&self, threads: usize) -> Model {
        Model::new(self.spec.clone(), self.chunk_bytes, threads).unwrap()
    }

    /// Runs a step in a poisoned activation arena of exactly the stated cost and returns the rows of logits in order.
    pub fn run(&mut self, model: &Model, parts: &[TestSequence<'_>]) -> Result<Vec<Vec<f32>>, ForwardError> {
        let shape = StepShape {
            tokens: parts.iter().map(|part| part.tokens.len() as u32).sum(),
            sequences: parts.len() as u32,
            logit_rows: parts.iter().map(|part| part.rows as u32).sum(),
        };
        let cost = model.activation_cost().bytes(shape);
        self.run_within(model, parts, cost)
    }

    /// Like [`Memory::run`], with `limit_bytes` of activations; checks that nothing beyond them changes.
    pub fn run_within(
        &mut self,
        model: &Model,
        parts: &[TestSequence<'_>],
        limit_bytes: u64,
    ) -> Result<Vec<Vec<f32>>, ForwardError> {
        let mut activations = Bytes::poisoned(limit_bytes as usize + 4096);
        let sequences: Vec<Sequence<'_>> = parts.iter().map(TestSequence::sequence).collect();
        // SAFETY: slabs, arena and activations have the stated sizes and exist until the end of this function.
        let mut ranges = unsafe {
            Ranges::new(RangeParts {
                global: self.global.base(),
                layers: self.layers.iter_mut().map(|layer| layer.base().cast_const()).collect(),
                kv: self.kv.base(),
                layer_blocks: self.layer_blocks,
                activations: activations.base(),
                activation_limit_bytes: limit_bytes,
            })
        };
        let rows = model
            .run(&mut ranges, &Batch { sequences: &sequences }, &mut NoHooks)
            .map(|view| (0..view.rows()).map(|row| view.row(row).to_vec()).collect());
        let untouched = if rows.is_ok() { limit_bytes as usize } else { 0 };
        let beyond = &activations.as_slice()[untouched..];
        assert!(
            beyond.iter().all(|byte| *byte == 0xff),
            "activations touched beyond the limit or after a refusal"
        );
        rows
    }

    /// Returns the bits of K and V at `place` in block `id`: each head's K, then each head's V.
    pub fn kv_bits(&self, id: u32, place: usize) -> Vec<u32> {
        let (heads, dim) = (self.spec.kv_heads as usize, self.spec.head_dim as usize);
        let key = |head: usize, d: usize| (head * dim + d) * BLOCK_TOKENS + place;
        let value = |head: usize, d: usize| ((heads + head) * BLOCK_TOKENS + place) * dim + d;
        let all = |at: &dyn Fn(usize, usize) -> usize| -> Vec<u32> {
            (0..heads * dim).map(|n| self.element(id, at(n / dim, n % dim))).collect()
        };
        [all(&key), all(&value)].concat()
    }

    fn element(&self, id: u32, index: usize) -> u32 {
        let per_chunk = self.chunk_bytes / self.spec.layer_block_bytes();
        let (chunk, within) = (u64::from(id) / per_chunk, u64::from(id) % per_chunk);
        let start = (chunk * self.chunk_bytes + within * self.spec.layer_block_bytes()) as usize;
        let bytes = self.spec.dtype.bytes();
        let at = &self.kv.as_slice()[start + index * bytes..][..bytes];
        if bytes == 4 {
            u32::from_le_bytes([at[0], at[1], at[2], at[3]])
        } else {
            u32::from(u16::from_le_bytes([at[0], at[1]]))
        }
    }
}

/// Rounds like the KV cache.
pub fn rounded(dtype: Dtype, value: f64) -> f64 {
    match dtype {
        Dtype::F32 => f64::from(value as f32),
        Dtype::F16 => f16::from_f32(value as f32).to_f64(),
        Dtype::Bf16 => bf16::from_f32(value as f32).to_f64(),
    }
}
