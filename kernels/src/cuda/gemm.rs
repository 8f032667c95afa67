//! Products of matrices, and the epilogue of products that another library has computed (`gemm.cu`, `gemm_f32.cu`,
//! `elementwise.cu`).

use sluice_link::model::Dtype;

use super::Address;
use super::arguments::arguments;
use super::plan::{LaunchPlan, Module, ShapeError, blocks, multiple};

/// The function of a sum with its bias.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum Activation {
    /// The sum itself.
    #[default]
    None = 0,
    /// `max(x, 0)`
    Relu = 1,
    /// `x / (1 + e^-x)`
    Silu = 2,
    /// GELU by its approximation with tanh.
    GeluTanh = 3,
    /// GELU by the error function.
    GeluErf = 4,
}

/// How a result joins the other matrix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum Join {
    /// There is no other matrix.
    #[default]
    Store = 0,
    /// `other + result` (residual).
    Add = 1,
    /// `other * result` (gated MLP).
    Multiply = 2,
}

arguments! {
    /// What becomes of a sum: `join(other, activation(sum + bias))`.
    Epilogue {
        /// `[columns]`, in the format of the weights, or null.
        bias: Address,
        /// `[rows]` x `other_stride`, f32; may be the output.
        other: Address,
        /// Numbers from one row of the other matrix to the next.
        other_stride: u32,
        /// An [`Activation`].
        activation: u32,
        /// A [`Join`].
        join: u32,
        /// Zero.
        unused: u32,
    }
}

arguments! {
    /// `output = epilogue(input . weights^T)`
    Gemm {
        /// `[rows][k]`, in the format of the weights.
        input: Address,
        /// `[columns][k]`
        weights: Address,
        /// `[rows]` x `output_stride`
        output: Address,
        /// What becomes of each sum.
        epilogue: Epilogue,
        /// Tokens.
        rows: u32,
        /// Rows of the weights.
        columns: u32,
        /// Columns of the weights.
        k: u32,
        /// Numbers from one row of the output to the next.
        output_stride: u32,
    }
}

arguments! {
    /// `output = epilogue(input)`
    Elementwise {
        /// `[rows]` x `input_stride`, f32.
        input: Address,
        /// `[rows]` x `output_stride`; may be the input or the other matrix, if it is f32.
        output: Address,
        /// What becomes of each number.
        epilogue: Epilogue,
        /// Tokens.
        rows: u32,
        /// Numbers of a row.
        columns: u32,
        /// Numbers from one row of the input to the next.
        input_stride: u32,
        /// Numbers from one row of the output to the next.
        output_stride: u32,
    }
}

impl Epilogue {
    /// An epilogue with a bias (or null) and an activation.
    pub fn new(bias: Address, activation: Activation) -> Self {
        Epilogue { bias, activation: activation as u32, ..Epilogue::default() }
    }

    /// Joins the result with `other`, whose rows are `stride` numbers apart.
    pub fn join(self, join: Join, other: Address, stride: u32) -> Self {
        Epilogue { other, other_stride: stride, join: join as u32, ..self }
    }
}

impl Gemm {
    /// Plans the launch for weights of one format and an output of another.
    ///
    /// # Errors
    /// If no kernel has these formats, or if `k` is not a multiple of 8 on tensor cores.
    pub fn plan(&self, weights: Dtype, output: Dtype) -> Result<LaunchPlan, ShapeError> {
        let (kernel, tile, threads) = match (weights, output) {
            (Dtype::Bf16, Dtype::Bf16) => ((Module::Gemm, "sluice_gemm_bf16_bf16"), 64, 128),
            (Dtype::Bf16, Dtype::F32) => ((Module::Gemm, "sluice_gemm_bf16_f32"), 64, 128),
            (Dtype::F16, Dtype::F16) => ((Module::Gemm, "sluice_gemm_f16_f16"), 64, 128),
            (Dtype::F16, Dtype::F32) => ((Module::Gemm, "sluice_gemm_f16_f32"), 64, 128),
            (Dtype::F32, Dtype::F32) => ((Module::GemmF32, "sluice_gemm_f32"), 32, 256),
            (input, output) => return Err(ShapeError::Formats { what: "product", input, output }),
        };
        if kernel.0 == Module::Gemm {
            multiple("the columns of weights", self.k, 8)?;
        }
        let grid = [self.columns.div_ceil(tile), self.rows.div_ceil(tile), 1];
        Ok(LaunchPlan::new(kernel, grid, threads, self))
    }
}

impl Elementwise {
    /// Plans the launch for a bias of one format and an output of another.
    ///
    /// # Errors
    /// If no kernel has these formats.
    pub fn plan(&self, bias: Dtype, output: Dtype) -> Result<LaunchPlan, ShapeError> {
        let kernel = match (bias, output) {
            (Dtype::Bf16, Dtype::Bf16) => "sluice_elementwise_bf16_bf16",
            (Dtype::Bf16, Dtype::F32) => "sluice_elementwise_bf16_f32",
            (Dtype::F16, Dtype::F16) => "sluice_elementwise_f16_f16",
            (Dtype::F16, Dtype::F32) => "sluice_elementwise_f16_f32",
            (Dtype::F32, Dtype::F32) => "sluice_elementwise_f32_f32",
            (input, output) => return Err(ShapeError::Formats { what: "epilogue", input, output }),
        };
        let count = u64::from(self.rows) * u64::from(self.columns.div_ceil(4));
        Ok(LaunchPlan::new((Module::Elementwise, kernel), [blocks(count, 256), 1, 1], 256, self))
    }
}
