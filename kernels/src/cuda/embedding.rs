//! Embeddings (`embedding.cu`).

use sluice_link::model::Dtype;

use super::Address;
use super::arguments::arguments;
use super::plan::{LaunchPlan, Module, ShapeError, multiple};

arguments! {
    /// `output[row] = table[token] * scale`, plus a learned position.
    Embed {
        /// `[vocabulary][width]`, in the model's format.
        table: Address,
        /// `[positions + offset][width]`, or null.
        learned: Address,
        /// `[rows][width]`, f32.
        output: Address,
        /// `[rows]`, u32.
        tokens: Address,
        /// `[rows]`, u32.
        positions: Address,
        /// Numbers of a row.
        width: u32,
        /// Unused rows of the learned positions (2 in OPT).
        offset: u32,
        /// Factor of the token's row (1 but in Gemma).
        scale: f32,
        /// Zero.
        unused: u32,
    }
}

impl Embed {
    /// Plans the launch for `rows` tokens.
    ///
    /// # Errors
    /// If the width is not a multiple of 4.
    pub fn plan(&self, dtype: Dtype, rows: u32) -> Result<LaunchPlan, ShapeError> {
        multiple("the width of a row", self.width, 4)?;
        let kernel = match dtype {
            Dtype::Bf16 => "sluice_embed_bf16",
            Dtype::F16 => "sluice_embed_f16",
            Dtype::F32 => "sluice_embed_f32",
        };
        Ok(LaunchPlan::new((Module::Embedding, kernel), [rows, 1, 1], 256, self))
    }
}
