//! Measurement 3: the kernels of a layer against the copy bandwidth and the matrix peak of this device.

use std::time::Duration;

use sluice_kernels::cuda::{LaunchPlan, Products};
use sluice_kernels::engine::CudaKernels;
use sluice_memory::cuda;
use sluice_probe::Error;
use sluice_probe::bench::Bench;
use sluice_probe::checks::Check;
use sluice_probe::report::Answer;
use sluice_probe::results::Findings;
use sluice_probe::statistics::{Figure, median_of};

use crate::device_data::DeviceData;
use crate::products;
use crate::scale::Scale;

mod paged;
mod rows;

use paged::{Heads, Paged};

/// Measurement 3.
pub const CHECK: Check = Check {
    id: 3,
    name: "attention",
    text: "Attention, norm and RoPE against the copy bandwidth, prefill against the peak of matrix products, and our product \
           against that of cuBLASLt",
    mib: 4096,
    quick_mib: 1536,
    limit: Duration::from_secs(90),
    ask,
};

/// Figure: bytes read and written by a copy on the device.
pub const COPY: &str = "copy on the device, read and written";
/// Figure: the fastest product of bf16 matrices.
pub const MATRIX: &str = "product of bf16 matrices by our kernel, peak";
/// Figure: the fastest product of bf16 matrices by the vendor's library.
pub const CUBLASLT_MATRIX: &str = "product of bf16 matrices by cuBLASLt, peak";
/// Figure: the part of that peak that our kernel reaches.
pub const MATRIX_SHARE: &str = "product by our kernel, of cuBLASLt's peak";
/// Figure: attention of a prefill.
pub const PREFILL: &str = "attention of a prefill";
/// Figure: the part of the peak of matrix products.
pub const PREFILL_SHARE: &str = "attention of a prefill, of the peak of our product";
/// Figure: the part of the peak of the vendor's library.
pub const PREFILL_CUBLASLT_SHARE: &str = "attention of a prefill, of cuBLASLt's peak";
/// Figure: attention of a decode, K and V read.
pub const DECODE: &str = "attention of a decode, K and V read";
/// Figure: the part of the copy bandwidth.
pub const DECODE_SHARE: &str = "attention of a decode, of the copy bandwidth";
/// Figure: the part of the copy bandwidth.
pub const NORM_SHARE: &str = "RMSNorm, of the copy bandwidth";
/// Figure: the part of the copy bandwidth.
pub const ROPE_SHARE: &str = "RoPE and the write of K and V, of the copy bandwidth";

/// Sizes of this measurement.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    heads: Heads,
    /// Sequences of a decode, and tokens of each.
    decode: [u32; 2],
    /// Tokens of a prefill.
    prefill: u32,
    /// Rows and columns of matrices.
    matrix: u32,
    copy_bytes: u64,
    rounds: usize,
}

impl Sizes {
    fn of(scale: Scale) -> Sizes {
        let llama = Heads { heads: 32, kv_heads: 8, dim: 128 };
        scale.pick(
            Sizes {
                heads: Heads { heads: 4, kv_heads: 2, dim: 32 },
                decode: [2, 300],
                prefill: 70,
                matrix: 64,
                copy_bytes: 2 << 20,
                rounds: 2,
            },
            Sizes {
                heads: llama,
                decode: [16, 1024],
                prefill: 2048,
                matrix: 4096,
                copy_bytes: 256 << 20,
                rounds: 5,
            },
            Sizes {
                heads: llama,
                decode: [64, 1024],
                prefill: 4096,
                matrix: 8192,
                copy_bytes: 1 << 30,
                rounds: 20,
            },
        )
    }
}

fn ask(bench: &Bench, findings: &mut Findings<'_>) -> Result<Answer, Error> {
    let sizes = Sizes::of(Scale::of(bench));
    let data = DeviceData::new(&bench.context)?;
    let (kernels, all_products) = products::load(bench, findings)?;
    let study = Study { bench, kernels, data, sizes };
    let Sizes { heads: Heads { heads, kv_heads, dim }, decode: [batch, context], prefill, .. } = sizes;
    findings.notes.push(format!(
        "{heads} query heads, {kv_heads} heads of K and V, {dim} numbers each, bf16; a decode of {batch} sequences at \
         {context} tokens, a prefill of {prefill} tokens"
    ));
    let copy = study.copy()?;
    let bandwidth = copy.median;
    findings.figures.push(copy);
    let mut peaks = Vec::new();
    for products in all_products {
        let peak = study.matrix_peak(products)?;
        findings.figures.push(peak.clone());
        peaks.push(peak);
    }
    findings.figures.extend(matrix_share(&peaks));
    findings.figures.extend(study.prefill(&peaks)?);
    let [decode, share] = study.decode(bandwidth)?;
    findings.figures.extend([decode, share]);
    findings.figures.extend(study.rows(bandwidth)?);
    Ok(Answer::Yes)
}

/// What the parts of the measurement share.
struct Study<'a> {
    bench: &'a Bench,
    kernels: CudaKernels,
    data: DeviceData,
    sizes: Sizes,
}

impl Study<'_> {
    fn times_ns(&self, launches: &[LaunchPlan]) -> Result<Vec<f64>, cuda::Error> {
        self.data.times_ns(self.bench, self.sizes.rounds, |stream| {
            launches.iter().try_for_each(|launch| self.kernels.launch(stream, launch))
        })
    }

    fn copy(&self) -> Result<Figure, Error> {
        let bytes = self.sizes.copy_bytes;
        let (from, to) = (self.data.random(bytes)?, self.data.empty(bytes)?);
        let copy = |stream: &cuda::Stream| stream.copy(to.at(0), from.at(0), bytes);
        let times = self.data.times_ns(self.bench, self.sizes.rounds, copy)?;
        Ok(Figure::of(COPY, "GB/s", &rates(2.0 * bytes as f64, &times)))
    }

    /// The fastest of two shapes: square, and with half the rows. Results are f32, as those of most products of a step.
    fn matrix_peak(&self, products: Products) -> Result<Figure, Error> {
        let (name, side) = (peak_name(products), self.sizes.matrix);
        self.bench.progress(name);
        let one = |rows: u32| -> Result<Vec<f64>, Error> {
            let product = rows::Product::new(&self.data, rows, side)?;
            let operation = product.operation(products);
            let run = |stream: &cuda::Stream| self.kernels.run(stream, &operation);
            let times = self.data.times_ns(self.bench, self.sizes.rounds, run)?;
            let operations = 2.0 * f64::from(rows) * f64::from(side) * f64::from(side);
            Ok(rates(operations / 1000.0, &times))
        };
        let (square, half) = (one(side)?, one(side / 2)?);
        let best = if median_of(&half) > median_of(&square) { half } else { square };
        Ok(Figure::of(name, "TFLOP/s", &best))
    }

    /// Attention of a prefill, and its part of each peak.
    fn prefill(&self, peaks: &[Figure]) -> Result<Vec<Figure>, Error> {
        self.bench.progress("attention");
        let Sizes { heads, prefill, .. } = self.sizes;
        let paged = Paged::new(&self.data, heads, &[(0, prefill)])?;
        let times = self.times_ns(&paged.launches())?;
        // Two products for each pair of a token and a position that it sees.
        let pairs = f64::from(prefill) * f64::from(prefill + 1) / 2.0;
        let operations = 4.0 * f64::from(heads.heads * heads.dim) * pairs;
        let rates = rates(operations / 1000.0, &times);
        let share =
            |(name, peak): (&str, &Figure)| Figure::of(name, "permille", &shares(&rates, peak.median));
        let parts = [PREFILL_SHARE, PREFILL_CUBLASLT_SHARE].into_iter().zip(peaks).map(share);
        Ok(std::iter::once(Figure::of(PREFILL, "TFLOP/s", &rates)).chain(parts).collect())
    }

    fn decode(&self, bandwidth: f64) -> Result<[Figure; 2], Error> {
        let Sizes { heads, decode: [batch, context], .. } = self.sizes;
        let paged = Paged::new(&self.data, heads, &vec![(context - 1, 1); batch as usize])?;
        let times = self.times_ns(&paged.launches())?;
        let bytes = f64::from(batch) * f64::from(context) * heads.kv_token_bytes() as f64;
        let rates = rates(bytes, &times);
        Ok([
            Figure::of(DECODE, "GB/s", &rates),
            Figure::of(DECODE_SHARE, "permille", &shares(&rates, bandwidth)),
        ])
    }

    /// Norm and RoPE over the tokens of the prefill.
    fn rows(&self, bandwidth: f64) -> Result<[Figure; 2], Error> {
        self.bench.progress("norm and RoPE");
        let Sizes { heads, prefill, .. } = self.sizes;
        let norm = rows::RmsNorm::new(&self.data, prefill, heads.heads * heads.dim)?;
        let rope = rows::Rope::new(&self.data, prefill, heads)?;
        let share = |name, bytes: u64, launch| -> Result<Figure, Error> {
            let rates = rates(bytes as f64, &self.times_ns(&[launch])?);
            Ok(Figure::of(name, "permille", &shares(&rates, bandwidth)))
        };
        Ok([share(NORM_SHARE, norm.bytes(), norm.launch())?, share(ROPE_SHARE, rope.bytes(), rope.launch())?])
    }
}

/// The name of the figure with the peak of these products.
const fn peak_name(products: Products) -> &'static str {
    match products {
        Products::Deterministic => MATRIX,
        Products::CublasLt => CUBLASLT_MATRIX,
    }
}

/// Returns our kernel's part of the other peak, if there is another.
fn matrix_share(peaks: &[Figure]) -> Option<Figure> {
    let [ours, theirs] = peaks else { return None };
    Some(Figure::single(MATRIX_SHARE, "permille", ours.median / theirs.median * 1000.0))
}

/// Returns `amount` per nanosecond.
fn rates(amount: f64, times_ns: &[f64]) -> Vec<f64> {
    times_ns.iter().map(|ns| amount / ns).collect()
}

fn shares(rates: &[f64], whole: f64) -> Vec<f64> {
    rates.iter().map(|rate| rate / whole * 1000.0).collect()
}
