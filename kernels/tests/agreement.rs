//! The engine agrees with the reference for both families, all dtypes and every option of the shape.

use sluice_kernels::forward::Model;
use sluice_kernels::generate::RandomModel;
use sluice_kernels::simd::Isa;
use sluice_link::model::{Dtype, Family, ModelSpec, RopeScaling};

use crate::checkpoint::Checkpoint;
use crate::memory::{Memory, TestSequence};
use crate::reference::{Reference, Rounding};
use crate::specs::{DTYPES, LLAMA3_SCALING, llama, opt};

const TOKENS: usize = 75;

pub fn checkpoint(spec: &ModelSpec) -> Checkpoint {
    let folder = tempfile::tempdir().unwrap();
    RandomModel { spec: spec.clone(), seed: 5, shards: 2 }.write(folder.path()).unwrap();
    Checkpoint::read(folder.path())
}

pub fn tokens(count: usize, seed: u64, spec: &ModelSpec) -> Vec<u32> {
    let unit = |n: usize| sluice_kernels::sampling::unit_interval(seed, n as u64);
    (0..count).map(|n| (unit(n) * f64::from(spec.vocab)) as u32).collect()
}

/// Returns the largest difference of a logit, relative to the spread of the logits.
pub fn error(found: &[Vec<f32>], expected: &[Vec<f64>]) -> f64 {
    let spread = |row: &[f64]| (row.iter().map(|x| x * x).sum::<f64>() / row.len() as f64).sqrt();
    let rows = found.iter().zip(expected).map(|(found, expected)| {
        let worst = found.iter().zip(expected).map(|(f, e)| (f64::from(*f) - e).abs());
        worst.fold(0.0, |a, b| if b > a || b.is_nan() { b } else { a }) / spread(expected)
    });
    rows.fold(0.0, |a, b| if b > a || b.is_nan() { b } else { a })
}

fn assert_agrees(spec: &ModelSpec) {
    for isa in Isa::available() {
        assert_agrees_on(spec, isa);
    }
}

fn assert_agrees_on(spec: &ModelSpec, isa: Isa) {
    let checkpoint = checkpoint(spec);
    let tokens = tokens(TOKENS, 1, spec);
    let kv_blocks = TOKENS.div_ceil(16);
    let layer_blocks: Vec<u32> = (0..(kv_blocks * usize::from(spec.layers)) as u32).collect();
    let mut memory = Memory::new(spec, &checkpoint, layer_blocks.len() as u32);
    let model = Model::with_isa(spec.clone(), memory.chunk_bytes, 2, isa).unwrap();
    let part =
        TestSequence { start: 0, tokens: &tokens, layer_blocks: &layer_blocks, kv_blocks, rows: TOKENS };
    let found = memory.run(&model, &[part]).unwrap();
    let expected = Reference { spec, checkpoint: &checkpoint, device: Rounding::Cpu }.logits(&tokens);
    // In half precision, a K or V between two cache values may be rounded to the other one.
    let tolerance = match spec.dtype {
        Dtype::F32 => 1e-4,
        Dtype::F16 => 1e-2,
        Dtype::Bf16 => 5e-2,
    };
    let error = error(&found, &expected);
    assert!(error < tolerance, "{isa:?}: error {error:e} of the logits' spread in {spec:?}");
}

#[test]
fn llama_agrees_in_every_dtype() {
    DTYPES.into_iter().for_each(|dtype| assert_agrees(&llama(dtype)));
}

#[test]
fn opt_agrees_in_every_dtype() {
    DTYPES.into_iter().for_each(|dtype| assert_agrees(&opt(dtype)));
}

#[test]
fn tied_embeddings_biases_and_head_counts_agree() {
    let base = llama(Dtype::F32);
    assert_agrees(&ModelSpec { tied_embeddings: true, ..base.clone() });
    assert_agrees(&ModelSpec { attention_bias: true, mlp_bias: true, ..base.clone() });
    assert_agrees(&ModelSpec { kv_heads: 6, ..base.clone() });
    assert_agrees(&ModelSpec { kv_heads: 1, ..base.clone() });
    assert_agrees(&ModelSpec { heads: 34, kv_heads: 1, head_dim: 2, ..base.clone() });
    assert_agrees(&ModelSpec { head_dim: 64, hidden: 256, intermediate: 272, ..base });
    assert_agrees(&ModelSpec { family: Family::Opt, tied_embeddings: false, ..opt(Dtype::F32) });
}

#[test]
fn scaled_rotary_positions_agree() {
    let linear = RopeScaling::Linear { factor: 4.0 };
    for (rope_scaling, rope_theta) in [(linear, 10_000.0), (LLAMA3_SCALING, 10_000.0), (LLAMA3_SCALING, 5e5)]
    {
        assert_agrees(&ModelSpec { rope_scaling, rope_theta, ..llama(Dtype::F32) });
    }
}

/// Tests the comparison: a reference without the tested option must differ.
#[test]
fn reference_without_rope_scaling_differs() {
    let scaled = ModelSpec { rope_scaling: LLAMA3_SCALING, ..llama(Dtype::F32) };
    let checkpoint = checkpoint(&scaled);
    let tokens = tokens(40, 1, &scaled);
    let expected =
        Reference { spec: &scaled, checkpoint: &checkpoint, device: Rounding::Cpu }.logits(&tokens);
    let plain = Reference { spec: &llama(Dtype::F32), checkpoint: &checkpoint, device: Rounding::Cpu }
        .logits(&tokens);
    let plain: Vec<Vec<f32>> =
        plain.into_iter().map(|row| row.into_iter().map(|x| x as f32).collect()).collect();
    assert!(error(&plain, &expected) > 1e-2);
}
