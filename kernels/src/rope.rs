//! Rotary positions (Su et al. 2021, arXiv 2104.09864) with Hugging Face's pairing: lane `i` is rotated with lane `i +
//! head_dim / 2`.

#![allow(clippy::undocumented_unsafe_blocks, reason = "pointer arithmetic under the contract of `Rotate`")]

use std::f32::consts::PI;

use sluice_link::model::{ModelSpec, RopeScaling};

use crate::simd::{Kernel, LANES, Lanes};

/// Returns the angle per position of each of the `head_dim / 2` pairs, after scaling.
pub fn frequencies(spec: &ModelSpec) -> Vec<f32> {
    let dim = spec.head_dim as f32;
    let plain = |pair: u32| 1.0 / spec.rope_theta.powf(2.0 * pair as f32 / dim);
    (0..spec.head_dim / 2).map(|pair| scaled(plain(pair), spec.rope_scaling)).collect()
}

fn scaled(frequency: f32, scaling: RopeScaling) -> f32 {
    match scaling {
        RopeScaling::None => frequency,
        RopeScaling::Linear { factor } => frequency / factor,
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_positions } => {
            let turns = original_max_positions as f32 * frequency / (2.0 * PI);
            let kept = ((turns - low_freq_factor) / (high_freq_factor - low_freq_factor)).clamp(0.0, 1.0);
            (1.0 - kept) * frequency / factor + kept * frequency
        }
    }
}

/// Writes the cosines, then the sines, of one position: `head_dim` words in total.
pub fn angles(frequencies: &[f32], position: u32, to: &mut [f32]) {
    let (cosines, sines) = to.split_at_mut(frequencies.len());
    for (pair, frequency) in frequencies.iter().enumerate() {
        // The angle is rounded to f32 as in the models' reference code; its sine and cosine are computed in f64.
        let (sine, cosine) = f64::from(position as f32 * frequency).sin_cos();
        (cosines[pair], sines[pair]) = (cosine as f32, sine as f32);
    }
}

/// Rotates the heads of one token in place. `angles` is the output of [`angles()`]; `values` are `heads * head_dim`
/// words.
pub struct Rotate {
    /// Cosines, then sines.
    pub angles: *const f32,
    /// The token's heads.
    pub values: *mut f32,
    /// Number of heads.
    pub heads: usize,
    /// Width of a head.
    pub head_dim: usize,
}

impl Kernel for Rotate {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Lanes>(self) {
        let half = self.head_dim / 2;
        for head in 0..self.heads {
            for first in (0..half).step_by(LANES) {
                let count = LANES.min(half - first);
                unsafe {
                    let low = self.values.add(head * self.head_dim + first);
                    let high = low.add(half);
                    let cosine = V::load_first(self.angles.add(first), count);
                    let sine = V::load_first(self.angles.add(half + first), count);
                    let (a, b) = (V::load_first(low, count), V::load_first(high, count));
                    a.mul(cosine).sub(b.mul(sine)).store_first(low, count);
                    b.mul(cosine).add(a.mul(sine)).store_first(high, count);
                }
            }
        }
    }
}
