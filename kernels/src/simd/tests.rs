//! Every instruction set, tile and blocking gives the same bits, except products of bfloat16 on AMX.

#![allow(clippy::needless_range_loop, reason = "an index over several register arrays at once")]

use half::{bf16, f16};

use super::matmul::Narrow;
use super::product::{Epilogue, Product, scratch_words};
use super::*;

pub(super) fn numbers(count: usize, seed: u64) -> Vec<f32> {
    (0..count as u64).map(|n| crate::sampling::unit_interval(seed, n) as f32 - 0.5).collect()
}

/// `K` is not a multiple of the lanes, `ROWS` not a multiple of the tile's rows.
const K: usize = 301;
const ROWS: usize = 71;

fn multiply<E: Element>(isa: Isa, weights: &[E], input: &[f32], tokens: std::ops::Range<usize>) -> Vec<f32> {
    let (input, mut output) = (narrowed::<E>(isa, input), vec![f32::NAN; tokens.end * ROWS]);
    let mut scratch = vec![f32::NAN; scratch_words(K)];
    let product = Product {
        weights: weights.as_ptr(),
        bias: Some(weights.as_ptr()),
        rows: 0..ROWS,
        k: K,
        input: (input.as_ptr(), K),
        output: (output.as_mut_ptr(), ROWS),
        tokens: tokens.clone(),
        epilogue: Epilogue::Store,
        scratch: scratch.as_mut_ptr(),
    };
    // SAFETY: the slices have the sizes that `Product` requires.
    unsafe { isa.run(product) };
    output.split_off(tokens.start * ROWS)
}

/// Returns rows of `K` words in the format that products of `E` read.
fn narrowed<E: Element>(isa: Isa, input: &[f32]) -> Vec<f32> {
    let mut rows = input.to_vec();
    if E::Dot::NARROWS {
        for row in rows.chunks_exact_mut(K) {
            // SAFETY: a row has `K` words.
            unsafe { isa.run(Narrow { row: row.as_mut_ptr(), width: K }) }
        }
    }
    rows
}

fn assert_same_order_on_all_isas<E: Element>() {
    let weights: Vec<E> = numbers(ROWS * K, 1).into_iter().map(E::narrow).collect();
    let input = numbers(40 * K, 2);
    for isa in Isa::available() {
        let whole = multiply(isa, &weights, &input, 0..40);
        for count in [1, 2, 3, 4, 5, 6, 7, 11, 12, 13] {
            let part = multiply(isa, &weights, &input, 9..9 + count);
            assert!(same_bits(&part, &whole[9 * ROWS..(9 + count) * ROWS]), "{isa:?}, {count} tokens");
        }
        let exact = reference(&weights, &input);
        for (found, expected) in whole.iter().zip(exact) {
            assert!((f64::from(*found) - expected).abs() < 1e-4, "{isa:?}: {found} is not {expected}");
        }
    }
}

fn reference<E: Element>(weights: &[E], input: &[f32]) -> Vec<f64> {
    let rounded = |x: f32| if E::Dot::NARROWS { bf16::from_f32(x).to_f32() } else { x };
    let dot = |row: &[E], token: &[f32]| -> f64 {
        row.iter().zip(token).map(|(w, x)| f64::from(w.widen()) * f64::from(rounded(*x))).sum()
    };
    let row_of = |token| (0..ROWS).map(move |r| (r, token));
    let pairs = input.chunks_exact(K).flat_map(row_of);
    pairs.map(|(r, token)| dot(&weights[r * K..(r + 1) * K], token) + f64::from(weights[r].widen())).collect()
}

fn same_bits(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}

#[test]
fn products_have_one_order_of_summation_on_each_instruction_set() {
    assert_same_order_on_all_isas::<f32>();
    assert_same_order_on_all_isas::<f16>();
    assert_same_order_on_all_isas::<bf16>();
}

fn fused_sets_agree<E: Element>() {
    let fused: Vec<Isa> = Isa::available()
        .into_iter()
        .filter(|isa| *isa != Isa::Amx && (*isa != Isa::Baseline || cfg!(target_arch = "aarch64")))
        .collect();
    let weights: Vec<E> = numbers(ROWS * K, 1).into_iter().map(E::narrow).collect();
    let input = numbers(8 * K, 2);
    for pair in fused.windows(2) {
        let (a, b) = (multiply(pair[0], &weights, &input, 0..8), multiply(pair[1], &weights, &input, 0..8));
        assert!(same_bits(&a, &b), "{pair:?} differ");
    }
}

#[test]
fn fused_instruction_sets_agree_bit_by_bit() {
    fused_sets_agree::<f32>();
    fused_sets_agree::<f16>();
    fused_sets_agree::<bf16>();
}

#[test]
fn a_row_is_rounded_in_place_to_the_nearest_bfloat16() {
    let ties = [0x3f80_8000, 0x3f81_8000, 0x3f80_7fff, 0x3f80_8001, 0x7f7f_ffff, 1, 0x8000_8000];
    let special = [f32::NAN.to_bits(), 0x7f80_0001, f32::INFINITY.to_bits(), 0x8000_0000, 0xff80_0000];
    let bits = ties.into_iter().chain(special).map(f32::from_bits);
    let row: Vec<f32> = bits.chain(numbers(K, 3)).collect();
    let expected: Vec<u16> = row.iter().map(|x| bf16::from_f32(*x).to_bits()).collect();
    for isa in Isa::available() {
        let mut row = row.clone();
        // SAFETY: the row has at least `expected.len()` words.
        unsafe { isa.run(Narrow { row: row.as_mut_ptr(), width: expected.len() }) };
        let found: &[u16] = &bytemuck::cast_slice(&row)[..expected.len()];
        assert_eq!(found, expected, "{isa:?}");
    }
}

/// Tests the comparison: another accumulator width is another order of summation, and the bits differ.
#[test]
fn different_accumulator_width_changes_bits() {
    let (a, b) = (numbers(K, 1), numbers(K, 2));
    let with_width = |width: usize| {
        let mut sums = vec![0.0_f32; width];
        a.iter().zip(&b).enumerate().for_each(|(n, (a, b))| sums[n % width] = a.mul_add(*b, sums[n % width]));
        sums.iter().sum::<f32>()
    };
    assert!(!same_bits(&[with_width(16)], &[with_width(8)]));
}

struct Map<F>(Vec<f32>, F);

trait Function {
    unsafe fn apply<V: Lanes>(&self, x: V) -> V;
}

struct Exp;
impl Function for Exp {
    #[inline(always)]
    unsafe fn apply<V: Lanes>(&self, x: V) -> V {
        // SAFETY: the caller upholds the contract of `Lanes`.
        unsafe { math::exp(x) }
    }
}

struct Silu;
impl Function for Silu {
    #[inline(always)]
    unsafe fn apply<V: Lanes>(&self, x: V) -> V {
        // SAFETY: the caller upholds the contract of `Lanes`.
        unsafe { math::silu(x) }
    }
}

impl<F: Function> Kernel for Map<F> {
    type Output = Vec<f32>;

    #[inline(always)]
    unsafe fn run<V: Lanes>(self) -> Vec<f32> {
        let mut out = self.0.clone();
        for chunk in out.chunks_mut(LANES) {
            // SAFETY: the lengths are those of the chunk; the caller vouches for `V`.
            unsafe {
                self.1
                    .apply(V::load_first(chunk.as_ptr(), chunk.len()))
                    .store_first(chunk.as_mut_ptr(), chunk.len())
            }
        }
        out
    }
}

#[test]
fn exp_and_silu_are_close_and_alike_on_every_instruction_set() {
    let x: Vec<f32> = (-8700..=8800).map(|n| n as f32 / 100.0).collect();
    for isa in Isa::available() {
        // SAFETY: `Map` has no pointers.
        let (exp, silu) = unsafe { (isa.run(Map(x.clone(), Exp)), isa.run(Map(x.clone(), Silu))) };
        for n in 0..x.len() {
            let exact = f64::from(x[n]).exp();
            assert!((f64::from(exp[n]) / exact - 1.0).abs() < 3e-7, "{isa:?}: exp({}) = {}", x[n], exp[n]);
            let exact = f64::from(x[n]) / (1.0 + (-f64::from(x[n])).exp());
            assert!((f64::from(silu[n]) - exact).abs() < 1e-6 * exact.abs().max(1e-6), "silu({})", x[n]);
        }
        let edges = vec![0.0, f32::NEG_INFINITY];
        // SAFETY: as above.
        let edges = unsafe { isa.run(Map(edges, Exp)) };
        assert_eq!(edges[0], 1.0, "exp(0) is exact");
        assert!(edges[1] < 1.2e-38, "exp(-inf) is nothing");
    }
}
