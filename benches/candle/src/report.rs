//! What was measured, as a table or as JSON.

use std::fs;

use serde_json::{Value, json};
use sluice_kernels::simd::Isa;
use sluice_link::model::ModelSpec;

use crate::measure::{Comparison, Samples};
use crate::{BATCH, DECODED, PROMPT};

/// A whole run.
pub struct Report {
    threads: usize,
    repetitions: usize,
    processor: String,
    /// One for each shape.
    pub shapes: Vec<ShapeReport>,
}

/// What was measured of one shape.
pub struct ShapeReport {
    /// The shape's name.
    pub name: &'static str,
    /// Its sizes.
    pub spec: ModelSpec,
    /// Largest difference of logits, as a part of the largest.
    pub disagreement: f32,
    /// Prompt of one sequence.
    pub prefill: Comparison,
    /// Decode of one sequence.
    pub decode: Comparison,
    /// Decode of several sequences, Sluice alone.
    pub batched: Samples,
}

impl Report {
    /// A run without shapes yet.
    pub fn new(threads: usize, repetitions: usize) -> Report {
        Report { threads, repetitions, processor: processor(), shapes: Vec::new() }
    }

    /// To standard output.
    pub fn print_json(&self) {
        let report = json!({
            "processor": self.processor,
            "sluice_instruction_set": format!("{:?}", Isa::best()),
            "candle_avx512": cfg!(feature = "candle-avx512"),
            "threads": self.threads,
            "repetitions": self.repetitions,
            "dtype": "f32",
            "shapes": self.shapes.iter().map(shape_json).collect::<Vec<_>>(),
        });
        println!("{report:#}");
    }

    /// To standard output.
    pub fn print_table(&self) {
        let candle = if cfg!(feature = "candle-avx512") { "with its AVX-512 kernels" } else { "as it comes" };
        println!("{}; {} threads each; f32; {} repetitions", self.processor, self.threads, self.repetitions);
        println!("Sluice on {:?}, candle {candle}; tokens/s as median (slowest to fastest)", Isa::best());
        for shape in &self.shapes {
            println!("\n{}: logits agree within {:.1e} of the largest", shape.name, shape.disagreement);
            row(&format!("prefill of {PROMPT}"), &shape.prefill);
            row(&format!("decode of {DECODED} at {PROMPT}"), &shape.decode);
            let what = format!("decode of {BATCH} sequences");
            println!("  {what:24} Sluice {}", speeds(&shape.batched));
        }
    }
}

fn row(what: &str, comparison: &Comparison) {
    let (low, high) = comparison.ratio_range();
    println!("  {what:24} Sluice {}  candle {}", speeds(&comparison.sluice), speeds(&comparison.candle));
    println!("  {:24} Sluice / candle {:.2} ({low:.2} to {high:.2})", "", comparison.ratio());
}

fn speeds(samples: &Samples) -> String {
    let (low, high) = samples.range();
    format!("{:8.1} ({low:.1} to {high:.1})", samples.median())
}

fn shape_json(shape: &ShapeReport) -> Value {
    json!({
        "name": shape.name,
        "spec": shape.spec,
        "logits_differ_by": shape.disagreement,
        "prefill": comparison_json(&shape.prefill),
        "decode": comparison_json(&shape.decode),
        "decode_of_8_sequences": { "sluice": samples_json(&shape.batched) },
    })
}

fn comparison_json(comparison: &Comparison) -> Value {
    let (low, high) = comparison.ratio_range();
    json!({
        "sluice": samples_json(&comparison.sluice),
        "candle": samples_json(&comparison.candle),
        "ratio": { "median": comparison.ratio(), "lowest": low, "highest": high },
    })
}

fn samples_json(samples: &Samples) -> Value {
    let (low, high) = samples.range();
    json!({ "median_tokens_per_s": samples.median(), "lowest": low, "highest": high })
}

/// Name and vector extensions of the processor.
fn processor() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = info.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.split_once(':')).map_or("unknown", |(_, value)| value.trim())
    };
    let known =
        ["avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512_bf16", "amx_bf16", "asimd"];
    let flags: Vec<&str> = field("flags").split(' ').filter(|flag| known.contains(flag)).collect();
    format!("{} [{}]", field("model name"), flags.join(" "))
}
