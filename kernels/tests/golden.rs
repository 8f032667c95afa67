//! A real small model generates its known tokens.

use std::io::Write;
use std::path::PathBuf;

use sluice_link::model::{Dtype, ModelSpec};

use crate::checkpoint::Checkpoint;
use crate::memory::{Memory, TestSequence};
use crate::specs::llama;

fn folder() -> PathBuf {
    let fallback = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared");
    let shared = std::env::var_os("SLUICE_SHARED").unwrap_or_else(|| fallback.into());
    PathBuf::from(shared).join("models/stories260k")
}

fn spec() -> ModelSpec {
    ModelSpec {
        vocab: 512,
        hidden: 64,
        intermediate: 172,
        layers: 5,
        heads: 8,
        kv_heads: 4,
        head_dim: 8,
        max_positions: 512,
        tied_embeddings: true,
        ..llama(Dtype::F32)
    }
}

fn largest(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (id, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = id;
        }
    }
    best as u32
}

fn ids(value: &serde_json::Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

/// A small model and what it generates.
pub struct Golden {
    pub spec: ModelSpec,
    pub checkpoint: Checkpoint,
    pub cases: Vec<Case>,
}

/// A prompt, and its greedy tokens by an independent implementation.
pub struct Case {
    pub prompt: Vec<u32>,
    pub tokens: Vec<u32>,
}

/// Reads the model; says that `test` is skipped if it is absent.
pub fn stories260k(test: &str) -> Option<Golden> {
    let folder = folder();
    let Ok(text) = std::fs::read_to_string(folder.join("golden.json")) else {
        // Not with `eprintln!`: the test harness would capture it.
        let what = folder.display();
        let mut stderr = std::io::stderr();
        writeln!(stderr, "SKIPPED {test}: {what} is absent; set SLUICE_SHARED").unwrap();
        return None;
    };
    let cases: serde_json::Value = serde_json::from_str(&text).unwrap();
    let case = |case: &serde_json::Value| Case {
        prompt: ids(&case["prompt_ids"]),
        tokens: ids(&case["greedy_ids"]),
    };
    let cases = cases.as_array().unwrap().iter().map(case).collect();
    Some(Golden { spec: spec(), checkpoint: Checkpoint::read(&folder), cases })
}

#[test]
fn stories260k_generates_golden_tokens() {
    let Some(golden) = stories260k("stories260k_generates_golden_tokens") else { return };
    for case in &golden.cases {
        let found = greedy(&golden.checkpoint, &case.prompt, case.tokens.len());
        assert_eq!(found, case.tokens, "prompt {:?}", case.prompt);
    }
}

fn greedy(checkpoint: &Checkpoint, prompt: &[u32], count: usize) -> Vec<u32> {
    let spec = spec();
    let kv_blocks = (prompt.len() + count).div_ceil(16);
    let layer_blocks: Vec<u32> = (0..(kv_blocks * usize::from(spec.layers)) as u32).rev().collect();
    let mut memory = Memory::new(&spec, checkpoint, layer_blocks.len() as u32);
    let model = memory.model(2);
    let mut tokens = prompt.to_vec();
    let mut start = 0;
    while tokens.len() < prompt.len() + count {
        let part =
            TestSequence { start, tokens: &tokens[start..], layer_blocks: &layer_blocks, kv_blocks, rows: 1 };
        let rows = memory.run(&model, &[part]).unwrap();
        start = tokens.len();
        tokens.push(largest(&rows[0]));
    }
    tokens.split_off(prompt.len())
}
