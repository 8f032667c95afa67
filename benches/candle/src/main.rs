//! Prefill and decode of Sluice's CPU engine against candle's Llama: the same random weights in f32, the same number of
//! threads, the same tokens, in one process, repetition by repetition in turns.
//!
//! Both must first agree on the logits, so that the same computation is compared. No sampling and no process around the
//! engine: both sides are called as libraries.

mod candle_side;
mod measure;
mod report;
mod shapes;
mod sluice_side;

use anyhow::{Context, ensure};
use clap::Parser;
use sluice_kernels::generate::RandomModel;

use candle_side::Candle;
use measure::{Comparison, Samples};
use report::{Report, ShapeReport};
use shapes::Shape;
use sluice_side::Sluice;

/// Tokens of the prefill, and context of the decode.
const PROMPT: usize = 512;
/// Tokens decoded in one repetition.
const DECODED: usize = 64;
/// Sequences of the batched decode.
const BATCH: usize = 8;
/// Largest difference of two logits, as a part of the largest logit: f32 sums of different order over all layers.
const TOLERANCE: f32 = 2e-3;

/// Compare Sluice's CPU engine with candle's Llama.
///
/// RAYON_NUM_THREADS sets the threads of both; without it each has as many as there are physical cores.
#[derive(Parser)]
#[command(name = "sluice-bench-candle")]
struct Arguments {
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
    /// Repetitions of each measurement, after one that is not counted
    #[arg(long, default_value_t = 9)]
    repetitions: usize,
    /// Measure this shape only
    #[arg(long)]
    shape: Option<String>,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    ensure!(arguments.repetitions > 0, "at least one repetition");
    let threads = candle_core::utils::get_num_threads();
    let mut shapes = shapes::all();
    if let Some(name) = &arguments.shape {
        shapes.retain(|shape| shape.name == name);
        ensure!(!shapes.is_empty(), "no shape is called {name}");
    }
    let mut report = Report::new(threads, arguments.repetitions);
    for shape in &shapes {
        report.shapes.push(compare(shape, threads, arguments.repetitions)?);
    }
    if arguments.json {
        report.print_json()
    } else {
        report.print_table()
    }
    Ok(())
}

/// Generates the model, loads it into both, checks that they agree and measures.
fn compare(shape: &Shape, threads: usize, repetitions: usize) -> anyhow::Result<ShapeReport> {
    let folder = tempfile::tempdir().context("no temporary folder")?;
    RandomModel { spec: shape.spec.clone(), seed: 7, shards: 1 }.write(folder.path())?;
    // Sluice first: its threads must not inherit an affinity that candle may set.
    let mut sluice = Sluice::load(&shape.spec, folder.path(), threads)?;
    let mut candle = Candle::load(folder.path(), PROMPT)?;
    let vocab = shape.spec.vocab;
    let tokens: Vec<u32> = (0..(PROMPT + DECODED) as u32).map(|n| (n * 7919 + 13) % vocab).collect();
    let (prompt, decoded) = tokens.split_at(PROMPT);

    let disagreement = disagreement(&mut sluice, &mut candle, prompt, decoded)?;
    ensure!(
        disagreement <= TOLERANCE,
        "{}: logits differ by {disagreement:.2e} of the largest, more than {TOLERANCE:.0e}",
        shape.name
    );
    let prefill = Comparison::alternating(
        repetitions,
        PROMPT,
        || sluice.prefill(0, prompt).map(drop),
        || candle.prefill(prompt).map(drop),
    )?;
    let decode = Comparison::alternating(
        repetitions,
        DECODED,
        || sluice.decode(decoded, PROMPT, |_| ()),
        || candle.decode(decoded, PROMPT, |_| ()),
    )?;
    for sequence in 0..BATCH {
        sluice.prefill(sequence, prompt)?;
    }
    let batched = Samples::of(repetitions, BATCH * DECODED, || sluice.decode_batch(decoded, PROMPT, BATCH))?;
    Ok(ShapeReport { name: shape.name, spec: shape.spec.clone(), disagreement, prefill, decode, batched })
}

/// Largest difference between the two sides' logits after the prompt and after each decoded token, as a part of the
/// largest logit.
fn disagreement(
    sluice: &mut Sluice,
    candle: &mut Candle,
    prompt: &[u32],
    decoded: &[u32],
) -> anyhow::Result<f32> {
    let mut ours = vec![sluice.prefill(0, prompt)?];
    sluice.decode(decoded, prompt.len(), |logits| ours.push(logits.to_vec()))?;
    let mut theirs = vec![candle.prefill(prompt)?.flatten_all()?.to_vec1::<f32>()?];
    let mut rows = Vec::new();
    candle.decode(decoded, prompt.len(), |logits| rows.push(logits.clone()))?;
    for row in rows {
        theirs.push(row.flatten_all()?.to_vec1::<f32>()?);
    }
    ensure!(ours.len() == theirs.len(), "as many rows of logits");
    let (mut largest, mut difference) = (0.0_f32, 0.0_f32);
    for (ours, theirs) in ours.iter().zip(&theirs) {
        ensure!(ours.len() == theirs.len(), "as many logits");
        for (a, b) in ours.iter().zip(theirs) {
            ensure!(a.is_finite() && b.is_finite(), "logits must be finite: {a} and {b}");
            largest = largest.max(a.abs());
            difference = difference.max((a - b).abs());
        }
    }
    ensure!(largest > 0.0, "logits must not all be zero");
    Ok(difference / largest)
}
