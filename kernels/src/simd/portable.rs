//! The portable path: an array of 16 f32 that the compiler vectorizes for the target's baseline, as four NEON registers
//! on Arm or four SSE2 registers on x86.

#![allow(clippy::needless_range_loop, reason = "an index over several register arrays at once")]
#![allow(clippy::undocumented_unsafe_blocks, reason = "raw loads and stores under the contract of `Lanes`")]

use half::{bf16, f16};

use super::{Kernel, LANES, Lanes};

#[derive(Clone, Copy)]
pub(super) struct Array([f32; LANES]);

#[inline(always)]
fn each(a: Array, b: Array, combine: impl Fn(f32, f32) -> f32) -> Array {
    let mut out = [0.0; LANES];
    for lane in 0..LANES {
        out[lane] = combine(a.0[lane], b.0[lane]);
    }
    Array(out)
}

/// Computes `a * b + c`, fused only if that is one instruction: a library call per lane would be far too slow.
#[inline(always)]
fn multiply_add(a: f32, b: f32, c: f32) -> f32 {
    if cfg!(any(target_arch = "aarch64", target_feature = "fma")) { a.mul_add(b, c) } else { a * b + c }
}

#[inline(always)]
fn fold(lanes: [f32; LANES]) -> f32 {
    let mut sums = lanes;
    for width in [8, 4, 2, 1] {
        for lane in 0..width {
            sums[lane] += sums[lane + width];
        }
    }
    sums[0]
}

impl Lanes for Array {
    const MANY_REGISTERS: bool = cfg!(target_arch = "aarch64");
    type Pairs = [u32; LANES];

    #[inline(never)]
    unsafe fn outlined<K: Kernel>(kernel: K) -> K::Output {
        unsafe { kernel.run::<Array>() }
    }

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        Array([value; LANES])
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        unsafe { Array(from.cast::<[f32; LANES]>().read_unaligned()) }
    }

    #[inline(always)]
    unsafe fn load_first(from: *const f32, count: usize) -> Self {
        unsafe {
            let mut lanes = [0.0; LANES];
            from.copy_to_nonoverlapping(lanes.as_mut_ptr(), count);
            Array(lanes)
        }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        unsafe { to.cast::<[f32; LANES]>().write_unaligned(self.0) }
    }

    #[inline(always)]
    unsafe fn store_first(self, to: *mut f32, count: usize) {
        unsafe { to.copy_from_nonoverlapping(self.0.as_ptr(), count) }
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Self {
        unsafe {
            Array(from.cast::<[u16; LANES]>().read_unaligned().map(|bits| f16::from_bits(bits).to_f32()))
        }
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> Self {
        unsafe {
            Array(from.cast::<[u16; LANES]>().read_unaligned().map(|bits| bf16::from_bits(bits).to_f32()))
        }
    }

    #[inline(always)]
    unsafe fn load_pairs(from: *const u16) -> Self::Pairs {
        unsafe { from.cast::<[u32; LANES]>().read_unaligned().map(u32::from_le) }
    }

    #[inline(always)]
    unsafe fn prefetch(_address: *const u8) {}

    #[inline(always)]
    unsafe fn prefetch_later(_address: *const u8) {}

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        each(self, other, |a, b| a + b)
    }

    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        each(self, other, |a, b| a - b)
    }

    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        each(self, other, |a, b| a * b)
    }

    #[inline(always)]
    unsafe fn div(self, other: Self) -> Self {
        each(self, other, |a, b| a / b)
    }

    #[inline(always)]
    unsafe fn mul_add(self, factor: Self, addend: Self) -> Self {
        let mut out = [0.0; LANES];
        for lane in 0..LANES {
            out[lane] = multiply_add(self.0[lane], factor.0[lane], addend.0[lane]);
        }
        Array(out)
    }

    #[inline(always)]
    unsafe fn dot_pairs(self, a: Self::Pairs, b: Self::Pairs) -> Self {
        let (second, first) =
            (|pair: u32| f32::from_bits(pair & 0xffff_0000), |pair| f32::from_bits(pair << 16));
        let mut out = [0.0; LANES];
        for lane in 0..LANES {
            let sum = multiply_add(second(a[lane]), second(b[lane]), self.0[lane]);
            out[lane] = multiply_add(first(a[lane]), first(b[lane]), sum);
        }
        Array(out)
    }

    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        each(self, other, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    unsafe fn min(self, other: Self) -> Self {
        each(self, other, |a, b| if a < b { a } else { b })
    }

    #[inline(always)]
    unsafe fn round(self) -> Self {
        // Adding and subtracting 1.5 * 2^23 rounds to the nearest integer in the range that `exp` needs (below 2^22).
        const MAGIC: f32 = 12_582_912.0;
        Array(self.0.map(|x| (x + MAGIC) - MAGIC))
    }

    #[inline(always)]
    unsafe fn times_power_of_two(self, power: Self) -> Self {
        each(self, power, |x, power| x * f32::from_bits(((power as i32 + 127) as u32) << 23))
    }

    #[inline(always)]
    unsafe fn first_or(self, count: usize, other: Self) -> Self {
        let mut out = other.0;
        for lane in 0..LANES {
            if lane < count {
                out[lane] = self.0[lane];
            }
        }
        Array(out)
    }

    #[inline(always)]
    unsafe fn fold4(vectors: [Self; 4]) -> [f32; 4] {
        vectors.map(|vector| fold(vector.0))
    }

    #[inline(always)]
    unsafe fn fold_max(self) -> f32 {
        self.0.into_iter().fold(f32::NEG_INFINITY, |a, b| if a > b { a } else { b })
    }
}
