//! Measurement 3: the kernels of a layer against the copy bandwidth and the matrix peak of this device.

use std::time::Duration;

use sluice_kernels::cuda::LaunchPlan;
use sluice_kernels::engine::CudaKernels;
use sluice_memory::cuda;
use sluice_probe::Error;
use sluice_probe::bench::Bench;
use sluice_probe::checks::Check;
use sluice_probe::report::Answer;
use sluice_probe::results::Findings;
use sluice_probe::statistics::{Figure, median_of};

use crate::device_data::DeviceData;
use crate::scale::Scale;

mod paged;
mod rows;

use paged::{Heads, Paged};

/// Measurement 3.
pub const CHECK: Check = Check {
    id: 3,
    name: "attention",
    text: "Attention, norm and RoPE against the copy bandwidth, and prefill against the peak of matrix products",
    mib: 4096,
    quick_mib: 1536,
    limit: Duration::from_secs(90),
    ask,
};

/// Figure: bytes read and written by a copy on the device.
pub const COPY: &str = "copy on the device, read and written";
/// Figure: the fastest product of bf16 matrices.
pub const MATRIX: &str = "product of bf16 matrices by our kernel, peak";
/// Figure: attention of a prefill.
pub const PREFILL: &str = "attention of a prefill";
/// Figure: the part of the peak of matrix products.
pub const PREFILL_SHARE: &str = "attention of a prefill, of the peak of our product";
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
    let study = Study { bench, kernels: CudaKernels::load(&bench.context)?, data, sizes };
    let Sizes { heads: Heads { heads, kv_heads, dim }, decode: [batch, context], prefill, .. } = sizes;
    findings.notes.push(format!(
        "{heads} query heads, {kv_heads} heads of K and V, {dim} numbers each, bf16; a decode of {batch} sequences at \
         {context} tokens, a prefill of {prefill} tokens"
    ));
    let copy = study.copy()?;
    let bandwidth = copy.median;
    findings.figures.push(copy);
    let matrix = study.matrix_peak()?;
    let peak = matrix.median;
    findings.figures.push(matrix);
    findings.figures.extend(study.prefill(peak)?);
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

    /// The fastest of two shapes: square, and with half the rows.
    fn matrix_peak(&self) -> Result<Figure, Error> {
        self.bench.progress("products of matrices");
        let side = self.sizes.matrix;
        let one = |rows: u32| -> Result<Vec<f64>, Error> {
            let product = rows::Product::new(&self.data, rows, side)?;
            let times = self.times_ns(&[product.launch()])?;
            let operations = 2.0 * f64::from(rows) * f64::from(side) * f64::from(side);
            Ok(rates(operations / 1000.0, &times))
        };
        let (square, half) = (one(side)?, one(side / 2)?);
        let best = if median_of(&half) > median_of(&square) { half } else { square };
        Ok(Figure::of(MATRIX, "TFLOP/s", &best))
    }

    fn prefill(&self, peak: f64) -> Result<[Figure; 2], Error> {
        self.bench.progress("attention");
        let Sizes { heads, prefill, .. } = self.sizes;
        let paged = Paged::new(&self.data, heads, &[(0, prefill)])?;
        let times = self.times_ns(&paged.launches())?;
        // Two products for each pair of a token and a position that it sees.
        let pairs = f64::from(prefill) * f64::from(prefill + 1) / 2.0;
        let operations = 4.0 * f64::from(heads.heads * heads.dim) * pairs;
        let rates = rates(operations / 1000.0, &times);
        Ok([
            Figure::of(PREFILL, "TFLOP/s", &rates),
            Figure::of(PREFILL_SHARE, "permille", &shares(&rates, peak)),
        ])
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

/// Returns `amount` per nanosecond.
fn rates(amount: f64, times_ns: &[f64]) -> Vec<f64> {
    times_ns.iter().map(|ns| amount / ns).collect()
}

fn shares(rates: &[f64], whole: f64) -> Vec<f64> {
    rates.iter().map(|rate| rate / whole * 1000.0).collect()
}
