//! A software unit tests the surrounding code on every processor with AVX-512 BF16. On a processor with AMX, the test
//! compares AMX with the software unit bit by bit.

use std::cell::Cell;

use half::bf16;

use super::*;
use crate::simd::Isa;
use crate::simd::matmul::Narrow;
use crate::simd::product::scratch_words;
use crate::simd::tests::numbers;

/// `tdpbf16ps` as in Intel's manual, for numbers that are not denormal.
struct SoftwareUnit;

thread_local! {
    /// Rows of the last configuration of [`SoftwareUnit`].
    static ROWS_OF_TILES: Cell<usize> = const { Cell::new(0) };
}

impl TileUnit for SoftwareUnit {
    unsafe fn configure(rows: usize) {
        ROWS_OF_TILES.set(rows);
    }

    unsafe fn multiply<const T: usize>(
        (weights, stride): (*const u8, usize),
        tokens: *const u8,
        steps: usize,
        sums: &mut Sums,
    ) {
        let number =
            |at: *const u8, index: usize| unsafe { at.cast::<bf16>().add(index).read_unaligned().to_f32() };
        let rows = ROWS_OF_TILES.get();
        for (tile, row, token) in (0..T * SIDE * SIDE).map(|n| (n / 256, n / SIDE % SIDE, n % SIDE)) {
            if row >= rows {
                continue;
            }
            let sum = &mut sums.0[tile][row][token];
            *sum = 0.0;
            for step in 0..steps {
                let weights = unsafe { weights.add(row * stride + step * 64) };
                let tokens = unsafe { tokens.add((step * T + tile) * 1024) };
                let mut added = [0.0_f32; 2];
                for column in 0..COLUMNS {
                    let pair = column / 2 * 2 * SIDE + 2 * token;
                    let (weight, input) = (number(weights, column), number(tokens, pair + column % 2));
                    added[column % 2] = weight.mul_add(input, added[column % 2]);
                }
                *sum += added[0] + added[1];
            }
        }
    }

    unsafe fn release() {}
}

/// `K` is two whole tiles of columns; `ROWS` is not a multiple of the tile's rows.
const K: usize = 64;
const ROWS: usize = 71;

struct Case {
    weights: Vec<bf16>,
    bias: Vec<bf16>,
    input: Vec<f32>,
}

impl Case {
    fn new(tokens: usize) -> Case {
        let mut input = numbers(tokens * K, 2);
        for row in input.chunks_exact_mut(K) {
            // SAFETY: a row has `K` words.
            unsafe { Isa::Avx512Bf16.run(Narrow { row: row.as_mut_ptr(), width: K }) }
        }
        let narrow = |count, seed| numbers(count, seed).into_iter().map(bf16::from_f32).collect();
        Case { weights: narrow(ROWS * K, 1), bias: narrow(ROWS, 3), input }
    }

    /// Returns `[token][row]`; every element is 0.25 before the product.
    fn multiply(
        &self,
        (rows, tokens): (Range<usize>, Range<usize>),
        epilogue: Epilogue,
        run: unsafe fn(&Product<bf16>),
    ) -> Vec<f32> {
        let mut output = vec![0.25; tokens.end * ROWS];
        let mut scratch = vec![f32::NAN; scratch_words(K)];
        let product = Product {
            weights: self.weights.as_ptr(),
            bias: Some(self.bias.as_ptr()),
            rows,
            k: K,
            input: (self.input.as_ptr(), K),
            output: (output.as_mut_ptr(), ROWS),
            tokens,
            epilogue,
            scratch: scratch.as_mut_ptr(),
        };
        // SAFETY: the slices have the sizes that `Product` requires; the processor has the features of `run`.
        unsafe { run(&product) };
        output
    }

    /// Returns the exact element (`token`, `row`) without bias and epilogue.
    fn exact(&self, token: usize, row: usize) -> f64 {
        let input: &[bf16] = bytemuck::cast_slice(&self.input[token * K..(token + 1) * K]);
        let weights = &self.weights[row * K..(row + 1) * K];
        weights.iter().zip(input).map(|(w, x)| w.to_f64() * x.to_f64()).sum()
    }
}

fn software() -> Option<unsafe fn(&Product<bf16>)> {
    if !Isa::available().contains(&Isa::Avx512Bf16) {
        eprintln!("skipped: the processor has no AVX-512 BF16");
        return None;
    }
    Some(run_on::<SoftwareUnit, bf16>)
}

fn after(epilogue: Epilogue, sum: f64) -> f64 {
    match epilogue {
        Epilogue::Store => sum,
        Epilogue::Add => 0.25 + sum,
        Epilogue::Multiply => 0.25 * sum,
        Epilogue::Silu => sum / (1.0 + (-sum).exp()),
        Epilogue::Relu => sum.max(0.0),
    }
}

const EPILOGUES: [Epilogue; 5] =
    [Epilogue::Store, Epilogue::Add, Epilogue::Multiply, Epilogue::Silu, Epilogue::Relu];

#[test]
fn each_epilogue_has_its_value_in_each_element_and_nowhere_else() {
    let Some(run) = software() else { return };
    let case = Case::new(70);
    for epilogue in EPILOGUES {
        let (rows, tokens) = (3..66, 1..70);
        let found = case.multiply((rows.clone(), tokens.clone()), epilogue, run);
        for (token, row) in (0..70 * ROWS).map(|n| (n / ROWS, n % ROWS)) {
            let value = found[token * ROWS + row];
            if !rows.contains(&row) || !tokens.contains(&token) {
                assert_eq!(value, 0.25, "{epilogue:?}: token {token}, row {row} was not asked for");
                continue;
            }
            let expected = after(epilogue, case.exact(token, row) + case.bias[row].to_f64());
            let error = (f64::from(value) - expected).abs();
            assert!(error < 1e-5, "{epilogue:?}: token {token}, row {row} is {value}, not {expected}");
        }
    }
}

fn same_bits_in_parts(case: &Case, run: unsafe fn(&Product<bf16>)) {
    let whole = case.multiply((0..ROWS, 0..70), Epilogue::Store, run);
    for tokens in [0..1, 5..7, 16..32, 3..20, 20..53, 1..65, 0..70] {
        for rows in [0..16, 7..8, 8..30, 55..ROWS] {
            let part = case.multiply((rows.clone(), tokens.clone()), Epilogue::Store, run);
            for (token, row) in tokens.clone().flat_map(|token| rows.clone().map(move |row| (token, row))) {
                let (found, expected) = (part[token * ROWS + row], whole[token * ROWS + row]);
                assert_eq!(
                    found.to_bits(),
                    expected.to_bits(),
                    "token {token} of {tokens:?}, row {row} of {rows:?}"
                );
            }
        }
    }
}

#[test]
fn no_bit_depends_on_the_rows_and_tokens_of_the_product() {
    let Some(run) = software() else { return };
    same_bits_in_parts(&Case::new(70), run);
}

#[test]
fn the_processors_unit_has_the_bits_of_the_manual() {
    if !Isa::available().contains(&Isa::Amx) {
        return eprintln!("skipped: the processor has no AMX, or the kernel keeps it from the process");
    }
    let case = Case::new(70);
    same_bits_in_parts(&case, run_on::<Amx, bf16>);
    for epilogue in EPILOGUES {
        let everything = || (0..ROWS, 0..70);
        let expected = case.multiply(everything(), epilogue, run_on::<SoftwareUnit, bf16>);
        let found = case.multiply(everything(), epilogue, run_on::<Amx, bf16>);
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&found), bits(&expected), "{epilogue:?}");
    }
}
