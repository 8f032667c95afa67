//! Measures whole steps on a random Llama with the shape of SmolLM2-135M: prefill and decode tokens per second, and the
//! duration of steps that mix a prefill chunk with decodes.
//!
//! `cargo run --release -p sluice-kernels --example forward_speed [threads] [f32|f16|bf16]`

use std::time::Instant;

use sluice_kernels::forward::{Batch, BlockTable, Model, NoHooks, RangeParts, Ranges, Sequence, StepShape};
use sluice_link::model::{Dtype, Family, ModelSpec, RopeScaling};
use sluice_link::slab::slab_layout;

const CHUNK_BYTES: u64 = 2 << 20;
const MAX_TOKENS: u32 = 2048;
/// 16 decodes and one prompt.
const MAX_SEQUENCES: usize = 17;

fn smollm2_135m(dtype: Dtype) -> ModelSpec {
    ModelSpec {
        family: Family::Llama,
        dtype,
        vocab: 49_152,
        hidden: 576,
        intermediate: 1536,
        layers: 30,
        heads: 9,
        kv_heads: 3,
        head_dim: 64,
        max_positions: MAX_TOKENS,
        norm_eps: 1e-5,
        rope_theta: 10_000.0,
        rope_scaling: RopeScaling::None,
        tied_embeddings: true,
        attention_bias: false,
        mlp_bias: false,
    }
}

/// Allocates `bytes` bytes, aligned to 64, and fills them with small numbers of the dtype.
fn numbers(dtype: Dtype, bytes: u64) -> *mut u8 {
    let value = |n: u64| (n * 2_654_435_761 % 1024) as f32 / 16_384.0 - 0.03;
    let count = bytes / dtype.bytes() as u64;
    let data: Vec<u8> = match dtype {
        Dtype::F32 => (0..count).flat_map(|n| value(n).to_le_bytes()).collect(),
        Dtype::F16 => (0..count).flat_map(|n| half::f16::from_f32(value(n)).to_le_bytes()).collect(),
        Dtype::Bf16 => (0..count).flat_map(|n| half::bf16::from_f32(value(n)).to_le_bytes()).collect(),
    };
    let base = zeros(bytes);
    // SAFETY: `zeros` allocated `bytes` bytes, and `data` is not longer.
    unsafe { base.copy_from_nonoverlapping(data.as_ptr(), data.len()) };
    base
}

/// Allocates zeroed bytes, aligned to 64. They are leaked on purpose: the example ends with the process.
fn zeros(bytes: u64) -> *mut u8 {
    let memory = Box::leak(vec![0_u8; bytes as usize + 64].into_boxed_slice());
    let offset = memory.as_ptr().align_offset(64);
    memory[offset..].as_mut_ptr()
}

struct Bench {
    model: Model,
    ranges: Ranges,
    tables: Vec<Vec<u32>>,
}

impl Bench {
    fn new(spec: &ModelSpec, threads: usize) -> Bench {
        let model = Model::new(spec.clone(), CHUNK_BYTES, threads).expect("the shape is sound");
        let (layout, layers) = (slab_layout(spec), u32::from(spec.layers));
        let per_sequence = MAX_TOKENS / 16 * layers;
        let layer_blocks = per_sequence * MAX_SEQUENCES as u32;
        let per_chunk = CHUNK_BYTES / spec.layer_block_bytes();
        let shape = StepShape { tokens: MAX_TOKENS, sequences: 1, logit_rows: MAX_SEQUENCES as u32 };
        let activation_limit_bytes = model.activation_cost().bytes(shape);
        let parts = RangeParts {
            global: numbers(spec.dtype, layout.global.bytes),
            layers: (0..layers).map(|_| numbers(spec.dtype, layout.layer.bytes).cast_const()).collect(),
            kv: zeros(u64::from(layer_blocks).div_ceil(per_chunk) * CHUNK_BYTES),
            layer_blocks,
            activations: zeros(activation_limit_bytes),
            activation_limit_bytes,
        };
        // SAFETY: the memory is leaked, so it stays valid, and only this thread runs steps.
        let ranges = unsafe { Ranges::new(parts) };
        let table = |s: u32| (s * per_sequence..(s + 1) * per_sequence).collect();
        Bench { model, ranges, tables: (0..MAX_SEQUENCES as u32).map(table).collect() }
    }

    /// Runs one step and returns its duration in seconds: `sequences` decodes at position `start` and, if `prompt` is
    /// not 0, the first `prompt` tokens of one more sequence.
    fn step_s(&mut self, sequences: usize, start: u32, prompt: usize) -> f64 {
        let vocab = self.model.spec().vocab;
        let ids: Vec<u32> = (0..prompt.max(1) as u32).map(|n| n * 37 % vocab).collect();
        let kv_blocks = MAX_TOKENS as usize / 16;
        let sequence = |table, start, tokens: usize| Sequence {
            start,
            tokens: &ids[..tokens],
            layer_blocks: BlockTable::by_layer(table, kv_blocks),
            logit_rows: 1,
        };
        let (prompts, decodes) = self.tables.split_at(usize::from(prompt > 0));
        let prompts = prompts.iter().map(|table| sequence(table, 0, prompt));
        let decodes = decodes[..sequences].iter().map(|table| sequence(table, start, 1));
        let parts: Vec<Sequence<'_>> = prompts.chain(decodes).collect();
        let started = Instant::now();
        self.model
            .run(&mut self.ranges, &Batch { sequences: &parts }, &mut NoHooks)
            .expect("the step is sound");
        started.elapsed().as_secs_f64()
    }

    fn best_s(&mut self, runs: usize, sequences: usize, start: u32, prompt: usize) -> f64 {
        (0..runs).map(|_| self.step_s(sequences, start, prompt)).fold(f64::MAX, f64::min)
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let threads = arguments.next().and_then(|t| t.parse().ok()).unwrap_or(2);
    let dtype = match arguments.next().as_deref() {
        Some("f16") => Dtype::F16,
        Some("bf16") => Dtype::Bf16,
        _ => Dtype::F32,
    };
    let mut bench = Bench::new(&smollm2_135m(dtype), threads);
    println!("{dtype:?}, {threads} threads, best of several steps");
    for prompt in [64, 256, 512, 1024] {
        let prefill = prompt as f64 / bench.best_s(3, 0, 0, prompt);
        let decode = 1.0 / bench.best_s(16, 1, prompt as u32, 0);
        println!("prompt {prompt:5}: prefill {prefill:8.1} tokens/s, decode {decode:7.1} tokens/s");
    }
    for sequences in [2, 4, 8, 16] {
        let tokens = sequences as f64 / bench.best_s(8, sequences, 256, 0);
        println!("decode of {sequences:2} sequences at 256: {tokens:8.1} tokens/s");
    }
    for prompt in [0, 16, 32, 48, 64, 128] {
        let step_ms = 1e3 * bench.best_s(12, 8, 160, prompt);
        println!("8 decodes at 160 and {prompt:3} tokens of a prompt: {step_ms:6.2} ms");
    }
}
