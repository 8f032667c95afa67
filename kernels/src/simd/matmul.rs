//! Weights times activations, for one token or thousands: `output[t][r] = sum over k of weights[r][k] * input[t][k]`.
//!
//! Weights are read in place, row by row. The loops are blocked: a block of tokens and a panel of rows fit the
//! second-level cache, the tokens of a tile fit the first-level cache, and the next panel is prefetched. f16 panels
//! that are multiplied with many tokens are widened once into scratch (exactly, so the bits stay the same). bfloat16 is
//! multiplied directly, with activations that [`Narrow`] rounded to bfloat16.

#![allow(clippy::needless_range_loop, reason = "an index over several register arrays at once")]
#![allow(clippy::undocumented_unsafe_blocks, reason = "pointer arithmetic under the contract of `Product`")]

use std::mem::MaybeUninit;
use std::ops::Range;

#[cfg(target_arch = "x86_64")]
use super::amx;
use super::product::{Epilogue, PANEL_ROWS, Product};
use super::tile::{Accumulator, Tile};
use super::{Dot, Element, Kernel, LANES, Lanes, Widened, math};

/// Maximum bytes of activations in a block of tokens: half of a common second-level cache.
const TOKEN_BLOCK_BYTES: usize = 512 << 10;
/// Bytes of a tile's tokens between two breaks of `k`: most of a common first-level cache. The remainder is for the
/// rows that stream through and the suspended accumulators.
const TILE_TOKEN_BYTES: usize = 24 << 10;
/// Tokens of the largest tile.
const MAX_TILE_TOKENS: usize = 6;
/// From this number of tokens on, it is cheaper to widen a panel once than for every tile.
const WIDEN_FROM_TOKENS: usize = 12;

/// Suspended accumulators of a panel's rows and a tile's tokens.
#[repr(C, align(64))]
struct CarriedSums([f32; PANEL_ROWS * MAX_TILE_TOKENS * LANES]);

/// Rows of weights that are multiplied with a block of tokens, tile by tile.
#[derive(Clone, Copy)]
struct Panel<W> {
    first: *const W,
    /// Elements from one row to the next.
    stride: usize,
    /// The panel that follows in memory, and the bytes from one of its rows to the next.
    next: (*const u8, usize),
}

impl<W> Panel<W> {
    fn row(&self, row: usize) -> (*const W, usize) {
        (self.first.wrapping_add(row * self.stride), self.stride)
    }

    /// Returns the row of the next panel to prefetch while tile `index` of this one is computed. All rows are
    /// prefetched after as many passes over the panel as a tile has rows.
    fn ahead(&self, index: usize) -> *const u8 {
        let (next, row_bytes) = self.next;
        next.wrapping_add(index.min(PANEL_ROWS) * row_bytes)
    }
}

impl<E: Element> Kernel for Product<E> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Lanes>(self) {
        let block = (TOKEN_BLOCK_BYTES / (self.k * input_bytes::<E::Dot>())).max(24);
        for first in self.tokens.clone().step_by(block) {
            let tokens = first..(first + block).min(self.tokens.end);
            for first in self.rows.clone().step_by(PANEL_ROWS) {
                let rows = first..(first + PANEL_ROWS).min(self.rows.end);
                unsafe { self.panel::<V>(rows, tokens.clone()) }
            }
        }
    }

    #[cfg(target_arch = "x86_64")]
    unsafe fn run_amx(self) -> Result<(), Self> {
        if !amx::is_supported_for(&self) {
            return Err(self);
        }
        unsafe { amx::run(&self) };
        Ok(())
    }
}

impl<E: Element> Product<E> {
    #[inline(always)]
    unsafe fn panel<V: Lanes>(&self, rows: Range<usize>, tokens: Range<usize>) {
        unsafe {
            let from = self.weights.add(rows.start * self.k);
            let next = (self.weights.wrapping_add(rows.end * self.k).cast(), self.k * size_of::<E>());
            if !E::WIDENS || tokens.len() < WIDEN_FROM_TOKENS {
                let panel = Panel { first: from, stride: self.k, next };
                self.tokens_of_panel::<V, E::Dot>(panel, &rows, &tokens);
            } else {
                let stride = self.k.next_multiple_of(LANES);
                widen::<V, E>((from, self.k), (self.scratch, stride), rows.len());
                let widened = Panel { first: self.scratch.cast_const(), stride, next };
                self.tokens_of_panel::<V, Widened<f32>>(widened, &rows, &tokens);
            }
            if self.epilogue == Epilogue::Silu {
                self.silu::<V>(&rows, &tokens);
            }
        }
    }

    #[inline(always)]
    unsafe fn tokens_of_panel<V: Lanes, D: Dot>(
        &self,
        panel: Panel<D::Weight>,
        rows: &Range<usize>,
        tokens: &Range<usize>,
    ) {
        let widest = if V::MANY_REGISTERS { 6 } else { 3 };
        let (mut token, mut pass) = (tokens.start, 0);
        unsafe {
            while token < tokens.end {
                let count = widest.min(tokens.end - token);
                match (count, V::MANY_REGISTERS) {
                    (6, _) => self.rows_of_panel::<V, D, 4, 6>(panel, rows, (token, pass)),
                    (5, _) => self.rows_of_panel::<V, D, 4, 5>(panel, rows, (token, pass)),
                    (4, _) => self.rows_of_panel::<V, D, 4, 4>(panel, rows, (token, pass)),
                    (3, true) => self.rows_of_panel::<V, D, 4, 3>(panel, rows, (token, pass)),
                    (2, true) => self.rows_of_panel::<V, D, 4, 2>(panel, rows, (token, pass)),
                    (3, false) => self.rows_of_panel::<V, D, 2, 3>(panel, rows, (token, pass)),
                    (2, false) => self.rows_of_panel::<V, D, 2, 2>(panel, rows, (token, pass)),
                    _ => self.rows_of_panel::<V, D, 4, 1>(panel, rows, (token, pass)),
                }
                token += count;
                pass += 1;
            }
        }
    }

    #[inline(always)]
    unsafe fn rows_of_panel<V: Lanes, D: Dot, const R: usize, const C: usize>(
        &self,
        panel: Panel<D::Weight>,
        rows: &Range<usize>,
        (token, pass): (usize, usize),
    ) {
        let columns = columns_between_breaks::<D>(self.k, C);
        // Stays uninitialized if `k` has no break.
        let mut carried = MaybeUninit::<CarriedSums>::uninit();
        for first in (0..self.k).step_by(columns) {
            let range = first..(first + columns).min(self.k);
            let mut carry = |row: usize| Accumulator {
                at: carried.as_mut_ptr().cast::<f32>().wrapping_add(row * C * LANES),
                resume: range.start > 0,
                suspend: range.end < self.k,
            };
            let tiles = rows.len().div_ceil(R);
            let ahead = |row: usize| panel.ahead(pass * tiles + row / R);
            let mut row = 0;
            unsafe {
                while row + R <= rows.len() {
                    let (at, extra) = ((rows.start + row, token), (carry(row), ahead(row)));
                    self.tile::<V, D, R, C>(panel.row(row), at, &range, extra);
                    row += R;
                }
                while row < rows.len() {
                    let (at, extra) = ((rows.start + row, token), (carry(row), ahead(row)));
                    self.tile::<V, D, 1, C>(panel.row(row), at, &range, extra);
                    row += 1;
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn tile<V: Lanes, D: Dot, const R: usize, const C: usize>(
        &self,
        (weights, stride): (*const D::Weight, usize),
        (row, token): (usize, usize),
        columns: &Range<usize>,
        (carry, ahead): (Accumulator, *const u8),
    ) {
        unsafe {
            let (input, words) = self.input;
            let input = input.add(token * words).cast::<D::Input>().add(columns.start);
            let tile = Tile::<D, R, C> {
                weights: (weights.add(columns.start), stride),
                tokens: (input, words * size_of::<f32>() / input_bytes::<D>()),
                k: columns.len(),
                carry,
                ahead: ahead.wrapping_add(columns.start * size_of::<E>()),
            };
            let sums = V::outlined(tile);
            if !carry.suspend {
                self.finish(row, token, &sums);
            }
        }
    }

    #[inline(always)]
    unsafe fn finish<const R: usize, const C: usize>(&self, row: usize, token: usize, sums: &[[f32; R]; C]) {
        unsafe {
            let mut bias = [0.0; R];
            if let Some(all) = self.bias {
                for r in 0..R {
                    bias[r] = (*all.add(row + r)).widen();
                }
            }
            for c in 0..C {
                let to = self.output.0.add((token + c) * self.output.1 + row);
                for r in 0..R {
                    let (to, sum) = (to.add(r), sums[c][r] + bias[r]);
                    match self.epilogue {
                        Epilogue::Store | Epilogue::Silu => *to = sum,
                        Epilogue::Add => *to += sum,
                        Epilogue::Multiply => *to *= sum,
                        Epilogue::Relu => *to = if sum > 0.0 { sum } else { 0.0 },
                    }
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn silu<V: Lanes>(&self, rows: &Range<usize>, tokens: &Range<usize>) {
        for token in tokens.clone() {
            for first in rows.clone().step_by(LANES) {
                let count = LANES.min(rows.end - first);
                unsafe {
                    let at = self.output.0.add(token * self.output.1 + first);
                    math::silu(V::load_first(at, count)).store_first(at, count);
                }
            }
        }
    }
}

fn input_bytes<D: Dot>() -> usize {
    size_of::<D::Input>()
}

/// Returns the columns after which a tile of `tokens` tokens is suspended for the other rows: whole steps, in even
/// parts.
fn columns_between_breaks<D: Dot>(k: usize, tokens: usize) -> usize {
    let parts = k.div_ceil(TILE_TOKEN_BYTES / input_bytes::<D>() / tokens).max(1);
    k.div_ceil(parts).next_multiple_of(D::STEP)
}

/// Rounds `width` numbers of an f32 row to bfloat16 in place, from the row's start on. To nearest, ties to even.
pub struct Narrow {
    /// Row, valid for `width` words.
    pub row: *mut f32,
    /// Numbers in the row.
    pub width: usize,
}

impl Kernel for Narrow {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Lanes>(self) {
        let to = self.row.cast::<u16>();
        for first in (0..self.width).step_by(LANES) {
            let count = LANES.min(self.width - first);
            // Read before overwriting: number `n` is written where word `n / 2` was.
            let mut words = [0.0_f32; LANES];
            unsafe {
                V::load_first(self.row.add(first), count).store(words.as_mut_ptr());
                // A loop and a copy of constant length: `map` and `memcpy` would be a call per vector.
                let mut narrow = [0; LANES];
                for lane in 0..LANES {
                    narrow[lane] = narrow_bits(words[lane]);
                }
                let to = to.add(first);
                match count {
                    LANES => to.cast::<[u16; LANES]>().write_unaligned(narrow),
                    _ => to.copy_from_nonoverlapping(narrow.as_ptr(), count),
                }
            }
        }
    }
}

/// Returns the bits of the nearest bfloat16, like `bf16::from_f32`, but without a branch so that it is vectorized.
#[inline(always)]
fn narrow_bits(value: f32) -> u16 {
    let bits = value.to_bits();
    let nearest = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    let nan = bits >> 16 | 0x40;
    (if bits & 0x7fff_ffff > 0x7f80_0000 { nan } else { nearest }) as u16
}

#[inline(always)]
unsafe fn widen<V: Lanes, E: Element>(from: (*const E, usize), to: (*mut f32, usize), rows: usize) {
    let k = from.1;
    for row in 0..rows {
        unsafe {
            let (source, target) = (from.0.add(row * k), to.0.add(row * to.1));
            let whole = k - k % LANES;
            for at in (0..whole).step_by(LANES) {
                E::load::<V>(source.add(at)).store(target.add(at));
            }
            // The padding of the last vector is zero.
            if whole < k {
                E::load_first::<V>(source.add(whole), k - whole).store(target.add(whole));
            }
        }
    }
}
