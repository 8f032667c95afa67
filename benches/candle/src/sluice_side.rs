//! Sluice's forward pass in process, over memory laid out as the sidecar would.

use std::fs;
use std::path::Path;

use anyhow::Context;
use safetensors::SafeTensors;
use sluice_kernels::forward::{
    BLOCK_TOKENS, Batch, BlockTable, Model, NoHooks, RangeParts, Ranges, Sequence, StepShape,
};
use sluice_kernels::generate::tensor_name;
use sluice_link::model::ModelSpec;
use sluice_link::slab::{Slab, slab_layout};

const CHUNK_BYTES: u64 = 2 << 20;
/// Longest context of the benchmark.
const LONGEST: usize = 1024;
/// Block tables that are kept.
const SEQUENCES: usize = 8;

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Bytes at a multiple of 64.
struct Bytes(Vec<Line>);

impl Bytes {
    /// Written once, so that no repetition pays for first touches.
    fn zeros(bytes: u64) -> Bytes {
        let mut lines = Bytes(vec![Line([0; 64]); bytes.div_ceil(64) as usize]);
        lines.as_mut_slice().fill(0);
        lines
    }

    fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: lines are plain bytes, borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), self.0.len() * 64) }
    }
}

/// A loaded model, its KV arena and block tables.
pub struct Sluice {
    model: Model,
    ranges: Ranges,
    tables: Vec<Vec<u32>>,
    /// What `ranges` points into.
    _memory: Vec<Bytes>,
}

impl Sluice {
    /// Loads `model.safetensors` of a folder that was generated from `spec`.
    pub fn load(spec: &ModelSpec, folder: &Path, threads: usize) -> anyhow::Result<Sluice> {
        let file = fs::read(folder.join("model.safetensors")).context("model.safetensors")?;
        let tensors = SafeTensors::deserialize(&file)?;
        let model = Model::new(spec.clone(), CHUNK_BYTES, threads)?;
        let layout = slab_layout(spec);
        let layers = usize::from(spec.layers);
        let mut memory = vec![slab(spec, &layout.global, 0, &tensors)?];
        for layer in 0..layers {
            memory.push(slab(spec, &layout.layer, layer, &tensors)?);
        }
        let per_sequence = LONGEST / BLOCK_TOKENS * layers;
        let layer_blocks = (per_sequence * SEQUENCES) as u32;
        memory.push(Bytes::zeros(
            u64::from(layer_blocks).div_ceil(CHUNK_BYTES / spec.layer_block_bytes()) * CHUNK_BYTES,
        ));
        let shape = StepShape {
            tokens: LONGEST as u32,
            sequences: SEQUENCES as u32,
            logit_rows: SEQUENCES as u32,
        };
        let activation_limit_bytes = model.activation_cost().bytes(shape);
        memory.push(Bytes::zeros(activation_limit_bytes));
        let parts = RangeParts {
            global: memory[0].as_mut_slice().as_ptr(),
            layers: memory[1..=layers].iter_mut().map(|layer| layer.as_mut_slice().as_ptr()).collect(),
            kv: memory[layers + 1].as_mut_slice().as_mut_ptr(),
            layer_blocks,
            activations: memory[layers + 2].as_mut_slice().as_mut_ptr(),
            activation_limit_bytes,
        };
        // SAFETY: the memory lives in the same value, has the stated sizes, and no other code accesses it.
        let ranges = unsafe { Ranges::new(parts) };
        let table = |n: usize| (n * per_sequence..(n + 1) * per_sequence).map(|id| id as u32).collect();
        Ok(Sluice { model, ranges, tables: (0..SEQUENCES).map(table).collect(), _memory: memory })
    }

    /// Logits of the last of `tokens`, which begin sequence number `sequence` anew.
    pub fn prefill(&mut self, sequence: usize, tokens: &[u32]) -> anyhow::Result<Vec<f32>> {
        self.step(sequence..sequence + 1, 0, tokens, |logits| logits.to_vec())
    }

    /// Feeds `tokens` one by one to the first sequence from position `context` on; `seen` gets each one's logits.
    pub fn decode(
        &mut self,
        tokens: &[u32],
        context: usize,
        mut seen: impl FnMut(&[f32]),
    ) -> anyhow::Result<()> {
        for (index, token) in tokens.iter().enumerate() {
            self.step(0..1, context + index, &[*token], &mut seen)?;
        }
        Ok(())
    }

    /// As [`Sluice::decode`], in `sequences` sequences at a time.
    pub fn decode_batch(&mut self, tokens: &[u32], context: usize, sequences: usize) -> anyhow::Result<()> {
        for (index, token) in tokens.iter().enumerate() {
            self.step(0..sequences, context + index, &[*token], |_| ())?;
        }
        Ok(())
    }

    /// One step that feeds the same tokens to each of the sequences; `seen` gets the first one's last logits.
    fn step<R>(
        &mut self,
        sequences: std::ops::Range<usize>,
        start: usize,
        tokens: &[u32],
        seen: impl FnOnce(&[f32]) -> R,
    ) -> anyhow::Result<R> {
        let parts: Vec<Sequence<'_>> = self.tables[sequences]
            .iter()
            .map(|table| Sequence {
                start: start as u32,
                tokens,
                layer_blocks: BlockTable::by_layer(table, LONGEST / BLOCK_TOKENS),
                logit_rows: 1,
            })
            .collect();
        let view = self.model.run(&mut self.ranges, &Batch { sequences: &parts }, &mut NoHooks)?;
        Ok(seen(view.row(0)))
    }
}

fn slab(spec: &ModelSpec, slab: &Slab, layer: usize, tensors: &SafeTensors<'_>) -> anyhow::Result<Bytes> {
    let mut bytes = Bytes::zeros(slab.bytes);
    for place in &slab.places {
        let name = tensor_name(spec.family, place.tensor, layer);
        let tensor = tensors.tensor(&name).with_context(|| name.clone())?;
        let start = place.offset_bytes as usize;
        bytes.as_mut_slice()[start..start + place.bytes as usize].copy_from_slice(tensor.data());
    }
    Ok(bytes)
}
