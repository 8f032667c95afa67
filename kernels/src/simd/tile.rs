//! The innermost product: a register tile of rows x tokens.

#![allow(clippy::needless_range_loop, reason = "an index over several register arrays at once")]
#![allow(clippy::undocumented_unsafe_blocks, reason = "pointer arithmetic under the contract of `Tile`")]

use std::mem::MaybeUninit;

use super::{Dot, Kernel, LANES, Lanes, PAIRED};

/// Computes `out[c][r] = sum over k of weights[r][k] * tokens[c][k]` in the common order of summation.
///
/// `weights` is valid for `R` rows of `k` elements, whose distance is the second number; `tokens` likewise for `C`
/// rows. Run it with [`Lanes::outlined`]; otherwise its accumulators share the registers with the surrounding code.
pub(super) struct Tile<D: Dot, const R: usize, const C: usize> {
    pub weights: Rows<D::Weight>,
    pub tokens: Rows<D::Input>,
    pub k: usize,
    pub carry: Accumulator,
    /// A row that later tiles need: each step prefetches as many bytes of it as the step reads. Any address is allowed.
    pub ahead: *const u8,
}

/// Accumulators passed from one run of columns to the next: whole vectors, so the order of summation is the same as
/// without the break.
#[derive(Clone, Copy)]
pub(super) struct Accumulator {
    /// Space for `R * C` vectors if one of the flags is set.
    pub at: *mut f32,
    /// Whether to start with the accumulators of earlier columns.
    pub resume: bool,
    /// Whether columns follow: store the accumulators and leave `out` unused. `k` is then whole steps.
    pub suspend: bool,
}

impl<D: Dot, const R: usize, const C: usize> Kernel for Tile<D, R, C> {
    type Output = [[f32; R]; C];

    #[inline(always)]
    unsafe fn run<V: Lanes>(self) -> [[f32; R]; C] {
        let Tile { weights: (weights, row_stride), tokens: (tokens, token_stride), k, carry, ahead } = self;
        unsafe {
            let mut sums = [[V::splat(0.0); C]; R];
            if carry.resume {
                each_sum(&mut sums, |index, sum| *sum = V::load(carry.at.add(index * LANES)));
            }
            let whole = k - k % D::STEP;
            let mut rest = MaybeUninit::<Remainder<D, R, C>>::uninit();
            for at in (0..k).step_by(D::STEP) {
                let (mut weights, mut tokens) =
                    ((weights.wrapping_add(at), row_stride), (tokens.wrapping_add(at), token_stride));
                if at == whole {
                    (weights, tokens) = Remainder::fill(rest.as_mut_ptr(), k - whole, weights, tokens);
                }
                V::prefetch_later(ahead.wrapping_add(at * size_of::<D::Weight>()));
                let mut row = [D::load_weights::<V>(weights.0); R];
                for r in 0..R {
                    row[r] = D::load_weights::<V>(weights.0.add(r * weights.1));
                    // Prefetch the next tile's rows: the hardware prefetcher follows a row, not the jump to the next
                    // row.
                    V::prefetch(weights.0.wrapping_add((r + R) * weights.1).cast());
                }
                for c in 0..C {
                    let token = D::load_inputs::<V>(tokens.0.add(c * tokens.1));
                    for r in 0..R {
                        sums[r][c] = D::add(row[r], token, sums[r][c]);
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

/// The first row, and the elements from one row to the next.
type Rows<T> = (*const T, usize);

/// The last columns of a tile, fewer than a step, padded with zeros.
struct Remainder<D: Dot, const R: usize, const C: usize> {
    weights: [[MaybeUninit<D::Weight>; PAIRED]; R],
    tokens: [[MaybeUninit<D::Input>; PAIRED]; C],
}

impl<D: Dot, const R: usize, const C: usize> Remainder<D, R, C> {
    /// Copies `count` columns of each row and returns the copies in the form of the tile's own pointers.
    #[cold]
    #[inline(never)]
    unsafe fn fill(
        to: *mut Self,
        count: usize,
        weights: Rows<D::Weight>,
        tokens: Rows<D::Input>,
    ) -> (Rows<D::Weight>, Rows<D::Input>) {
        unsafe {
            // Zero bits are zero in every format.
            to.write_bytes(0, 1);
            let (rows, columns) = ((&raw mut (*to).weights), (&raw mut (*to).tokens));
            for r in 0..R {
                let row = rows.cast::<D::Weight>().add(r * PAIRED);
                row.copy_from_nonoverlapping(weights.0.add(r * weights.1), count);
            }
            for c in 0..C {
                let row = columns.cast::<D::Input>().add(c * PAIRED);
                row.copy_from_nonoverlapping(tokens.0.add(c * tokens.1), count);
            }
            ((rows.cast_const().cast(), PAIRED), (columns.cast_const().cast(), PAIRED))
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
