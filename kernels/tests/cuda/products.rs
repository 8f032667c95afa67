//! Products of cuBLASLt. The stand-in has the library; so these run in a process that a test starts.

use std::collections::BTreeMap;

use sluice_kernels::cuda::{CudaModel, Operation, ProductPlan, Products, StepProgram};
use sluice_link::model::{Dtype, ModelSpec};

use super::device::Device;
use super::forward::{one_step, shapes, steps_agree};
use super::tolerances;
use super::values::{Random, assert_close};

#[test]
fn products_of_cublaslt_are_right_and_wrong_ones_are_refused() {
    let stdout =
        super::by_driver(&["cuda::products::by_cublaslt::", "--ignored"], |library| library.with_cublas(12));
    assert!(stdout.contains(" 4 passed"), "{stdout}");
}

fn planned(spec: &ModelSpec, products: Products) -> StepProgram {
    one_step(CudaModel::new(spec.clone(), 1 << 20, 256, 64).unwrap().with_products(products))
}

/// Kernels of a program, and how often each is launched; products of cuBLASLt have no name.
fn counted(program: &StepProgram) -> BTreeMap<&'static str, usize> {
    let mut counted = BTreeMap::new();
    for operation in program.operations() {
        let name = match operation {
            Operation::Launch(launch) => launch.kernel,
            Operation::Product(_) => "",
        };
        *counted.entry(name).or_default() += 1;
    }
    counted
}

#[test]
fn cublaslt_computes_every_product_in_half_precision_and_none_in_f32() {
    for dtype in [Dtype::Bf16, Dtype::F16] {
        let name = if dtype == Dtype::Bf16 { "bf16" } else { "f16" };
        // Products of a layer, and kernels that finish them: the gated values alone, or one for each bias.
        for (spec, (products, rest)) in shapes(dtype).into_iter().zip([(7, 1), (7, 7), (6, 6)]) {
            let layers = usize::from(spec.layers);
            let own = counted(&planned(&spec, Products::Deterministic));
            let gemms = own.iter().filter(|(kernel, _)| kernel.starts_with("sluice_gemm")).map(|(_, n)| n);
            assert_eq!(gemms.sum::<usize>(), layers * products + 1, "the logits are one more");
            let by_library = counted(&planned(&spec, Products::CublasLt));
            assert_eq!(by_library[""], layers * products + 1);
            assert!(!by_library.keys().any(|kernel| kernel.starts_with("sluice_gemm")), "{by_library:?}");
            let finished =
                [format!("sluice_elementwise_{name}_f32"), format!("sluice_elementwise_{name}_{name}")]
                    .map(|kernel| by_library.get(kernel.as_str()).copied().unwrap_or(0));
            assert_eq!(finished.iter().sum::<usize>(), layers * rest, "{by_library:?}");
            assert_eq!(finished[1], layers, "the inner values of the MLP are rounded once");
        }
    }
    let spec = &shapes(Dtype::F32)[0];
    assert_eq!(planned(spec, Products::CublasLt), planned(spec, Products::Deterministic));
}

/// A product of random matrices, and its memory.
struct Case {
    plan: ProductPlan,
    input: Vec<f32>,
    weights: Vec<f32>,
    before: Vec<f32>,
}

impl Case {
    fn new(device: &Device, random: &mut Random, format: Dtype) -> Case {
        let [rows, columns, k] = [random.below(1..80), random.below(1..140), 8 * random.below(1..40)];
        let output_stride = columns + random.below(0..5);
        let input = random.normal(format, (rows * k) as usize);
        let weights = random.normal(format, (columns * k) as usize);
        let before = random.normal(Dtype::F32, (rows * output_stride) as usize);
        let plan = ProductPlan {
            format,
            input: device.upload_as(format, &input),
            weights: device.upload_as(format, &weights),
            output: device.upload(&before),
            rows,
            columns,
            k,
            output_stride,
            adds: random.below(0..2) == 1,
            workspace: device.reserve::<u8>(ProductPlan::WORKSPACE_BYTES as usize),
        };
        Case { plan, input, weights, before }
    }

    /// Compares the output with f64. A sum is off by that of `k` products in any order, and by one rounding more where
    /// it is added to the output.
    fn check(&self, device: &Device) {
        let ProductPlan { rows, columns, k, output_stride, adds, .. } = self.plan;
        let [rows, columns, k, stride] = [rows, columns, k, output_stride].map(|size| size as usize);
        let got: Vec<f32> = device.download(self.plan.output, rows * stride);
        for row in 0..rows {
            let exact = |column: usize| {
                let pairs = self.input[row * k..][..k].iter().zip(&self.weights[column * k..][..k]);
                let products = pairs.map(|(a, b)| f64::from(*a) * f64::from(*b));
                let (sum, magnitude) = products.fold((0.0, 0.0), |(s, m), p: f64| (s + p, m + p.abs()));
                let sum = sum + if adds { f64::from(self.before[row * stride + column]) } else { 0.0 };
                (sum, tolerances::product_sum(k, magnitude) + tolerances::F32 * sum.abs())
            };
            let exact: Vec<_> = (0..columns).map(exact).collect();
            let sums: Vec<_> = exact.iter().map(|(sum, _)| *sum).collect();
            let context = format!("row {row} of {:?}", self.plan);
            assert_close(&context, &got[row * stride..][..columns], &sums, |column| exact[column].1);
            assert_eq!(
                got[row * stride..][columns..stride],
                self.before[row * stride..][columns..stride],
                "what lies between rows stays"
            );
        }
    }
}

/// Cases that the test above starts.
mod by_cublaslt {
    use super::*;

    #[test]
    #[ignore = "started by a test above"]
    fn a_product_is_that_of_f64_within_the_error_of_its_sums() {
        let (device, mut random) = (Device::fast(), Random(51));
        for index in 0..60 {
            let case = Case::new(&device, &mut random, [Dtype::Bf16, Dtype::F16][index % 2]);
            device.operate(&Operation::Product(case.plan));
            case.check(&device);
        }
    }

    #[test]
    #[ignore = "started by a test above"]
    fn a_product_whose_weights_lie_at_an_odd_place_is_computed_too() {
        let (device, mut random) = (Device::fast(), Random(52));
        let mut case = Case::new(&device, &mut random, Dtype::Bf16);
        let mut shifted = vec![0.0];
        shifted.extend(&case.weights);
        case.plan.weights = device.upload_as(Dtype::Bf16, &shifted) + 2;
        device.operate(&Operation::Product(case.plan));
        case.check(&device);
    }

    #[test]
    #[ignore = "started by a test above"]
    fn a_wrong_stride_workspace_or_matrix_is_refused_by_name() {
        let (device, mut random) = (Device::fast(), Random(53));
        let right = Case::new(&device, &mut random, Dtype::Bf16).plan;
        let wrong = [
            ProductPlan { output_stride: right.columns - 1, ..right },
            ProductPlan { workspace: 0, ..right },
            ProductPlan { workspace: right.workspace + 4, ..right },
            ProductPlan { input: 0, ..right },
        ];
        for plan in wrong {
            let refused = device.refused(&Operation::Product(plan));
            assert!(
                refused.contains("cublasLt") && refused.contains("CUBLAS_STATUS_"),
                "{plan:?}: {refused}"
            );
        }
        device.operate(&Operation::Product(right));
    }

    #[test]
    #[ignore = "started by a test above"]
    fn steps_agree_with_the_reference() {
        steps_agree(&[Dtype::F16, Dtype::Bf16], Products::CublasLt);
    }
}
