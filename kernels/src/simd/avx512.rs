//! The AVX-512 path: one register, with or without the bfloat16 instructions.

#![allow(clippy::undocumented_unsafe_blocks, reason = "each is one intrinsic under the contract of `Lanes`")]

use std::arch::x86_64::*;

use super::{Kernel, Lanes};

/// # Safety
/// The processor has AVX-512 F, BW, DQ and VL, AVX2, FMA and F16C; the kernel's contract holds.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
pub(super) unsafe fn enter<K: Kernel>(kernel: K) -> K::Output {
    unsafe { kernel.run::<Register<false>>() }
}

/// # Safety
/// As for [`enter`], and the processor has AVX-512 BF16.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
pub(super) unsafe fn enter_bf16<K: Kernel>(kernel: K) -> K::Output {
    unsafe { kernel.run::<Register<true>>() }
}

/// 16 lanes. `BF16`: the processor multiplies pairs of bfloat16.
#[derive(Clone, Copy)]
pub(super) struct Register<const BF16: bool>(pub(super) __m512);

#[inline(always)]
fn mask(count: usize) -> __mmask16 {
    ((1_u32 << count) - 1) as __mmask16
}

/// Returns the second numbers of pairs, then the first ones, widened.
#[inline(always)]
unsafe fn widen_pairs(pairs: __m512i) -> (__m512, __m512) {
    unsafe {
        let second = _mm512_and_si512(pairs, _mm512_set1_epi32(0xffff_0000_u32 as i32));
        (_mm512_castsi512_ps(second), _mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs)))
    }
}

impl<const BF16: bool> Lanes for Register<BF16> {
    const MANY_REGISTERS: bool = true;
    type Pairs = __m512i;

    // `inline(never)` on `enter` is not enough: since rust-lang/rust#145932 a function with target features loses it
    // when its caller has no target features in the source, and LLVM inlines it.
    #[inline(never)]
    unsafe fn outlined<K: Kernel>(kernel: K) -> K::Output {
        unsafe { if BF16 { enter_bf16(kernel) } else { enter(kernel) } }
    }

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        unsafe { Register(_mm512_set1_ps(value)) }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        unsafe { Register(_mm512_loadu_ps(from)) }
    }

    #[inline(always)]
    unsafe fn load_first(from: *const f32, count: usize) -> Self {
        unsafe { Register(_mm512_maskz_loadu_ps(mask(count), from)) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        unsafe { _mm512_storeu_ps(to, self.0) }
    }

    #[inline(always)]
    unsafe fn store_first(self, to: *mut f32, count: usize) {
        unsafe { _mm512_mask_storeu_ps(to, mask(count), self.0) }
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Self {
        unsafe { Register(_mm512_cvtph_ps(_mm256_loadu_si256(from.cast()))) }
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> Self {
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
            Register(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide)))
        }
    }

    #[inline(always)]
    unsafe fn load_pairs(from: *const u16) -> Self::Pairs {
        unsafe { _mm512_loadu_si512(from.cast()) }
    }

    #[inline(always)]
    unsafe fn prefetch(address: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
    }

    #[inline(always)]
    unsafe fn prefetch_later(address: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T1>(address.cast()) }
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        unsafe { Register(_mm512_add_ps(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        unsafe { Register(_mm512_sub_ps(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        unsafe { Register(_mm512_mul_ps(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn div(self, other: Self) -> Self {
        unsafe { Register(_mm512_div_ps(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn mul_add(self, factor: Self, addend: Self) -> Self {
        unsafe { Register(_mm512_fmadd_ps(self.0, factor.0, addend.0)) }
    }

    #[inline(always)]
    unsafe fn dot_pairs(self, a: Self::Pairs, b: Self::Pairs) -> Self {
        unsafe {
            if BF16 {
                let bf16 = |pairs| std::mem::transmute::<__m512i, __m512bh>(pairs);
                return Register(_mm512_dpbf16_ps(self.0, bf16(a), bf16(b)));
            }
            let ((a1, a0), (b1, b0)) = (widen_pairs(a), widen_pairs(b));
            Register(_mm512_fmadd_ps(a0, b0, _mm512_fmadd_ps(a1, b1, self.0)))
        }
    }

    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        unsafe { Register(_mm512_max_ps(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn min(self, other: Self) -> Self {
        unsafe { Register(_mm512_min_ps(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn round(self) -> Self {
        const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
        unsafe { Register(_mm512_roundscale_ps::<NEAREST>(self.0)) }
    }

    #[inline(always)]
    unsafe fn times_power_of_two(self, power: Self) -> Self {
        unsafe { Register(_mm512_scalef_ps(self.0, power.0)) }
    }

    #[inline(always)]
    unsafe fn first_or(self, count: usize, other: Self) -> Self {
        unsafe { Register(_mm512_mask_blend_ps(mask(count), other.0, self.0)) }
    }

    #[inline(always)]
    unsafe fn fold4([Register(a), Register(b), Register(c), Register(d)]: [Self; 4]) -> [f32; 4] {
        unsafe {
            // Quarters of two vectors next to each other: [a0+a2, a1+a3, b0+b2, b1+b3].
            let ab = _mm512_add_ps(_mm512_shuffle_f32x4::<0x44>(a, b), _mm512_shuffle_f32x4::<0xee>(a, b));
            let cd = _mm512_add_ps(_mm512_shuffle_f32x4::<0x44>(c, d), _mm512_shuffle_f32x4::<0xee>(c, d));
            // One quarter per vector.
            let quarters =
                _mm512_add_ps(_mm512_shuffle_f32x4::<0x88>(ab, cd), _mm512_shuffle_f32x4::<0xdd>(ab, cd));
            let pairs = _mm512_add_ps(quarters, _mm512_permute_ps::<0b01_00_11_10>(quarters));
            let sums = _mm512_add_ps(pairs, _mm512_permute_ps::<0b10_11_00_01>(pairs));
            let gathered = _mm512_maskz_compress_ps(0x1111, sums);
            let mut out = [0.0; 4];
            _mm_storeu_ps(out.as_mut_ptr(), _mm512_castps512_ps128(gathered));
            out
        }
    }

    #[inline(always)]
    unsafe fn fold_max(self) -> f32 {
        unsafe { _mm512_reduce_max_ps(self.0) }
    }
}
