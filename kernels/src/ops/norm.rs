//! RMSNorm (Zhang and Sennrich 2019) and LayerNorm (Ba et al. 2016) of one row.

#![allow(clippy::undocumented_unsafe_blocks, reason = "pointer arithmetic under the contract of `Norm`")]

use crate::simd::{Element, Kernel, LANES, Lanes};

/// Normalizes one row of `width` words.
///
/// With a bias this is LayerNorm, without one RMSNorm. Sums run in order over one 16-lane accumulator.
pub struct Norm<E> {
    /// The row read.
    pub input: *const f32,
    /// The row written; may equal the input.
    pub output: *mut f32,
    /// Words of the row.
    pub width: usize,
    /// Gain per word.
    pub weight: *const E,
    /// Bias per word (LayerNorm).
    pub bias: Option<*const E>,
    /// Added to the variance.
    pub epsilon: f32,
}

impl<E: Element> Kernel for Norm<E> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Lanes>(self) {
        unsafe {
            let width = self.width as f32;
            let mean = if self.bias.is_some() { self.sum::<V>() / width } else { 0.0 };
            let variance = self.sum_of_squares::<V>(V::splat(mean)) / width;
            let gain = V::splat(1.0 / (variance + self.epsilon).sqrt());
            for first in (0..self.width).step_by(LANES) {
                let count = LANES.min(self.width - first);
                let x = V::load_first(self.input.add(first), count).sub(V::splat(mean)).mul(gain);
                let mut y = x.mul(E::load_first::<V>(self.weight.add(first), count));
                if let Some(bias) = self.bias {
                    y = y.add(E::load_first::<V>(bias.add(first), count));
                }
                y.store_first(self.output.add(first), count);
            }
        }
    }
}

impl<E: Element> Norm<E> {
    #[inline(always)]
    unsafe fn sum<V: Lanes>(&self) -> f32 {
        unsafe {
            let mut sum = V::splat(0.0);
            for first in (0..self.width).step_by(LANES) {
                sum = sum.add(V::load_first(self.input.add(first), LANES.min(self.width - first)));
            }
            sum.fold()
        }
    }

    #[inline(always)]
    unsafe fn sum_of_squares<V: Lanes>(&self, mean: V) -> f32 {
        unsafe {
            let mut sum = V::splat(0.0);
            for first in (0..self.width).step_by(LANES) {
                let count = LANES.min(self.width - first);
                let x = V::load_first(self.input.add(first), count).sub(mean);
                let x = x.first_or(count, V::splat(0.0));
                sum = x.mul_add(x, sum);
            }
            sum.fold()
        }
    }
}
