//! The whole path of an engine: a chunk behind two addresses, a captured graph that waits for a word, runs a kernel and
//! a product of cuBLASLt, and writes a word.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use cudarc::cublaslt::sys::cudaDataType_t as Format;
use cudarc::driver::sys::{CUresult, CUstreamCaptureMode};

use crate::cublas::{Product, TRANSPOSE_A};
use crate::device::{Device, cu, result_of};
use crate::function::Kernel;
use crate::memory::{CHUNK, allow, properties};
use crate::process::Machine;

/// Rows, columns, and the length of a sum.
const M: usize = 5;
const N: usize = 48;
const K: usize = 64;
const EPS: f32 = 1e-5;
/// Where gain and norm lie in the first chunk.
const GAIN: u64 = 128 << 10;
const NORM: u64 = 64 << 10;

fn bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

fn wide(bits: u16) -> f64 {
    f32::from_bits(u32::from(bits) << 16).into()
}

/// Three chunks behind four addresses in a row: the last one leads to the first chunk again.
struct Memory {
    base: u64,
    handles: [u64; 3],
}

impl Memory {
    fn new() -> Memory {
        let mut memory = Memory { base: 0, handles: [0; 3] };
        cu!(cuMemAddressReserve(&mut memory.base, 4 * CHUNK, 0, 0, 0));
        for index in 0..4 {
            if index < 3 {
                cu!(cuMemCreate(&mut memory.handles[index], CHUNK, &properties(true), 0));
            }
            cu!(cuMemMap(memory.chunk(index), CHUNK, 0, memory.handles[index % 3], 0));
        }
        allow(memory.base, 4 * CHUNK);
        memory
    }

    fn chunk(&self, index: usize) -> u64 {
        self.base + (index * CHUNK) as u64
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // After a fault of the device these fail.
        let _ = result_of!(cuMemUnmap(self.base, 4 * CHUNK));
        for handle in self.handles {
            let _ = result_of!(cuMemRelease(handle));
        }
        let _ = result_of!(cuMemAddressFree(self.base, 4 * CHUNK));
    }
}

/// The engine's step.
struct Step {
    memory: Memory,
    norm: Kernel,
    product: Product,
    page: Box<[AtomicU64; 512]>,
    /// Device address of the page.
    words: u64,
    /// Last: the others need its context to be released.
    device: Device,
}

/// x, gain and weights, as f32 numbers that are rounded to bf16.
fn inputs() -> [Vec<u16>; 3] {
    [
        (0..M * K).map(|at| bf16((at as f32 * 0.37).sin())).collect(),
        (0..K).map(|at| bf16(1.0 + at as f32 / 64.0)).collect(),
        (0..N * K).map(|at| bf16((at as f32 * 0.11).cos())).collect(),
    ]
}

impl Step {
    fn new() -> Step {
        let device = Device::open();
        let page = Box::new([const { AtomicU64::new(0) }; 512]);
        cu!(cuMemHostRegister_v2(page.as_ptr().cast_mut().cast(), 4096, 2));
        let mut words = 0;
        cu!(cuMemHostGetDevicePointer_v2(&mut words, page.as_ptr().cast_mut().cast(), 0));
        let memory = Memory::new();
        let [x, gain, weights] = inputs();
        // x is written through the other address of its chunk.
        for (to, from) in [(memory.chunk(3), &x), (memory.base + GAIN, &gain), (memory.chunk(1), &weights)] {
            cu!(cuMemcpyHtoDAsync_v2(to, from.as_ptr().cast(), from.len() * 2, device.stream));
        }
        let shapes = [(K, N, K), (K, M, K), (N, M, N)]
            .map(|(rows, columns, lead)| (rows as u64, columns as u64, lead as i64));
        let product = Product::new(Format::CUDA_R_16BF, shapes);
        product.describe(TRANSPOSE_A, 1_i32);
        Step { memory, norm: Kernel::load(include_str!("norm.ptx"), "norm"), product, page, words, device }
    }

    /// Queues the step.
    fn enqueue(&self) {
        let (stream, memory) = (self.device.stream, &self.memory);
        cu!(cuStreamWaitValue64_v2(stream, self.words, 7, 0));
        let [mut x, mut gain, mut norm] = [memory.base, memory.base + GAIN, memory.base + NORM];
        let (mut width, mut eps) = (K as u32, EPS);
        let mut list: [*mut c_void; 5] = [
            (&raw mut x).cast(),
            (&raw mut gain).cast(),
            (&raw mut norm).cast(),
            (&raw mut width).cast(),
            (&raw mut eps).cast(),
        ];
        let function = self.norm.function;
        cu!(cuLaunchKernel(function, M as u32, 1, 1, 1, 1, 1, 0, stream, list.as_mut_ptr(), ptr::null_mut()));
        let places = [memory.chunk(1), norm, 0, memory.chunk(2)];
        let algorithm = self.product.heuristic().expect("the shapes fit").algo;
        self.product.run(&self.device, [1.0, 0.0], places, Some(&algorithm), (0, 0)).expect("it is queued");
        cu!(cuStreamWriteValue64_v2(stream, self.words + 64, 9, 0));
    }

    /// Whether the result is right: each element within the rounding of the norm and of itself to bf16.
    fn check(&self) {
        let mut found = vec![0_u16; M * N];
        cu!(cuMemcpyDtoH_v2(found.as_mut_ptr().cast(), self.memory.chunk(2), M * N * 2));
        let [x, gain, weights] = inputs();
        for (row, values) in x.chunks_exact(K).enumerate() {
            let mean = values.iter().map(|value| wide(*value).powi(2)).sum::<f64>() / K as f64;
            let scale = 1.0 / (mean + f64::from(EPS)).sqrt();
            for column in 0..N {
                let term =
                    |at: usize| wide(values[at]) * wide(gain[at]) * scale * wide(weights[column * K + at]);
                let (sum, size) =
                    (0..K).map(term).fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()));
                // bf16 has eight bits: each norm is off by at most 2^-9 of itself, and so is the result; f32 adds little.
                let bound = (size + sum.abs()) / 500.0;
                let difference = (wide(found[row * N + column]) - sum).abs();
                assert!(difference <= bound, "{row}, {column}: off by {difference}");
            }
        }
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        let _ = result_of!(cuMemHostUnregister(self.page.as_ptr().cast_mut().cast()));
    }
}

#[test]
fn a_captured_step_waits_computes_and_signals_at_each_launch() {
    Machine::new().run("path::a_captured_step_waits_computes_and_signals_at_each_launch", || {
        let step = Step::new();
        let stream = step.device.stream;
        cu!(cuStreamBeginCapture_v2(stream, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
        step.enqueue();
        let (mut graph, mut ready) = (ptr::null_mut(), ptr::null_mut());
        cu!(cuStreamEndCapture(stream, &mut graph));
        cu!(cuGraphInstantiateWithFlags(&mut ready, graph, 0));
        cu!(cuGraphDestroy(graph));
        for _ in 0..2 {
            [0, 8].into_iter().for_each(|index| step.page[index].store(0, Ordering::SeqCst));
            cu!(cuGraphLaunch(ready, stream));
            assert_eq!(result_of!(cuStreamQuery(stream)), CUresult::CUDA_ERROR_NOT_READY, "it waits");
            step.page[0].store(7, Ordering::SeqCst);
            step.device.synchronize();
            assert_eq!(step.page[8].load(Ordering::SeqCst), 9);
            step.check();
            cu!(cuMemsetD8_v2(step.memory.chunk(2), 0, M * N * 2));
        }
        cu!(cuGraphExecDestroy(ready));
    });
}

#[test]
fn a_kernel_over_an_unmapped_chunk_faults_with_its_line_and_thread() {
    let name = "path::a_kernel_over_an_unmapped_chunk_faults_with_its_line_and_thread";
    // Else the first launch would wait for the stream, which waits for a word that is written later.
    let machine = Machine::new().with("CUDA_MODULE_LOADING", "EAGER");
    let errors = machine.run_to_fault(name, || {
        let step = Step::new();
        step.device.synchronize();
        cu!(cuMemUnmap(step.memory.base, CHUNK));
        step.enqueue();
        step.page[0].store(7, Ordering::SeqCst);
        assert_eq!(step.device.outcome(), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
        assert_eq!(step.page[8].load(Ordering::SeqCst), 0, "later work does not run");
        assert_eq!(result_of!(cuCtxSynchronize()), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS, "the fault stays");
        let mut address = 0;
        assert_eq!(result_of!(cuMemAlloc_v2(&mut address, 8)), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    });
    if let Some(errors) = errors {
        let load =
            include_str!("norm.ptx").lines().position(|line| line.contains("ld.global.u16")).expect("a load")
                + 1;
        let expected = format!("PTX line {load}");
        assert!(errors.contains(&expected) && errors.contains("thread [0, 0, 0]"), "{errors}");
    }
}
