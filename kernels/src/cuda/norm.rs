//! Norms of rows (`norm.cu`).

use sluice_link::model::Dtype;

use super::Address;
use super::arguments::arguments;
use super::plan::{LaunchPlan, Module, ShapeError, multiple};

arguments! {
    /// RMSNorm, or LayerNorm where there is a bias. With heads as rows it is the norm of queries or keys.
    Norm {
        /// `[..][width]`, f32.
        input: Address,
        /// Like the input, f32: added to it first, in place; or null.
        addend: Address,
        /// `[width]`, in the model's format.
        weight: Address,
        /// `[width]`, in the model's format, or null.
        bias: Address,
        /// `[rows][width]`; may be the input if both are f32.
        output: Address,
        /// `[rows]`, u32: the input's row of each output row; or null for the same row.
        rows: Address,
        /// Numbers of a row.
        width: u32,
        /// Added to the variance.
        epsilon: f32,
        /// Added to the weight (1 in Gemma).
        gain_offset: f32,
        /// Zero.
        unused: u32,
    }
}

impl Norm {
    /// Plans the launch for `rows` output rows of format `output`.
    ///
    /// # Errors
    /// If the width is not a multiple of 4, or no kernel has these formats.
    pub fn plan(&self, weights: Dtype, output: Dtype, rows: u32) -> Result<LaunchPlan, ShapeError> {
        multiple("the width of a norm", self.width, 4)?;
        let kernel = match (weights, output) {
            (Dtype::Bf16, Dtype::Bf16) => "sluice_norm_bf16_bf16",
            (Dtype::Bf16, Dtype::F32) => "sluice_norm_bf16_f32",
            (Dtype::F16, Dtype::F16) => "sluice_norm_f16_f16",
            (Dtype::F16, Dtype::F32) => "sluice_norm_f16_f32",
            (Dtype::F32, Dtype::F32) => "sluice_norm_f32_f32",
            (input, output) => return Err(ShapeError::Formats { what: "norm", input, output }),
        };
        // The order of a sum depends on the number of threads, so that is a function of the width alone.
        let threads = (self.width / 4).next_multiple_of(32).clamp(32, 256);
        Ok(LaunchPlan::new((Module::Norm, kernel), [rows, 1, 1], threads, self))
    }
}
