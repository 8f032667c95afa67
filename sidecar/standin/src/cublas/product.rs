//! The loops of a product. Each sum adds the products of its elements in order of `k`, each product and each sum rounded
//! to f32: the bits do not depend on the shape of the matrices, nor on the processor.

use super::number::NumberFormat;

/// Rows and columns of a tile: its sums fit the registers of a processor with AVX2.
const TILE_ROWS: usize = 16;
const TILE_COLUMNS: usize = 4;
/// Products that a tile adds before the next tile: its elements of B fit the first cache.
const DEPTH: usize = 256;
/// Tiles of rows whose elements of A fit the second cache.
const ROW_TILES: usize = 8;
const BLOCK_ROWS: usize = TILE_ROWS * ROW_TILES;

type Tile = [[f32; TILE_ROWS]; TILE_COLUMNS];

/// A matrix by columns, to be read.
#[derive(Clone, Copy)]
pub struct Source {
    pub place: *const u8,
    pub format: NumberFormat,
    pub lead: usize,
    pub is_transposed: bool,
}

/// Multiplies A (m x k) by B (k x n). Passes row, column and sum of each element of the product to `finish`.
///
/// # Safety
/// The elements of both matrices exist.
pub unsafe fn multiply(
    a: &Source,
    b: &Source,
    [m, n, k]: [usize; 3],
    mut finish: impl FnMut(usize, usize, f32),
) {
    let add = tile_function();
    let columns = n.div_ceil(TILE_COLUMNS);
    let mut sums: Vec<Tile> = vec![Tile::default(); columns * ROW_TILES];
    let mut left = vec![0.0; BLOCK_ROWS * DEPTH];
    let mut right = vec![0.0; TILE_COLUMNS * DEPTH];
    for row in (0..m).step_by(BLOCK_ROWS) {
        let tiles = (m - row).min(BLOCK_ROWS).div_ceil(TILE_ROWS);
        sums.fill(Tile::default());
        for first in (0..k).step_by(DEPTH) {
            let depth = (k - first).min(DEPTH);
            for (tile, packed) in left.chunks_exact_mut(TILE_ROWS * DEPTH).take(tiles).enumerate() {
                let start = row + tile * TILE_ROWS;
                // SAFETY: rows below m and depths below k.
                unsafe {
                    a.pack::<TILE_ROWS>(packed, (start, (m - start).min(TILE_ROWS)), (first, depth), false)
                };
            }
            for column in 0..columns {
                let start = column * TILE_COLUMNS;
                let width = (n - start).min(TILE_COLUMNS);
                // SAFETY: columns below n and depths below k.
                unsafe { b.pack::<TILE_COLUMNS>(&mut right, (start, width), (first, depth), true) };
                for (tile, packed) in left.chunks_exact(TILE_ROWS * DEPTH).take(tiles).enumerate() {
                    let sum = &mut sums[column * ROW_TILES + tile];
                    // SAFETY: `tile_function` chose it for this processor.
                    unsafe { add(&packed[..depth * TILE_ROWS], &right[..depth * TILE_COLUMNS], sum) };
                }
            }
        }
        for column in 0..n {
            for at in row..m.min(row + BLOCK_ROWS) {
                let tile = &sums[column / TILE_COLUMNS * ROW_TILES + (at - row) / TILE_ROWS];
                finish(at, column, tile[column % TILE_COLUMNS][(at - row) % TILE_ROWS]);
            }
        }
    }
}

impl Source {
    /// Copies `count` rows (of A) or columns (of B, `is_right`) from `start`, and of each the `depth` elements from
    /// `first`, into `packed` as f32: `WIDTH` elements of each depth, zeros if there are fewer.
    ///
    /// # Safety
    /// The elements exist.
    unsafe fn pack<const WIDTH: usize>(
        &self,
        packed: &mut [f32],
        (start, count): (usize, usize),
        (first, depth): (usize, usize),
        is_right: bool,
    ) {
        // Distances in the matrix: of neighbours in a tile, and of neighbours in depth.
        let (across, along) = if self.is_transposed == is_right { (1, self.lead) } else { (self.lead, 1) };
        let packed = &mut packed[..depth * WIDTH];
        if count < WIDTH {
            packed.fill(0.0);
        }
        let base = start * across + first * along;
        if across == 1 {
            for (at, line) in packed.chunks_exact_mut(WIDTH).enumerate() {
                for (index, value) in line.iter_mut().take(count).enumerate() {
                    // SAFETY: the caller's guarantee.
                    *value = unsafe { self.format.read(self.place, base + at * along + index) };
                }
            }
            return;
        }
        for index in 0..count {
            for (at, line) in packed.chunks_exact_mut(WIDTH).enumerate() {
                // SAFETY: the caller's guarantee.
                line[index] = unsafe { self.format.read(self.place, base + index * across + at) };
            }
        }
    }
}

/// Adds the products of a packed tile of A and one of B to the sums.
type AddTile = unsafe fn(&[f32], &[f32], &mut Tile);

/// Returns the fastest function for this processor.
fn tile_function() -> AddTile {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        return add_tile_avx2;
    }
    add_tile
}

#[inline(always)]
fn add_tile(left: &[f32], right: &[f32], sums: &mut Tile) {
    let mut local = *sums;
    for (rows, columns) in left.chunks_exact(TILE_ROWS).zip(right.chunks_exact(TILE_COLUMNS)) {
        for (sum, factor) in local.iter_mut().zip(columns) {
            for (element, value) in sum.iter_mut().zip(rows) {
                *element += value * factor;
            }
        }
    }
    *sums = local;
}

/// The same operations with wider registers. Rust never fuses a product with a sum, so the bits are the same.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn add_tile_avx2(left: &[f32], right: &[f32], sums: &mut Tile) {
    use std::arch::x86_64::{
        _mm256_add_ps, _mm256_loadu_ps, _mm256_mul_ps, _mm256_set1_ps, _mm256_setzero_ps, _mm256_storeu_ps,
    };
    let mut local = [[_mm256_setzero_ps(); 2]; TILE_COLUMNS];
    for (sum, from) in local.iter_mut().zip(sums.iter()) {
        // SAFETY: sixteen numbers.
        *sum = unsafe { [_mm256_loadu_ps(from.as_ptr()), _mm256_loadu_ps(from.as_ptr().add(8))] };
    }
    for (rows, columns) in left.chunks_exact(TILE_ROWS).zip(right.chunks_exact(TILE_COLUMNS)) {
        // SAFETY: sixteen numbers.
        let rows = unsafe { [_mm256_loadu_ps(rows.as_ptr()), _mm256_loadu_ps(rows.as_ptr().add(8))] };
        for (sum, factor) in local.iter_mut().zip(columns) {
            let factor = _mm256_set1_ps(*factor);
            sum[0] = _mm256_add_ps(sum[0], _mm256_mul_ps(rows[0], factor));
            sum[1] = _mm256_add_ps(sum[1], _mm256_mul_ps(rows[1], factor));
        }
    }
    for (sum, to) in local.iter().zip(sums.iter_mut()) {
        // SAFETY: space for sixteen numbers.
        unsafe {
            _mm256_storeu_ps(to.as_mut_ptr(), sum[0]);
            _mm256_storeu_ps(to.as_mut_ptr().add(8), sum[1]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::number::f32_to_bf16;
    use super::{
        DEPTH, NumberFormat, Source, TILE_COLUMNS, TILE_ROWS, Tile, add_tile, multiply, tile_function,
    };

    fn numbers(count: usize, seed: u32) -> Vec<f32> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..count).map(|_| next()).collect()
    }

    #[test]
    fn every_processor_computes_the_same_bits() {
        let (left, right) = (numbers(DEPTH * TILE_ROWS, 1), numbers(DEPTH * TILE_COLUMNS, 2));
        let (mut fast, mut portable) = (Tile::default(), Tile::default());
        add_tile(&left, &right, &mut portable);
        // SAFETY: the function for this processor.
        unsafe { tile_function()(&left, &right, &mut fast) };
        assert_eq!(fast.as_flattened(), portable.as_flattened());
    }

    #[test]
    fn a_product_is_the_sum_in_order_for_all_shapes_and_transpositions() {
        for (index, [m, n, k]) in
            [[1, 1, 1], [5, 3, 300], [129, 6, 17], [16, 4, 256], [40, 9, 513]].into_iter().enumerate()
        {
            for transposed in 0..4 {
                let (is_left, is_right) = (transposed & 1 != 0, transposed & 2 != 0);
                let (lead_a, lead_b) = (if is_left { k } else { m } + 3, if is_right { n } else { k } + 1);
                let a = numbers(lead_a * m.max(k), index as u32);
                let b = numbers(lead_b * n.max(k), 100 + index as u32);
                let source = |values: &[f32], lead, is_transposed| Source {
                    place: values.as_ptr().cast(),
                    format: NumberFormat::F32,
                    lead,
                    is_transposed,
                };
                let mut product = vec![f32::NAN; m * n];
                // SAFETY: both matrices have a column for each row or column of the operand.
                unsafe {
                    multiply(
                        &source(&a, lead_a, is_left),
                        &source(&b, lead_b, is_right),
                        [m, n, k],
                        |i, j, sum| {
                            product[j * m + i] = sum;
                        },
                    );
                }
                for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
                    let mut sum = 0.0;
                    for at in 0..k {
                        let left = if is_left { a[i * lead_a + at] } else { a[at * lead_a + i] };
                        let right = if is_right { b[at * lead_b + j] } else { b[j * lead_b + at] };
                        sum += left * right;
                    }
                    assert_eq!(product[j * m + i], sum, "{m} x {n} x {k}, {transposed}: {i}, {j}");
                }
            }
        }
    }

    #[test]
    #[ignore = "a measurement: cargo test -p sluice-cuda-standin --release -- --ignored --nocapture rate"]
    fn the_rate_of_a_large_product_is_printed() {
        let [m, n, k] = [2048, 512, 2048];
        let narrow = |values: Vec<f32>| values.into_iter().map(f32_to_bf16).collect::<Vec<u16>>();
        let (a, b) = (narrow(numbers(m * k, 1)), narrow(numbers(n * k, 2)));
        let source = |values: &[u16], is_transposed| Source {
            place: values.as_ptr().cast(),
            format: NumberFormat::Bf16,
            lead: k,
            is_transposed,
        };
        let start = std::time::Instant::now();
        let mut total = 0.0;
        // SAFETY: both have more elements than are read.
        unsafe { multiply(&source(&a, true), &source(&b, false), [m, n, k], |_, _, sum| total += sum) };
        let rate = (m * n * k) as f64 / start.elapsed().as_secs_f64() / 1e9;
        println!("{rate:.2} GMAC/s ({total})");
    }
}
