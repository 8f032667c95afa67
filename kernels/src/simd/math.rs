//! Functions over whole vectors.

#![allow(clippy::undocumented_unsafe_blocks, reason = "each is arithmetic under the contract of `Lanes`")]

use super::Lanes;

/// Below this value, `e^x` is not a normal number.
const EXP_LOWEST: f32 = -87.336_54;
const EXP_HIGHEST: f32 = 88.0;

/// Computes `e^x`, within 2 units in the last place; arguments are clamped to -87.3 ..= 88. `exp(0)` is exactly 1.
///
/// Cody and Waite reduction with the minimax polynomial of Cephes `expf` (Moshier, 1989).
///
/// # Safety
/// As for [`Lanes`].
#[inline(always)]
pub unsafe fn exp<V: Lanes>(x: V) -> V {
    const POLYNOMIAL: [f32; 6] =
        [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 5.0e-1];
    unsafe {
        let x = x.max(V::splat(EXP_LOWEST)).min(V::splat(EXP_HIGHEST));
        let power = x.mul(V::splat(std::f32::consts::LOG2_E)).round();
        let x = power.mul_add(V::splat(-0.693_359_4), x);
        let x = power.mul_add(V::splat(2.121_944_4e-4), x);
        let mut sum = V::splat(POLYNOMIAL[0]);
        for coefficient in &POLYNOMIAL[1..] {
            sum = sum.mul_add(x, V::splat(*coefficient));
        }
        let sum = sum.mul_add(x.mul(x), x).add(V::splat(1.0));
        sum.times_power_of_two(power)
    }
}

/// Computes `x / (1 + e^-x)`.
///
/// # Safety
/// As for [`Lanes`].
#[inline(always)]
pub unsafe fn silu<V: Lanes>(x: V) -> V {
    unsafe {
        let one = V::splat(1.0);
        x.div(one.add(exp(V::splat(0.0).sub(x))))
    }
}
