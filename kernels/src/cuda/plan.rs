//! A launch as a value, and the modules that have the kernels.

use sluice_link::model::Dtype;
use thiserror::Error;

/// A module: one source of `kernels/cuda`, compiled to PTX.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Module {
    /// Attention in bf16.
    AttentionBf16,
    /// Attention in f16.
    AttentionF16,
    /// Attention in f32, without tensor cores.
    AttentionF32,
    /// The merge of attention's splits.
    AttentionMerge,
    /// Epilogues of products that another library has computed.
    Elementwise,
    /// Embeddings.
    Embedding,
    /// Products on tensor cores.
    Gemm,
    /// Products in f32, without tensor cores.
    GemmF32,
    /// Copies of layer-blocks, fills, and what waits for generations and checks them.
    Memory,
    /// Norms.
    Norm,
    /// Rotary positions and the write of K and V.
    Rope,
    /// The largest logits.
    Sampling,
}

impl Module {
    /// Every module.
    pub const ALL: [Module; 12] = [
        Module::AttentionBf16,
        Module::AttentionF16,
        Module::AttentionF32,
        Module::AttentionMerge,
        Module::Elementwise,
        Module::Embedding,
        Module::Gemm,
        Module::GemmF32,
        Module::Memory,
        Module::Norm,
        Module::Rope,
        Module::Sampling,
    ];

    /// Returns the names of the module's kernels.
    pub fn kernels(self) -> impl Iterator<Item = &'static str> {
        let entries = self.ptx().split(".visible .entry ").skip(1);
        entries.filter_map(|rest| rest.split_once('(')).map(|(name, _)| name)
    }

    /// Returns the module's PTX, for compute capability 8.0 and later.
    pub fn ptx(self) -> &'static str {
        match self {
            Module::AttentionBf16 => include_str!("../../cuda/attention_bf16.ptx"),
            Module::AttentionF16 => include_str!("../../cuda/attention_f16.ptx"),
            Module::AttentionF32 => include_str!("../../cuda/attention_f32.ptx"),
            Module::AttentionMerge => include_str!("../../cuda/attention_merge.ptx"),
            Module::Elementwise => include_str!("../../cuda/elementwise.ptx"),
            Module::Embedding => include_str!("../../cuda/embedding.ptx"),
            Module::Gemm => include_str!("../../cuda/gemm.ptx"),
            Module::GemmF32 => include_str!("../../cuda/gemm_f32.ptx"),
            Module::Memory => include_str!("../../cuda/memory.ptx"),
            Module::Norm => include_str!("../../cuda/norm.ptx"),
            Module::Rope => include_str!("../../cuda/rope.ptx"),
            Module::Sampling => include_str!("../../cuda/sampling.ptx"),
        }
    }
}

/// One launch of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchPlan {
    /// Where the kernel is.
    pub module: Module,
    /// Its name there.
    pub kernel: &'static str,
    /// Blocks of the grid.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory. No kernel needs any so far.
    pub shared_bytes: u32,
    /// The kernel's argument, byte for byte.
    pub params: Vec<u8>,
}

impl LaunchPlan {
    /// A launch with one argument.
    pub(super) fn new<A: bytemuck::Pod>(
        (module, kernel): (Module, &'static str),
        grid: [u32; 3],
        threads: u32,
        argument: &A,
    ) -> Self {
        let params = bytemuck::bytes_of(argument).to_vec();
        LaunchPlan { module, kernel, grid, block: [threads, 1, 1], shared_bytes: 0, params }
    }
}

/// A shape that no kernel serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ShapeError {
    /// A size is not a multiple of what the kernel reads at once.
    #[error("the CUDA kernels need a multiple of {unit} as {what}, which is {value}")]
    NotAMultiple {
        /// Name of the size.
        what: &'static str,
        /// The size.
        value: u32,
        /// What must divide it.
        unit: u32,
    },
    /// A size is beyond the widest kernel.
    #[error("the CUDA kernels serve at most {limit} as {what}, which is {value}")]
    TooLarge {
        /// Name of the size.
        what: &'static str,
        /// The size.
        value: u32,
        /// The largest possible one.
        limit: u32,
    },
    /// No kernel has these number formats.
    #[error("the CUDA kernels have no {what} from {input:?} to {output:?}")]
    Formats {
        /// Name of the operation.
        what: &'static str,
        /// Format of weights and inputs.
        input: Dtype,
        /// Format of results.
        output: Dtype,
    },
}

/// Requires that `unit` divides `value`.
pub(super) fn multiple(what: &'static str, value: u32, unit: u32) -> Result<(), ShapeError> {
    if value.is_multiple_of(unit) { Ok(()) } else { Err(ShapeError::NotAMultiple { what, value, unit }) }
}

/// Blocks of `threads` threads for `count` units of work, one a thread.
///
/// # Panics
/// If there are more than 2^31 - 1 blocks. No step has that many.
pub(super) fn blocks(count: u64, threads: u32) -> u32 {
    let blocks = count.div_ceil(u64::from(threads));
    assert!(blocks < 1 << 31, "{blocks} blocks are more than a grid has");
    blocks as u32
}
