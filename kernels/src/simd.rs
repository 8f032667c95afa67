//! Vector kernels over 16 lanes of f32, one order of summation for all.
//!
//! Every kernel is written once over [`Lanes`] and compiled for each instruction set; which one runs is chosen once per
//! process ([`Isa::best`]). A vector has 16 lanes *everywhere* (one AVX-512 register, two AVX2, four NEON), every
//! multiply-add is fused where the processor can, and lanes are folded in one fixed tree, so that AVX-512, AVX2 and
//! NEON give the same bits. Only the portable path of an x86 without FMA rounds differently.
//!
//! **Matrix units.** AMX adds up products of bfloat16 in an order of its own ([`Isa::Amx`]): as independent of the batch, but
//! not with the bits of the other sets.
//!
//! **bfloat16.** A product of bfloat16 weights takes activations rounded to bfloat16 and adds in f32, two products to a
//! lane. `vdpbf16ps` does that in one instruction, the other sets in two fused multiply-adds with the same bits (but for
//! numbers below 2^-126, which the instruction takes for zero). Between products activations are f32.
//!
//! **Order of summation.** An output element of a matrix product owns one 16-lane accumulator that walks `k` in order;
//! the tail is loaded with zeros in the missing lanes; the lanes are folded 8 + 8, 4 + 4, 2 + 2, 1 + 1. Nothing about
//! the batch, the tile, the thread or the chunk enters into it (DESIGN 7).

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
#[cfg(test)]
mod tests;
mod tile;

pub use element::{Dot, Element, Widened};
pub use lanes::{LANES, Lanes, PAIRED};

use std::sync::OnceLock;

/// An instruction set with its own build of the kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// [`Isa::Avx512Bf16`], and products of bfloat16 on the matrix unit. Their bits are not those of the other sets.
    Amx,
    /// [`Isa::Avx512`] with BF16: pairs of bfloat16 are multiplied and added by one instruction.
    Avx512Bf16,
    /// AVX-512 F, BW, DQ and VL: every server processor with AVX-512 since 2017.
    Avx512,
    /// AVX2, FMA and F16C.
    Avx2,
    /// Whatever the target has without asking: NEON on Arm, SSE2 on x86.
    Baseline,
}

impl Isa {
    /// The fastest set of this processor; the same answer for the life of the process.
    pub fn best() -> Isa {
        static BEST: OnceLock<Isa> = OnceLock::new();
        *BEST.get_or_init(|| Isa::available()[0])
    }

    /// All sets of this processor, fastest first.
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
    /// When the processor lacks the set.
    pub unsafe fn run<K: Kernel>(self, kernel: K) -> K::Output {
        debug_assert!(self.is_supported(), "{self:?} is not supported by this processor");
        match self {
            // SAFETY: a value of `Isa` other than `Baseline` comes from `available`; the rest is the caller's.
            #[cfg(target_arch = "x86_64")]
            Isa::Amx => unsafe { kernel.run_amx() },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Bf16 => unsafe { avx512::enter_bf16(kernel) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => unsafe { avx512::enter(kernel) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => unsafe { avx2::enter(kernel) },
            // SAFETY: needs no feature; the rest is the caller's.
            _ => unsafe { kernel.run::<portable::Array>() },
        }
    }
}

/// Code compiled once for each instruction set. `run` must be `#[inline(always)]`, as must all it calls that takes
/// [`Lanes`]: only then is it compiled with the features of the set.
pub trait Kernel {
    /// What it returns.
    type Output;

    /// The code.
    ///
    /// # Safety
    /// The processor supports `V`, and the kernel's pointers are valid as its type says.
    unsafe fn run<V: Lanes>(self) -> Self::Output;

    /// The code on a processor with a matrix unit: the same, where it has no use for one.
    ///
    /// # Safety
    /// The processor supports [`Isa::Amx`], and the kernel's pointers are valid as its type says.
    #[cfg(target_arch = "x86_64")]
    unsafe fn run_amx(self) -> Self::Output
    where
        Self: Sized,
    {
        // SAFETY: the caller's.
        unsafe { avx512::enter_bf16(self) }
    }
}
