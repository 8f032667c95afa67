//! SmolLM2-135M-Instruct in bf16, teacher-forced on its golden answers: the kernels against the CPU engine, which keeps
//! f32 where the kernels round to bf16.
//!
//! **Tolerance**, stated before any result. Rounding to bf16 is off by at most u = 2^-8 of a number, and by 0.42 u in
//! the mean square (the error is uniform within half a unit, the significand log-uniform). Attention rounds its input,
//! queries and keys, weights and output one after another, the MLP its input and its inner values: about four
//! independent errors, so a layer's half is off by 2 * 0.42 u of its own size. At most, all 2 L halves are as large as
//! the residual stream: sigma = 0.84 u sqrt(2 L) of it, and of the logits, which are one more product. The largest of
//! 49,152 normal errors is below 5 sigma in all but a few of 100 rows: that is the tolerance of a row, times the root
//! mean square of its logits.
//!
//! A token may differ only where the reference's two largest logits are within twice the tolerance. Such rows are
//! counted. The answers to questions are prose, whose next word is often open: 31 of their 72 rows are such. So a fourth
//! answer is judged that counts, where the next token is certain: at most 5 % of its rows may be such, and the tokens
//! of all others are compared.

use std::io::Write;
use std::path::{Path, PathBuf};

use sluice_kernels::cuda::Products;
use sluice_link::model::{Dtype, ModelSpec};

use super::forward::Tenant;
use crate::checkpoint::Checkpoint;
use crate::memory::{Memory, TestSequence};
use crate::specs::llama;

/// Names the folder that `scripts/fetch-smollm2.py` has written; without it, `.cache/models/smollm2`.
const FOLDER_VAR: &str = "SLUICE_SMOLLM2";

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

fn folder() -> PathBuf {
    std::env::var_os(FOLDER_VAR).map_or_else(|| root().join(".cache/models/smollm2"), PathBuf::from)
}

fn spec() -> ModelSpec {
    ModelSpec {
        vocab: 49_152,
        hidden: 576,
        intermediate: 1536,
        layers: 30,
        heads: 9,
        kv_heads: 3,
        head_dim: 64,
        max_positions: 256,
        rope_theta: 100_000.0,
        tied_embeddings: true,
        ..llama(Dtype::Bf16)
    }
}

/// A prompt and its greedy answer by an independent forward pass in f32.
#[derive(serde::Deserialize)]
struct Answer {
    prompt_ids: Vec<u32>,
    greedy_ids: Vec<u32>,
}

/// The file of answers.
#[derive(serde::Deserialize)]
struct Golden {
    prompts: Vec<Answer>,
    /// An answer whose tokens are certain.
    counting: Answer,
}

fn golden() -> Golden {
    let text = std::fs::read_to_string(root().join("scripts/smollm2-golden.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// How rows of logits compare with those of the reference.
#[derive(Debug, Default)]
struct Verdict {
    rows: usize,
    /// Rows whose two largest logits are within twice the tolerance.
    excluded: usize,
    /// Excluded rows with another token.
    other_tokens: usize,
    /// The largest error, in tolerances.
    worst: f64,
    /// What is wrong.
    faults: Vec<String>,
}

impl Verdict {
    fn add(&mut self, found: &[f32], expected: &[f32], layers: u16) {
        let square = expected.iter().map(|logit| f64::from(*logit).powi(2)).sum::<f64>();
        let sigma = 0.84 / 256.0 * (2.0 * f64::from(layers)).sqrt();
        let tolerance = 5.0 * sigma * (square / expected.len() as f64).sqrt();
        let errors = found.iter().zip(expected).map(|(f, e)| f64::from((f - e).abs()) / tolerance);
        let worst = errors.fold(0.0, |a, b| if b > a || b.is_nan() { b } else { a });
        let (token, gap) = leading(expected);
        let is_same = leading(found).0 == token;
        let is_sure = f64::from(gap) > 2.0 * tolerance;
        let row = self.rows;
        if worst.is_nan() || worst > 1.0 {
            self.faults.push(format!("row {row}: an error of {worst:.2} tolerances"));
        }
        if is_sure && !is_same {
            self.faults.push(format!("row {row}: another token, though the reference leads by {gap}"));
        }
        self.rows += 1;
        self.excluded += usize::from(!is_sure);
        self.other_tokens += usize::from(!is_sure && !is_same);
        self.worst = if self.worst > worst { self.worst } else { worst };
    }
}

/// Returns the first largest logit's token, and its lead.
fn leading(logits: &[f32]) -> (usize, f32) {
    let (mut best, mut second) = (0, f32::NEG_INFINITY);
    for (token, logit) in logits.iter().enumerate().skip(1) {
        if *logit > logits[best] {
            (best, second) = (token, logits[best]);
        } else if *logit > second {
            second = *logit;
        }
    }
    (best, logits[best] - second)
}

/// Compares the logits of every token of `answers`.
fn compare(products: Products, answers: &[Answer]) -> Verdict {
    let (spec, checkpoint) = (spec(), Checkpoint::read(&folder()));
    let mut verdict = Verdict::default();
    for Answer { prompt_ids, greedy_ids } in answers {
        let tokens: Vec<u32> =
            prompt_ids.iter().chain(&greedy_ids[..greedy_ids.len() - 1]).copied().collect();
        let kv_blocks = tokens.len().div_ceil(16);
        let layer_blocks: Vec<u32> = (0..(kv_blocks * usize::from(spec.layers)) as u32).collect();
        let rows = greedy_ids.len();
        let part =
            || TestSequence { start: 0, tokens: &tokens, layer_blocks: &layer_blocks, kv_blocks, rows };
        let mut memory = Memory::new(&spec, &checkpoint, layer_blocks.len() as u32);
        let model = memory.model(2);
        let expected = memory.run(&model, &[part()]).unwrap();
        let tenant = Tenant::new(&spec, &checkpoint, layer_blocks.len() as u32, u32::MAX);
        let (found, _) = tenant.with_products(products).run(&[part()]);
        found.iter().zip(&expected).for_each(|(found, expected)| verdict.add(found, expected, spec.layers));
    }
    verdict
}

/// Runs a case of `by_driver` where the model is at hand, and says so where it is not.
fn start(name: &str) {
    if !folder().join("model.safetensors").is_file() {
        // Not with `eprintln!`: the test harness would capture it.
        let what = folder().display().to_string();
        let skipped = format!("SKIPPED {name}: {what} is absent; scripts/fetch-smollm2.py writes it");
        let mut stderr = std::io::stderr();
        return writeln!(stderr, "{skipped}").unwrap();
    }
    let name = format!("cuda::smollm2::by_driver::{name}");
    let stdout =
        super::by_driver(&[&name, "--exact", "--ignored", "--nocapture"], |library| library.with_cublas(12));
    assert!(stdout.contains(" 1 passed"), "{stdout}");
    stdout.lines().filter(|line| line.starts_with("Verdict")).for_each(|verdict| println!("{verdict}"));
}

#[test]
fn smollm2_answers_a_question_as_the_cpu_does() {
    start("one_answer_with_cublaslt");
}

#[test]
#[ignore = "cargo xtask nightly: minutes, in which every product is interpreted"]
fn smollm2_answers_all_questions_as_the_cpu_does_by_every_kernel() {
    start("all_answers_with_cublaslt");
    start("all_answers_by_our_kernels");
}

#[test]
fn an_error_beyond_the_tolerance_and_another_token_are_found() {
    let expected: Vec<f32> =
        (0..1000).map(|token| if token == 7 { 30.0 } else { token as f32 % 10.0 }).collect();
    let verdict = |change: fn(&mut Vec<f32>)| {
        let mut found = expected.clone();
        change(&mut found);
        let mut verdict = Verdict::default();
        verdict.add(&found, &expected, 30);
        verdict
    };
    // The root mean square is 5.4, so the tolerance is 0.69.
    assert_eq!(verdict(|found| found[3] += 0.6).faults.len(), 0);
    assert_eq!(verdict(|found| found[3] += 0.8).faults.len(), 1, "the error");
    assert_eq!(verdict(|found| found[3] = f32::NAN).faults.len(), 1, "the error");
    assert_eq!(verdict(|found| found.swap(7, 8)).faults.len(), 2, "the error and the token");
    let close: Vec<f32> = expected.iter().map(|logit| logit.min(9.5)).collect();
    let mut unsure = Verdict::default();
    let found: Vec<f32> = close.iter().map(|logit| if *logit > 9.0 { 8.9 } else { *logit }).collect();
    unsure.add(&found, &close, 30);
    assert_eq!((unsure.rows, unsure.excluded, unsure.other_tokens, unsure.faults.len()), (1, 1, 1, 0));
}

/// Cases that a test above starts.
mod by_driver {
    use super::*;

    fn judge(products: Products, answers: &[Answer]) -> Verdict {
        let verdict = compare(products, answers);
        println!("{verdict:?}");
        assert!(verdict.faults.is_empty(), "{verdict:?}");
        assert_eq!(verdict.rows, answers.iter().map(|answer| answer.greedy_ids.len()).sum::<usize>());
        verdict
    }

    fn judge_all(products: Products) {
        let golden = golden();
        judge(products, &golden.prompts);
        let counting = judge(products, &[golden.counting]);
        assert!(
            counting.excluded * 20 <= counting.rows,
            "more than 5 % of the rows are excluded: {counting:?}"
        );
    }

    #[test]
    #[ignore = "started by a test above"]
    fn one_answer_with_cublaslt() {
        judge(Products::CublasLt, &golden().prompts[..1]);
    }

    #[test]
    #[ignore = "started by a test above"]
    fn all_answers_with_cublaslt() {
        judge_all(Products::CublasLt);
    }

    #[test]
    #[ignore = "started by a test above"]
    fn all_answers_by_our_kernels() {
        judge_all(Products::Deterministic);
    }
}
