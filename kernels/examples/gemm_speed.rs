//! Measures the matrix kernels: GFLOP/s of prefill shapes, GB/s of decode shapes.
//!
//! `cargo run --release -p sluice-kernels --example gemm_speed [threads]`

use std::time::Instant;

use half::{bf16, f16};
use sluice_kernels::ops::thread_pool::StepThreads;
use sluice_kernels::simd::matmul::Narrow;
use sluice_kernels::simd::product::{Epilogue, Product, scratch_words};
use sluice_kernels::simd::{Dot, Element, Isa};

/// A pointer shared by the threads; each thread writes its own rows.
#[derive(Clone, Copy)]
struct Shared(*mut f32);
// SAFETY: tasks write disjoint rows.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}
impl Shared {
    fn get(self) -> *mut f32 {
        self.0
    }
}

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Copies the values to memory that starts at a multiple of 64 bytes, as slabs and activations do. Leaked on purpose.
fn aligned<T: Copy>(values: impl ExactSizeIterator<Item = T>) -> *const T {
    let lines = vec![Line([0; 64]); (values.len() * size_of::<T>()).div_ceil(64)];
    let base = lines.leak().as_mut_ptr().cast::<T>();
    for (index, value) in values.enumerate() {
        // SAFETY: `lines` has space for every value.
        unsafe { base.add(index).write(value) }
    }
    base
}

fn measure<E: Element>(isa: Isa, team: &StepThreads, name: &str, (rows, k, tokens): (usize, usize, usize)) {
    let weights = aligned((0..rows * k).map(|n| E::narrow((n % 17) as f32 / 17.0 - 0.5)));
    let input = aligned((0..tokens * k).map(|n| (n % 13) as f32 / 13.0 - 0.5));
    for token in 0..tokens {
        if E::Dot::NARROWS {
            // SAFETY: each row has `k` words, and no other thread uses the rows yet.
            unsafe { isa.run(Narrow { row: input.cast_mut().add(token * k), width: k }) }
        }
    }
    let mut output = vec![0.0_f32; tokens * rows];
    let mut scratch = vec![0.0_f32; scratch_words(k) * team.threads()];
    let (to, scratch) = (Shared(output.as_mut_ptr()), Shared(scratch.as_mut_ptr()));
    let (weights, input) = (Shared(weights.cast_mut().cast()), Shared(input.cast_mut()));
    let tasks = team.threads() * 4;
    let once = || {
        team.for_each(tasks, usize::MAX, |task| {
            let product = Product {
                weights: weights.get().cast::<E>(),
                bias: None,
                rows: rows * task / tasks..rows * (task + 1) / tasks,
                k,
                input: (input.get(), k),
                output: (to.get(), rows),
                tokens: 0..tokens,
                epilogue: Epilogue::Store,
                // SAFETY: each thread has its own piece of `scratch`.
                scratch: unsafe { scratch.get().add(team.thread_index() * scratch_words(k)) },
            };
            // SAFETY: the buffers have the sizes that `Product` requires; tasks write disjoint rows.
            unsafe { isa.run(product) }
        });
    };
    let best_s = team.enter(|| {
        let mut best_s = f64::MAX;
        let began = Instant::now();
        while began.elapsed().as_secs_f64() < 0.4 {
            let start = Instant::now();
            once();
            best_s = best_s.min(start.elapsed().as_secs_f64());
        }
        best_s
    });
    let gflops = 2.0 * (rows * k * tokens) as f64 / best_s / 1e9;
    let gbytes = (rows * k * size_of::<E>()) as f64 / best_s / 1e9;
    println!(
        "{isa:?} {name:5} {rows:6} x {k:5} x {tokens:4} tokens  {gflops:8.1} GFLOP/s  {gbytes:7.1} GB/s of weights"
    );
}

fn main() {
    let threads = std::env::args().nth(1).and_then(|t| t.parse().ok()).unwrap_or(2);
    let team = StepThreads::new(threads).expect("threads start");
    for isa in Isa::available() {
        for shape in [
            (1536, 576, 48),
            (1536, 576, 256),
            (576, 1536, 256),
            (4096, 4096, 64),
            (1536, 576, 1),
            (576, 1536, 1),
            (49152, 576, 1),
            (8192, 2048, 1),
            (8192, 2048, 4),
            (8192, 2048, 8),
        ] {
            measure::<f32>(isa, &team, "f32", shape);
            if shape.0 == 8192 || shape.2 == 256 {
                measure::<f16>(isa, &team, "f16", shape);
                measure::<bf16>(isa, &team, "bf16", shape);
            }
        }
    }
}
