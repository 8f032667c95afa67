//! The AVX2 path: two registers, with lanes 0 to 7 and 8 to 15.

#![allow(clippy::undocumented_unsafe_blocks, reason = "each is one intrinsic under the contract of `Lanes`")]

use std::arch::x86_64::*;

use super::{Kernel, LANES, Lanes};

/// # Safety
/// The processor has AVX2, FMA and F16C; the kernel's contract holds.
#[inline(never)]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn enter<K: Kernel>(kernel: K) -> K::Output {
    unsafe { kernel.run::<Pair>() }
}

/// Lanes 0 to 7, lanes 8 to 15.
#[derive(Clone, Copy)]
pub(super) struct Pair(__m256, __m256);

#[inline(always)]
unsafe fn widen_bf16(from: *const u16) -> __m256 {
    unsafe {
        let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
    }
}

#[inline(always)]
unsafe fn power_of_two(power: __m256) -> __m256 {
    unsafe {
        let biased = _mm256_add_epi32(_mm256_cvtps_epi32(power), _mm256_set1_epi32(127));
        _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased))
    }
}

#[inline(always)]
unsafe fn halves(vector: __m256) -> (__m128, __m128) {
    unsafe { (_mm256_castps256_ps128(vector), _mm256_extractf128_ps::<1>(vector)) }
}

/// Returns the second numbers of pairs, then the first ones, widened.
#[inline(always)]
unsafe fn widen_pairs(pairs: __m256i) -> (__m256, __m256) {
    unsafe {
        let second = _mm256_and_si256(pairs, _mm256_set1_epi32(0xffff_0000_u32 as i32));
        (_mm256_castsi256_ps(second), _mm256_castsi256_ps(_mm256_slli_epi32::<16>(pairs)))
    }
}

#[inline(always)]
unsafe fn dot_pairs(sum: __m256, a: __m256i, b: __m256i) -> __m256 {
    unsafe {
        let ((a1, a0), (b1, b0)) = (widen_pairs(a), widen_pairs(b));
        _mm256_fmadd_ps(a0, b0, _mm256_fmadd_ps(a1, b1, sum))
    }
}

impl Lanes for Pair {
    const MANY_REGISTERS: bool = false;
    type Pairs = (__m256i, __m256i);

    // `inline(never)` on `enter` is not enough: since rust-lang/rust#145932 a function with target features loses it
    // when its caller has no target features in the source, and LLVM inlines it.
    #[inline(never)]
    unsafe fn outlined<K: Kernel>(kernel: K) -> K::Output {
        unsafe { enter(kernel) }
    }

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        unsafe { Pair(_mm256_set1_ps(value), _mm256_set1_ps(value)) }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        unsafe { Pair(_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))) }
    }

    #[inline(always)]
    unsafe fn load_first(from: *const f32, count: usize) -> Self {
        unsafe {
            let mut lanes = [0.0_f32; LANES];
            from.copy_to_nonoverlapping(lanes.as_mut_ptr(), count);
            Self::load(lanes.as_ptr())
        }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        unsafe {
            _mm256_storeu_ps(to, self.0);
            _mm256_storeu_ps(to.add(8), self.1);
        }
    }

    #[inline(always)]
    unsafe fn store_first(self, to: *mut f32, count: usize) {
        unsafe {
            let mut lanes = [0.0_f32; LANES];
            self.store(lanes.as_mut_ptr());
            to.copy_from_nonoverlapping(lanes.as_ptr(), count);
        }
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Self {
        unsafe {
            let (low, high) = (_mm_loadu_si128(from.cast()), _mm_loadu_si128(from.add(8).cast()));
            Pair(_mm256_cvtph_ps(low), _mm256_cvtph_ps(high))
        }
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> Self {
        unsafe { Pair(widen_bf16(from), widen_bf16(from.add(8))) }
    }

    #[inline(always)]
    unsafe fn load_pairs(from: *const u16) -> Self::Pairs {
        unsafe { (_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(LANES).cast())) }
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
        unsafe { Pair(_mm256_add_ps(self.0, other.0), _mm256_add_ps(self.1, other.1)) }
    }

    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        unsafe { Pair(_mm256_sub_ps(self.0, other.0), _mm256_sub_ps(self.1, other.1)) }
    }

    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        unsafe { Pair(_mm256_mul_ps(self.0, other.0), _mm256_mul_ps(self.1, other.1)) }
    }

    #[inline(always)]
    unsafe fn div(self, other: Self) -> Self {
        unsafe { Pair(_mm256_div_ps(self.0, other.0), _mm256_div_ps(self.1, other.1)) }
    }

    #[inline(always)]
    unsafe fn mul_add(self, factor: Self, addend: Self) -> Self {
        unsafe {
            Pair(_mm256_fmadd_ps(self.0, factor.0, addend.0), _mm256_fmadd_ps(self.1, factor.1, addend.1))
        }
    }

    #[inline(always)]
    unsafe fn dot_pairs(self, a: Self::Pairs, b: Self::Pairs) -> Self {
        unsafe { Pair(dot_pairs(self.0, a.0, b.0), dot_pairs(self.1, a.1, b.1)) }
    }

    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        unsafe { Pair(_mm256_max_ps(self.0, other.0), _mm256_max_ps(self.1, other.1)) }
    }

    #[inline(always)]
    unsafe fn min(self, other: Self) -> Self {
        unsafe { Pair(_mm256_min_ps(self.0, other.0), _mm256_min_ps(self.1, other.1)) }
    }

    #[inline(always)]
    unsafe fn round(self) -> Self {
        const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
        unsafe { Pair(_mm256_round_ps::<NEAREST>(self.0), _mm256_round_ps::<NEAREST>(self.1)) }
    }

    #[inline(always)]
    unsafe fn times_power_of_two(self, power: Self) -> Self {
        unsafe { self.mul(Pair(power_of_two(power.0), power_of_two(power.1))) }
    }

    #[inline(always)]
    unsafe fn first_or(self, count: usize, other: Self) -> Self {
        unsafe {
            let mut lanes = [0.0_f32; LANES];
            other.store(lanes.as_mut_ptr());
            self.store_first(lanes.as_mut_ptr(), count);
            Self::load(lanes.as_ptr())
        }
    }

    #[inline(always)]
    unsafe fn fold4([a, b, c, d]: [Self; 4]) -> [f32; 4] {
        unsafe { [fold(a), fold(b), fold(c), fold(d)] }
    }

    #[inline(always)]
    unsafe fn fold_max(self) -> f32 {
        unsafe {
            let mut lanes = [0.0_f32; LANES];
            self.store(lanes.as_mut_ptr());
            lanes.into_iter().fold(f32::NEG_INFINITY, f32::max)
        }
    }
}

#[inline(always)]
unsafe fn fold(vector: Pair) -> f32 {
    unsafe {
        let (low, high) = halves(_mm256_add_ps(vector.0, vector.1));
        let quarter = _mm_add_ps(low, high);
        let pair = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
        _mm_cvtss_f32(_mm_add_ss(pair, _mm_shuffle_ps::<1>(pair, pair)))
    }
}
