//! Vector kernels over 16 lanes of f32, with one order of summation.
//!
//! Each kernel is written once over [`Lanes`] and compiled for each instruction set; the process chooses the set once
//! ([`Isa::best`]). A vector has 16 lanes *everywhere* (one AVX-512 register, two AVX2, four NEON), every multiply-add
//! is fused if the processor supports it, and lanes are folded in one fixed tree, so AVX-512, AVX2 and NEON give the
//! same bits. Only the portable path on x86 without FMA rounds differently.
//!
//! **Matrix units.** AMX adds products of bfloat16 in its own order ([`Isa::Amx`]). Its bits are as independent of the
//! batch, but differ from the other sets.
//!
//! **bfloat16.** A product of bfloat16 weights rounds activations to bfloat16 and adds in f32, two products per lane.
//! `vdpbf16ps` does that in one instruction, the other sets in two fused multiply-adds with the same bits (except for
//! numbers below 2^-126, which the instruction treats as zero). Between products, activations are f32.
//!
//! **Order of summation.** Each output element of a matrix product has one 16-lane accumulator that runs over `k` in
//! order. Missing lanes of the tail are zero. The lanes are folded 8 + 8, 4 + 4, 2 + 2, 1 + 1. The order does not
//! depend on the batch, the tile, the thread or the chunk.

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod element;
mod lanes;
pub mod math;
pub mod matmul;
mod portable;
pub mod product;
#[cfg(test)]
mod tests;
mod tile;

pub use element::{Dot, Element, Widened};
pub use lanes::{Kernel, LANES, Lanes, PAIRED};

use std::sync::OnceLock;

/// An instruction set with its own build of the kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// [`Isa::Avx512Bf16`] plus products of bfloat16 on the matrix unit. Its bits differ from the other sets.
    Amx,
    /// [`Isa::Avx512`] plus BF16: one instruction multiplies and adds pairs of bfloat16.
    Avx512Bf16,
    /// AVX-512 F, BW, DQ and VL: all server processors with AVX-512 since 2017.
    Avx512,
    /// AVX2, FMA and F16C.
    Avx2,
    /// The baseline of the target: NEON on Arm, SSE2 on x86.
    Baseline,
}

impl Isa {
    /// Returns the fastest set of this processor; constant within a process.
    pub fn best() -> Isa {
        static BEST: OnceLock<Isa> = OnceLock::new();
        *BEST.get_or_init(|| Isa::available()[0])
    }

    /// Returns all sets of this processor, fastest first.
    pub fn available() -> Vec<Isa> {
        let all = [Isa::Amx, Isa::Avx512Bf16, Isa::Avx512, Isa::Avx2, Isa::Baseline];
        all.into_iter().filter(|isa| isa.is_supported()).collect()
    }

    #[cfg(target_arch = "x86_64")]
    fn is_supported(self) -> bool {
        match self {
            Isa::Amx => Isa::Avx512Bf16.is_supported() && amx::is_supported(),
            Isa::Avx512Bf16 => is_x86_feature_detected!("avx512bf16") && Isa::Avx512.is_supported(),
            Isa::Avx512 => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
                    && Isa::Avx2.is_supported()
            }
            Isa::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            Isa::Baseline => true,
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn is_supported(self) -> bool {
        self == Isa::Baseline
    }

    /// Runs `kernel` on this instruction set.
    ///
    /// # Safety
    /// The kernel's own contract (its pointers) holds.
    ///
    /// # Panics
    /// In debug builds, if the processor lacks the set.
    pub unsafe fn run<K: Kernel>(self, kernel: K) -> K::Output {
        debug_assert!(self.is_supported(), "{self:?} is not supported by this processor");
        match self {
            // SAFETY: every value of `Isa` other than `Baseline` is from `available`, so the processor has the set; the
            // caller upholds the kernel's contract.
            #[cfg(target_arch = "x86_64")]
            Isa::Amx => match unsafe { kernel.run_amx() } {
                Ok(output) => output,
                // SAFETY: as above; the set includes AVX-512 BF16.
                Err(kernel) => unsafe { avx512::enter_bf16(kernel) },
            },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Bf16 => unsafe { avx512::enter_bf16(kernel) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => unsafe { avx512::enter(kernel) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => unsafe { avx2::enter(kernel) },
            // SAFETY: the portable path needs no processor feature; the caller upholds the kernel's contract.
            _ => unsafe { kernel.run::<portable::Array>() },
        }
    }
}
