//! Rotary positions and the write of K and V (`rope.cu`).

use sluice_link::model::Dtype;

use super::Address;
use super::arguments::arguments;
use super::memory::KvArena;
use super::plan::{LaunchPlan, Module, ShapeError, blocks, multiple};

arguments! {
    /// Cosines and sines of each row's position, once a step.
    RopeAngles {
        /// `[rows]`, u32, below 2^17.
        positions: Address,
        /// `[pairs]`, f32: [`crate::rope::frequencies`].
        frequencies: Address,
        /// `[rows][2][pairs]`, f32: cosines, then sines.
        angles: Address,
        /// Tokens of the step.
        rows: u32,
        /// Half of the rotated numbers of a head.
        pairs: u32,
    }
}

arguments! {
    /// Rotates queries and keys, rounds queries, K and V, and writes K and V to their layer-block.
    RopeKv {
        /// Where layer-blocks lie.
        arena: KvArena,
        /// `[rows]` x `query_stride`, f32: `[heads][dim]`.
        queries: Address,
        /// `[rows]` x `key_stride`, f32: `[kv_heads][dim]`.
        keys: Address,
        /// `[rows]` x `value_stride`, f32: `[kv_heads][dim]`.
        values: Address,
        /// `[rows][heads][dim]`, in the model's format: queries.
        output: Address,
        /// `[rows][2][rotary / 2]`, f32, or null if `rotary` is 0.
        angles: Address,
        /// `[rows]`, u32.
        positions: Address,
        /// `[rows]`, u32: row of the block table.
        table_rows: Address,
        /// `[..][columns]`, u32: ids of the layer's blocks.
        table: Address,
        /// One u32; if it is not 0, nothing is written.
        stopped: Address,
        /// Ids of a row of the table.
        columns: u32,
        /// Tokens.
        rows: u32,
        /// Query heads.
        heads: u32,
        /// K and V heads.
        kv_heads: u32,
        /// Width of a head.
        dim: u32,
        /// Rotated numbers of a head; 0 where positions are learned.
        rotary: u32,
        /// Numbers from one token's queries to the next.
        query_stride: u32,
        /// Numbers from one token's keys to the next.
        key_stride: u32,
        /// Numbers from one token's values to the next.
        value_stride: u32,
        /// Zero.
        unused: u32,
    }
}

impl RopeAngles {
    /// Plans the launch.
    pub fn plan(&self) -> LaunchPlan {
        let count = u64::from(self.rows) * u64::from(self.pairs);
        LaunchPlan::new((Module::Rope, "sluice_rope_angles"), [blocks(count, 256), 1, 1], 256, self)
    }
}

impl RopeKv {
    /// Plans the launch.
    ///
    /// # Errors
    /// If a width is not a multiple of 8, or a stride not of 4.
    pub fn plan(&self, dtype: Dtype) -> Result<LaunchPlan, ShapeError> {
        multiple("the width of a head", self.dim, 8)?;
        multiple("the rotated width of a head", self.rotary, 8)?;
        for stride in [self.query_stride, self.key_stride, self.value_stride] {
            multiple("the stride of heads", stride, 4)?;
        }
        let kernel = match dtype {
            Dtype::Bf16 => "sluice_rope_kv_bf16",
            Dtype::F16 => "sluice_rope_kv_f16",
            Dtype::F32 => "sluice_rope_kv_f32",
        };
        let row_parts = u64::from(self.heads + 2 * self.kv_heads) * u64::from(self.dim / 8);
        let grid = [blocks(u64::from(self.rows) * row_parts, 256), 1, 1];
        Ok(LaunchPlan::new((Module::Rope, kernel), grid, 256, self))
    }
}
