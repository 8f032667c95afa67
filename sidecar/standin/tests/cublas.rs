//! Tests of cuBLASLt, by its functions of cudarc.

use std::ffi::c_void;
use std::ptr;

use cudarc::cublaslt::result as lt;
use cudarc::cublaslt::sys::{
    self, cublasComputeType_t as Compute, cublasStatus_t as Status, cudaDataType_t as Format,
};

use crate::device::{Buffer, Device};
use crate::process::Machine;

/// The unit in the last place of f32 at 1, of bf16 and of f16.
const F32_ULP: f64 = 1.0 / (1 << 23) as f64;
const BF16_ULP: f64 = 1.0 / (1 << 7) as f64;
const F16_ULP: f64 = 1.0 / (1 << 10) as f64;

/// The attribute that transposes A.
pub const TRANSPOSE_A: sys::cublasLtMatmulDescAttributes_t =
    sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_TRANSA;

/// A product of cuBLASLt with its descriptors, destroyed on drop.
pub struct Product {
    handle: sys::cublasLtHandle_t,
    descriptor: sys::cublasLtMatmulDesc_t,
    layouts: [sys::cublasLtMatrixLayout_t; 3],
    preference: sys::cublasLtMatmulPreference_t,
}

/// Rows, columns and leading dimension of a matrix.
pub type Shape = (u64, u64, i64);

impl Product {
    /// With the shapes of A and B as they are stored, and of the result.
    pub fn new(format: Format, shapes: [Shape; 3]) -> Product {
        let layout = |(rows, columns, lead)| {
            lt::create_matrix_layout(format, rows, columns, lead).expect("a layout is only a description")
        };
        Product {
            handle: lt::create_handle().expect("there is a context"),
            descriptor: lt::create_matmul_desc(Compute::CUBLAS_COMPUTE_32F, Format::CUDA_R_32F)
                .expect("a descriptor"),
            layouts: shapes.map(layout),
            preference: lt::create_matmul_pref().expect("a preference"),
        }
    }

    pub fn describe<T>(&self, attribute: sys::cublasLtMatmulDescAttributes_t, value: T) {
        // SAFETY: the value has the length of the attribute.
        let set = unsafe {
            lt::set_matmul_desc_attribute(
                self.descriptor,
                attribute,
                (&raw const value).cast(),
                size_of::<T>(),
            )
        };
        set.expect("the attribute is supported");
    }

    fn allow_workspace(&self, bytes: usize) {
        let attribute = sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
        // SAFETY: the value has the length of the attribute.
        unsafe { lt::set_matmul_pref_attribute(self.preference, attribute, (&raw const bytes).cast(), 8) }
            .expect("the attribute is supported");
    }

    pub fn heuristic(&self) -> Result<sys::cublasLtMatmulHeuristicResult_t, Status> {
        let [a, b, c] = self.layouts;
        // SAFETY: all descriptors exist.
        unsafe { lt::get_matmul_algo_heuristic(self.handle, self.descriptor, a, b, c, c, self.preference) }
            .map_err(|error| error.0)
    }

    /// Queues it with alpha and beta. `workspace` is its address and its length.
    pub fn run(
        &self,
        device: &Device,
        [alpha, beta]: [f32; 2],
        [a, b, c, d]: [u64; 4],
        algorithm: Option<&sys::cublasLtMatmulAlgo_t>,
        workspace: (u64, usize),
    ) -> Result<(), Status> {
        let [layout_a, layout_b, layout_c] = self.layouts;
        let at = |address: u64| address as *const c_void;
        // SAFETY: all descriptors exist; the library checks the addresses.
        let result = unsafe {
            lt::matmul(
                self.handle,
                self.descriptor,
                (&raw const alpha).cast(),
                (&raw const beta).cast(),
                at(a),
                layout_a,
                at(b),
                layout_b,
                at(c),
                layout_c,
                d as *mut c_void,
                layout_c,
                algorithm.map_or(ptr::null(), ptr::from_ref),
                workspace.0 as *mut c_void,
                workspace.1,
                device.stream.cast(),
            )
        };
        result.map_err(|error| error.0)
    }
}

impl Drop for Product {
    fn drop(&mut self) {
        // SAFETY: this value owns all of them.
        unsafe {
            lt::destroy_matmul_pref(self.preference).expect("it exists");
            lt::destroy_matmul_desc(self.descriptor).expect("it exists");
            self.layouts.iter().for_each(|layout| lt::destroy_matrix_layout(*layout).expect("it exists"));
            lt::destroy_handle(self.handle).expect("it exists");
        }
    }
}

/// Numbers between -1 and 1 that f16 and bf16 hold exactly: multiples of 1/64.
fn numbers(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|at| ((at * 37 + seed * 11) % 129) as f32 / 64.0 - 1.0).collect()
}

fn encoded(format: Format, values: &[f32]) -> Buffer {
    let narrow =
        |encode: fn(f32) -> u16| Buffer::of(&values.iter().map(|value| encode(*value)).collect::<Vec<_>>());
    match format {
        Format::CUDA_R_16BF => narrow(|value| (value.to_bits() >> 16) as u16),
        // Exact multiples of 1/64 below 2 have a normal f16 form: the exponent moves by 112.
        Format::CUDA_R_16F => narrow(|value| {
            let bits = value.to_bits();
            let magnitude = bits & 0x7fff_ffff;
            let small = if magnitude == 0 { 0 } else { (magnitude - (112 << 23)) >> 13 };
            (bits >> 16 & 0x8000 | small) as u16
        }),
        _ => Buffer::of(values),
    }
}

fn decoded(format: Format, buffer: &Buffer, count: usize) -> Vec<f64> {
    match format {
        Format::CUDA_R_16BF => buffer
            .read::<u16>(count)
            .into_iter()
            .map(|bits| f32::from_bits(u32::from(bits) << 16).into())
            .collect(),
        Format::CUDA_R_16F => buffer.read::<u16>(count).into_iter().map(half).collect(),
        _ => buffer.read::<f32>(count).into_iter().map(f64::from).collect(),
    }
}

/// The value of an f16 number by its definition.
fn half(bits: u16) -> f64 {
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023));
    let magnitude = if exponent == 0 {
        fraction / 1024.0 * 2f64.powi(-14)
    } else {
        (1.0 + fraction / 1024.0) * 2f64.powi(exponent - 15)
    };
    if bits & 0x8000 == 0 { magnitude } else { -magnitude }
}

#[test]
fn products_of_every_format_and_transposition_are_right() {
    Machine::new().run("cublas::products_of_every_format_and_transposition_are_right", || {
        let device = Device::open();
        let [m, n, k] = [37_usize, 11, 300];
        for (format, ulp) in
            [(Format::CUDA_R_32F, F32_ULP), (Format::CUDA_R_16BF, BF16_ULP), (Format::CUDA_R_16F, F16_ULP)]
        {
            for transposed in 0..4_i32 {
                let (flip_a, flip_b) = (transposed & 1, transposed >> 1);
                let (rows_a, columns_a) = if flip_a == 1 { (k, m) } else { (m, k) };
                let (rows_b, columns_b) = if flip_b == 1 { (n, k) } else { (k, n) };
                let (lead_a, lead_b, lead_d) = (rows_a + 3, rows_b, m + 1);
                let product = Product::new(
                    format,
                    [
                        (rows_a as u64, columns_a as u64, lead_a as i64),
                        (rows_b as u64, columns_b as u64, lead_b as i64),
                        (m as u64, n as u64, lead_d as i64),
                    ],
                );
                product.describe(TRANSPOSE_A, flip_a);
                product.describe(sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_TRANSB, flip_b);
                let (a, b) = (numbers(lead_a * columns_a, 1), numbers(lead_b * columns_b, 2));
                let c = numbers(lead_d * n, 3);
                let (on_a, on_b, on_c) = (encoded(format, &a), encoded(format, &b), encoded(format, &c));
                let on_d = Buffer::new(lead_d * n * 4);
                let algorithm = product.heuristic().expect("the shapes fit").algo;
                let places = [on_a.address, on_b.address, on_c.address, on_d.address];
                product.run(&device, [0.5, 2.0], places, Some(&algorithm), (0, 0)).expect("it is queued");
                device.synchronize();
                let found = decoded(format, &on_d, lead_d * n);
                for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
                    let left = |at: usize| a[if flip_a == 1 { i * lead_a + at } else { at * lead_a + i }];
                    let right = |at: usize| b[if flip_b == 1 { at * lead_b + j } else { j * lead_b + at }];
                    let terms = (0..k).map(|at| f64::from(left(at)) * f64::from(right(at)));
                    let (sum, size) =
                        terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()));
                    let exact = 0.5 * sum + 2.0 * f64::from(c[j * lead_d + i]);
                    // Higham, Accuracy and Stability of Numerical Algorithms, 3.1: a sum of k products is off by at most
                    // k units of rounding times the sum of magnitudes; the rounding of the result adds half an ulp.
                    let bound = k as f64 * F32_ULP * (size + 4.0) + exact.abs() * ulp;
                    let difference = (found[j * lead_d + i] - exact).abs();
                    assert!(difference <= bound, "{format:?} {transposed}: {i}, {j} is off by {difference}");
                }
            }
        }
    });
}

#[test]
fn epilogues_add_the_bias_of_the_row_and_apply_the_function() {
    Machine::new().run("cublas::epilogues_add_the_bias_of_the_row_and_apply_the_function", || {
        let device = Device::open();
        let (format, m, n) = (Format::CUDA_R_32F, 8_usize, 3_usize);
        // A is the identity: the product is B.
        let identity: Vec<f32> = (0..m * m).map(|at| f32::from(u8::from(at / m == at % m))).collect();
        let (b, bias) = (numbers(m * n, 5), numbers(m, 9));
        let (on_a, on_b, on_bias) = (Buffer::of(&identity), Buffer::of(&b), Buffer::of(&bias));
        let on_d = Buffer::new(m * n * 4);
        let square = (m as u64, m as u64, m as i64);
        let tall = (m as u64, n as u64, m as i64);
        for epilogue in [1_u32, 2, 4, 6, 32, 36] {
            let product = Product::new(format, [square, tall, tall]);
            product.describe(sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
            product.describe(
                sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                on_bias.address,
            );
            let places = [on_a.address, on_b.address, 0, on_d.address];
            product.run(&device, [1.0, 0.0], places, None, (0, 0)).expect("it is queued");
            device.synchronize();
            for (at, found) in on_d.read::<f32>(m * n).into_iter().enumerate() {
                let sum = f64::from(b[at]) + if epilogue & 4 == 0 { 0.0 } else { f64::from(bias[at % m]) };
                let gelu = 0.5
                    * sum
                    * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (sum + 0.044_715 * sum.powi(3))).tanh());
                let expected = match epilogue & !4 {
                    2 => sum.max(0.0),
                    32 => gelu,
                    _ => sum,
                };
                // A few roundings of f32, of values below 4.
                assert!(
                    (f64::from(found) - expected).abs() < 16.0 * F32_ULP,
                    "{epilogue}: {found}, not {expected}"
                );
            }
        }
    });
}

#[test]
fn what_does_not_fit_is_refused_with_the_librarys_codes() {
    Machine::new().run("cublas::what_does_not_fit_is_refused_with_the_librarys_codes", || {
        let device = Device::open();
        let format = Format::CUDA_R_16BF;
        let (invalid, unsupported) =
            (Status::CUBLAS_STATUS_INVALID_VALUE, Status::CUBLAS_STATUS_NOT_SUPPORTED);
        let refused = |shapes| Product::new(format, shapes).heuristic().err();
        assert_eq!(
            refused([(64, 8, 32), (8, 4, 8), (64, 4, 64)]),
            Some(invalid),
            "a column is longer than its distance"
        );
        assert_eq!(
            refused([(64, 8, 64), (9, 4, 9), (64, 4, 64)]),
            Some(invalid),
            "the sums have two lengths"
        );
        assert_eq!(refused([(64, 8, 64), (8, 4, 8), (64, 5, 64)]), Some(invalid), "D has another shape");
        assert_eq!(
            lt::create_matrix_layout(Format::CUDA_R_64F, 8, 8, 8).err().map(|error| error.0),
            Some(unsupported)
        );

        let product = Product::new(format, [(64, 8, 64), (8, 4, 8), (64, 4, 64)]);
        let memory = Buffer::new(1 << 21);
        let [a, b, d, space] = [0, 1, 2, 3].map(|index| memory.address + (index << 18));
        product.allow_workspace(1 << 20);
        let result = product.heuristic().expect("the shapes fit");
        let run = |places, workspace| product.run(&device, [1.0, 0.0], places, Some(&result.algo), workspace);
        assert!(result.workspaceSize > 0, "the first algorithm uses the workspace");
        let bytes = result.workspaceSize;
        let places = [a, b, 0, d];
        assert_eq!(run(places, (space, bytes)), Ok(()));
        assert_eq!(run(places, (space, bytes - 1)), Err(invalid), "too little workspace");
        assert_eq!(run(places, (0, bytes)), Err(invalid), "no workspace");
        assert_eq!(run(places, (space + 8, bytes)), Err(invalid), "workspace without alignment");
        assert_eq!(run([a + 8, b, 0, d], (space, bytes)), Err(invalid), "a matrix without alignment");
        assert_eq!(run([a, b, 0, 0], (space, bytes)), Err(invalid), "no place for the result");
        // SAFETY: the library checks the handle.
        let gone = unsafe { sys::cublasLtDestroy(space as sys::cublasLtHandle_t) };
        assert_eq!(gone, Status::CUBLAS_STATUS_NOT_INITIALIZED);
        // Another product's algorithm.
        product.describe(sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_EPILOGUE, 2_u32);
        assert_eq!(run(places, (space, bytes)), Err(invalid));
        device.synchronize();
    });
}

#[test]
fn a_matrix_in_the_workspace_is_overwritten() {
    Machine::new().run("cublas::a_matrix_in_the_workspace_is_overwritten", || {
        let device = Device::open();
        let product = Product::new(Format::CUDA_R_32F, [(4, 4, 4), (4, 4, 4), (4, 4, 4)]);
        product.allow_workspace(1 << 20);
        let algorithm = product.heuristic().expect("the shapes fit").algo;
        let (a, d, space) = (Buffer::of(&[1.0_f32; 16]), Buffer::new(64), Buffer::new(1 << 20));
        let sums = |b: u64| {
            product
                .run(
                    &device,
                    [1.0, 0.0],
                    [a.address, b, 0, d.address],
                    Some(&algorithm),
                    (space.address, 1 << 20),
                )
                .expect("it is queued");
            device.synchronize();
            d.read::<f32>(16)
        };
        assert_eq!(sums(a.address), [4.0; 16]);
        assert!(sums(space.address + 4096).iter().all(|value| value.is_nan()), "it lies in the workspace");
    });
}

#[test]
fn a_matrix_that_is_not_mapped_faults_the_context() {
    let _ = Machine::new().run_to_fault("cublas::a_matrix_that_is_not_mapped_faults_the_context", || {
        let device = Device::open();
        let product = Product::new(Format::CUDA_R_32F, [(4, 4, 4), (4, 4, 4), (4, 4, 4)]);
        let mut range = 0;
        crate::device::cu!(cuMemAddressReserve(&mut range, 1 << 21, 0, 0, 0));
        product.run(&device, [1.0, 0.0], [range, range, 0, range], None, (0, 0)).expect("it is queued");
        assert_eq!(device.outcome() as u32, 700);
        // A context with a fault cannot release: the process that ends does.
        drop(product);
        let free = crate::device::result_of!(cuMemAddressFree(range, 1 << 21));
        assert_eq!(free as u32, 700);
    });
}
