//! Products of matrices: by our own kernel, or by cuBLASLt with a kernel for the rest of the epilogue.

use sluice_link::activation::cuda::WORKSPACE_BYTES;
use sluice_link::model::Dtype;

use super::Address;
use super::gemm::{Activation, Elementwise, Epilogue, Gemm, Join};
use super::plan::{LaunchPlan, ShapeError};

/// What computes the products of a model in bf16 or f16. Those in f32 are always of our own kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Products {
    /// Our own kernel, in which the order of a sum does not depend on the batch.
    #[default]
    Deterministic,
    /// cuBLASLt, which is faster, and chooses the order of sums by the number of rows.
    CublasLt,
}

/// A product of cuBLASLt: `output = input . weights^T`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProductPlan {
    /// Bf16 or F16: the format of input and weights.
    pub format: Dtype,
    /// `[rows][k]`
    pub input: Address,
    /// `[columns][k]`
    pub weights: Address,
    /// f32 `[rows]` x `output_stride`
    pub output: Address,
    /// Tokens.
    pub rows: u32,
    /// Rows of the weights.
    pub columns: u32,
    /// Columns of the weights.
    pub k: u32,
    /// Numbers from one row of the output to the next.
    pub output_stride: u32,
    /// Whether the product is added to the output.
    pub adds: bool,
    /// [`WORKSPACE_BYTES`] that nothing else uses.
    pub workspace: Address,
}

impl ProductPlan {
    /// Bytes of the workspace.
    pub const WORKSPACE_BYTES: u64 = WORKSPACE_BYTES;
}

/// One piece of a step's work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A kernel of ours.
    Launch(LaunchPlan),
    /// A product of cuBLASLt.
    Product(ProductPlan),
}

impl From<LaunchPlan> for Operation {
    fn from(launch: LaunchPlan) -> Operation {
        Operation::Launch(launch)
    }
}

/// Plans the products of a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProductPlanner {
    pub products: Products,
    /// The model's format.
    pub format: Dtype,
    /// f32 `[chunk][intermediate]`: where sums lie whose results are not f32.
    pub sums: Address,
    /// [`ProductPlan::workspace`]
    pub workspace: Address,
}

impl ProductPlanner {
    /// Plans a product whose output has this format.
    ///
    /// # Errors
    /// If our kernel does not serve it.
    pub fn plan(&self, gemm: &Gemm, output: Dtype) -> Result<Vec<Operation>, ShapeError> {
        let launch = gemm.plan(self.format, output)?;
        if self.products == Products::Deterministic || self.format == Dtype::F32 {
            return Ok(vec![launch.into()]);
        }
        let Gemm { rows, columns, output_stride, epilogue, .. } = *gemm;
        let adds = epilogue.adds_to(gemm.output);
        // Sums stay in f32 until the epilogue rounds them. Only the inner values of the MLP have another format.
        let (sums, sums_stride) = match output {
            Dtype::F32 => (gemm.output, output_stride),
            Dtype::Bf16 | Dtype::F16 => (self.sums, columns),
        };
        let product = ProductPlan {
            format: self.format,
            input: gemm.input,
            weights: gemm.weights,
            output: sums,
            rows,
            columns,
            k: gemm.k,
            output_stride: sums_stride,
            adds,
            workspace: self.workspace,
        };
        let rest = if adds { Epilogue::new(epilogue.bias, Activation::None) } else { epilogue };
        if rest == Epilogue::default() && output == Dtype::F32 {
            return Ok(vec![Operation::Product(product)]);
        }
        let finish = Elementwise {
            input: sums,
            output: gemm.output,
            epilogue: rest,
            rows,
            columns,
            input_stride: sums_stride,
            output_stride,
        };
        Ok(vec![Operation::Product(product), finish.plan(self.format, output)?.into()])
    }
}

impl Epilogue {
    /// Whether the result is a sum and perhaps a bias that is added to the output itself.
    fn adds_to(&self, output: Address) -> bool {
        (self.activation, self.join, self.other) == (Activation::None as u32, Join::Add as u32, output)
    }
}
