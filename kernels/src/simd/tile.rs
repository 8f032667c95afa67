//! The innermost product: a register tile of rows x tokens.

#![allow(clippy::needless_range_loop, reason = "an index over several register arrays at once")]
#![allow(clippy::undocumented_unsafe_blocks, reason = "pointer arithmetic under the contract of `Tile`")]

use super::{Element, Kernel, LANES, Lanes};

/// `out[c][r] = sum over k of weights[r][k] * tokens[c][k]`, each in the one order of summation.
///
/// `weights` is valid for `R` rows of `k` elements, the second number of elements apart; `tokens` for `C` rows of `k`
/// words likewise. Run it outlined, or its accumulators share the registers with whatever is around it.
pub(super) struct Tile<E, const R: usize, const C: usize> {
    pub weights: (*const E, usize),
    pub tokens: (*const f32, usize),
    pub k: usize,
    pub carry: Carry,
}

/// Accumulators that pass from one run of columns to the next: whole vectors, so that the order of the sums is the
/// same as without the break.
#[derive(Clone, Copy)]
pub(super) struct Carry {
    /// Room for `R * C` vectors, where either of the others is set.
    pub at: *mut f32,
    /// Columns came before: begin with their accumulators.
    pub resume: bool,
    /// Columns follow: leave the accumulators, and nothing of use in `out`. `k` is then whole vectors.
    pub suspend: bool,
}

impl<E: Element, const R: usize, const C: usize> Kernel for Tile<E, R, C> {
    type Output = [[f32; R]; C];

    #[inline(always)]
    unsafe fn run<V: Lanes>(self) -> [[f32; R]; C] {
        let Tile { weights: (weights, row_stride), tokens: (tokens, token_stride), k, carry } = self;
        unsafe {
            let mut sums = [[V::splat(0.0); C]; R];
            if carry.resume {
                each_sum(&mut sums, |index, sum| *sum = V::load(carry.at.add(index * LANES)));
            }
            let whole = k - k % LANES;
            for at in (0..whole).step_by(LANES) {
                let mut row = [V::splat(0.0); R];
                for r in 0..R {
                    row[r] = E::load::<V>(weights.add(r * row_stride + at));
                    // The next tile's rows: hardware follows a row, not the jump to the next one.
                    V::prefetch(weights.wrapping_add((r + R) * row_stride + at).cast());
                }
                for c in 0..C {
                    let token = V::load(tokens.add(c * token_stride + at));
                    for r in 0..R {
                        sums[r][c] = row[r].mul_add(token, sums[r][c]);
                    }
                }
            }
            if whole < k {
                for r in 0..R {
                    let row = E::load_first::<V>(weights.add(r * row_stride + whole), k - whole);
                    for c in 0..C {
                        let token = V::load_first(tokens.add(c * token_stride + whole), k - whole);
                        sums[r][c] = row.mul_add(token, sums[r][c]);
                    }
                }
            }
            let mut out = [[0.0; R]; C];
            if carry.suspend {
                each_sum(&mut sums, |index, sum| sum.store(carry.at.add(index * LANES)));
            } else {
                fold_tile(&sums, &mut out);
            }
            out
        }
    }
}

#[inline(always)]
fn each_sum<V: Lanes, const R: usize, const C: usize>(sums: &mut [[V; C]; R], work: impl Fn(usize, &mut V)) {
    for r in 0..R {
        for c in 0..C {
            work(r * C + c, &mut sums[r][c]);
        }
    }
}

#[inline(always)]
unsafe fn fold_tile<V: Lanes, const R: usize, const C: usize>(sums: &[[V; C]; R], out: &mut [[f32; R]; C]) {
    unsafe {
        for c in 0..C {
            let mut r = 0;
            while r < R {
                let mut four = [V::splat(0.0); 4];
                for lane in 0..4 {
                    if r + lane < R {
                        four[lane] = sums[r + lane][c];
                    }
                }
                let folded = V::fold4(four);
                for lane in 0..4 {
                    if r + lane < R {
                        out[c][r + lane] = folded[lane];
                    }
                }
                r += 4;
            }
        }
    }
}
