//! Products of bfloat16 on the matrix unit of Intel processors, AMX: 16 rows of weights, 16 tokens and 32 columns at once.
//!
//! Weights are read in place; a block of tokens is first copied to scratch as the unit wants it. The unit has an order of
//! summation of its own (Intel's manual, `TDPBF16PS`): of each 32 columns the even and the odd products are added up from
//! zero, then both sums, then they are added to the element. So its bits are not those of the other sets, but they depend on
//! nothing else either: every product of bfloat16 with whole tiles of columns takes this path, one token or thousands.
//!
//! The instructions are written in assembly: their intrinsics are not stable (rust-lang/rust#126622).

#![allow(clippy::needless_range_loop, reason = "an index over several register arrays at once")]
#![allow(clippy::undocumented_unsafe_blocks, reason = "pointer arithmetic under the contract of `Product`")]

// Copies of a block of tokens fill at most the scratch of a product: 2 bytes of each column for each token.
const _: () =
    assert!(MAX_TILES * SIDE * 2 <= PANEL_ROWS * 4, "a block of tokens fits the scratch of a product");

#[cfg(test)]
mod tests;

use std::arch::asm;
use std::arch::x86_64::*;
use std::ops::Range;
use std::sync::OnceLock;

use super::avx512::Register;
use super::matmul::{Epilogue, PANEL_ROWS, Product};
use super::{Dot, Element, Lanes, math};

type V = Register<true>;

/// Rows of weights and tokens of a tile.
const SIDE: usize = 16;
/// Columns of a tile.
const COLUMNS: usize = 32;
/// Tiles of tokens that meet a tile of rows before the next one is read.
const MAX_TILES: usize = 4;

/// Whether the processor has the unit and the kernel lets this process use it.
pub(super) fn is_supported() -> bool {
    static SUPPORTED: OnceLock<bool> = OnceLock::new();
    *SUPPORTED.get_or_init(|| {
        const BF16_AND_TILE: u32 = 1 << 22 | 1 << 24;
        let most = __cpuid(0).eax;
        most >= 7 && __cpuid_count(7, 0).edx & BF16_AND_TILE == BF16_AND_TILE && is_permitted()
    })
}

/// Asks the kernel for the unit's registers, for all threads of the process: Linux saves them only where they are asked for
/// (Documentation/arch/x86/xstate.rst). Without AMX, or on a kernel that does not know it, the answer is no.
fn is_permitted() -> bool {
    const ARCH_REQ_XCOMP_PERM: usize = 0x1023;
    const XFEATURE_XTILEDATA: usize = 18;
    // SAFETY: the call takes two numbers and touches no memory.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

/// Whether the unit multiplies `product`.
pub(super) fn is_supported_for<E: Element>(product: &Product<E>) -> bool {
    E::Dot::NARROWS && product.k > 0 && product.k.is_multiple_of(COLUMNS)
}

/// # Safety
/// The processor has the unit, [`takes`] is true, and the contract of `Product` holds.
pub(super) unsafe fn run<E: Element>(product: &Product<E>) {
    unsafe { run_on::<Amx, E>(product) }
}

/// What multiplies tiles.
pub(super) trait TileUnit {
    /// Prepares it for tiles of `rows` rows; from then on until [`Unit::release`] the thread has its registers.
    ///
    /// # Safety
    /// The processor has the unit, the process may use it, and `rows` is 1 to [`SIDE`].
    unsafe fn configure(rows: usize);

    /// For each of `T` tiles of tokens `sums[tile][row][token]`, over `steps` times 32 columns.
    ///
    /// Weights are the address of the first row and the bytes between two rows, tokens a block as [`copy_tokens`] leaves it.
    ///
    /// # Safety
    /// The thread has configured the unit for as many rows as `weights` has, and `steps` is not 0.
    unsafe fn multiply<const T: usize>(
        weights: (*const u8, usize),
        tokens: *const u8,
        steps: usize,
        sums: &mut Sums,
    );

    /// The thread has no need of the registers: nothing of them is saved when it is switched.
    ///
    /// # Safety
    /// The processor has the unit.
    unsafe fn release();
}

/// `[tile][row][token]`
#[repr(C, align(64))]
pub(super) struct Sums(pub [[[f32; SIDE]; SIDE]; MAX_TILES]);

/// [`run`] on a unit of the caller's choice.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
pub(super) unsafe fn run_on<U: TileUnit, E: Element>(product: &Product<E>) {
    let middle = product.rows.start + product.rows.len() / SIDE * SIDE;
    let (whole, rest) = (product.rows.start..middle, middle..product.rows.end);
    for first in product.tokens.clone().step_by(MAX_TILES * SIDE) {
        let tokens = first..(first + MAX_TILES * SIDE).min(product.tokens.end);
        unsafe {
            copy_tokens(product, &tokens);
            if !whole.is_empty() {
                U::configure(SIDE);
            }
            for row in whole.clone().step_by(SIDE) {
                rows_of_block::<U, E>(product, row..row + SIDE, &tokens);
            }
            if !rest.is_empty() {
                U::configure(rest.len());
                rows_of_block::<U, E>(product, rest.clone(), &tokens);
            }
        }
    }
    unsafe { U::release() }
}

/// At most [`SIDE`] rows times a block of tokens that were copied to scratch.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
unsafe fn rows_of_block<U: TileUnit, E: Element>(
    product: &Product<E>,
    rows: Range<usize>,
    tokens: &Range<usize>,
) {
    let stride = product.k * size_of::<E>();
    let weights = (product.weights.wrapping_add(rows.start * product.k).cast(), stride);
    let (copies, steps) = (product.scratch.cast_const().cast(), product.k / COLUMNS);
    let mut sums = Sums([[[0.0; SIDE]; SIDE]; MAX_TILES]);
    unsafe {
        match tokens.len().div_ceil(SIDE) {
            1 => U::multiply::<1>(weights, copies, steps, &mut sums),
            2 => U::multiply::<2>(weights, copies, steps, &mut sums),
            3 => U::multiply::<3>(weights, copies, steps, &mut sums),
            _ => U::multiply::<4>(weights, copies, steps, &mut sums),
        }
        for (tile, first) in tokens.clone().step_by(SIDE).enumerate() {
            finish(product, &rows, first..(first + SIDE).min(tokens.end), &sums.0[tile]);
        }
    }
}

/// Bias and epilogue of a tile, and its elements to the output.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
unsafe fn finish<E: Element>(
    product: &Product<E>,
    rows: &Range<usize>,
    tokens: Range<usize>,
    sums: &[[f32; SIDE]; SIDE],
) {
    unsafe {
        let bias = match product.bias {
            Some(bias) => E::load_first::<V>(bias.add(rows.start), rows.len()),
            None => V::splat(0.0),
        };
        let mut columns = [_mm512_setzero_si512(); SIDE];
        for row in 0..SIDE {
            columns[row] = _mm512_loadu_si512(sums[row].as_ptr().cast());
        }
        let columns = transposed(columns);
        for (column, token) in tokens.enumerate() {
            let to = product.output.0.add(token * product.output.1 + rows.start);
            let sum = Register(_mm512_castsi512_ps(columns[column])).add(bias);
            let before = || V::load_first(to, rows.len());
            let value = match product.epilogue {
                Epilogue::Store => sum,
                Epilogue::Add => before().add(sum),
                Epilogue::Multiply => before().mul(sum),
                Epilogue::Silu => math::silu(sum),
                Epilogue::Relu => sum.max(V::splat(0.0)),
            };
            value.store_first(to, rows.len());
        }
    }
}

/// Copies a block of tokens to scratch as the unit wants them: for each 32 columns a kilobyte of each tile, in which a pair of
/// columns of every token follows the pair before. Tokens that are missing in a tile are zeros.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
unsafe fn copy_tokens<E: Element>(product: &Product<E>, block: &Range<usize>) {
    let ((input, words), tiles) = (product.input, block.len().div_ceil(SIDE));
    for (tile, first) in block.clone().step_by(SIDE).enumerate() {
        let tokens = first..(first + SIDE).min(block.end);
        for step in 0..product.k / COLUMNS {
            unsafe {
                let mut pairs = [_mm512_setzero_si512(); SIDE];
                for (at, token) in tokens.clone().enumerate() {
                    // A row of bfloat16 begins where its row of f32 did: 16 words are 32 columns.
                    pairs[at] = _mm512_loadu_si512(input.add(token * words + step * SIDE).cast());
                }
                let pairs = transposed(pairs);
                for at in 0..SIDE {
                    let to = product.scratch.add(((step * tiles + tile) * SIDE + at) * SIDE);
                    _mm512_storeu_si512(to.cast(), pairs[at]);
                }
            }
        }
    }
}

/// Rows of words become columns.
#[inline]
#[target_feature(enable = "avx512f")]
fn transposed(rows: [__m512i; SIDE]) -> [__m512i; SIDE] {
    let zero = _mm512_setzero_si512();
    let (mut pairs, mut fours, mut out) = ([zero; SIDE], [zero; SIDE], [zero; SIDE]);
    for at in (0..SIDE).step_by(2) {
        pairs[at] = _mm512_unpacklo_epi32(rows[at], rows[at + 1]);
        pairs[at + 1] = _mm512_unpackhi_epi32(rows[at], rows[at + 1]);
    }
    // Quarter `q` of `fours[at + c]` is column `4 q + c` of rows `at..at + 4`.
    for at in (0..SIDE).step_by(4) {
        for half in 0..2 {
            fours[at + 2 * half] = _mm512_unpacklo_epi64(pairs[at + half], pairs[at + 2 + half]);
            fours[at + 2 * half + 1] = _mm512_unpackhi_epi64(pairs[at + half], pairs[at + 2 + half]);
        }
    }
    for at in 0..4 {
        let [a, b, c, d] = [fours[at], fours[at + 4], fours[at + 8], fours[at + 12]];
        let (even, odd) = (_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0xdd>(a, b));
        let (even2, odd2) = (_mm512_shuffle_i32x4::<0x88>(c, d), _mm512_shuffle_i32x4::<0xdd>(c, d));
        out[at] = _mm512_shuffle_i32x4::<0x88>(even, even2);
        out[at + 4] = _mm512_shuffle_i32x4::<0x88>(odd, odd2);
        out[at + 8] = _mm512_shuffle_i32x4::<0xdd>(even, even2);
        out[at + 12] = _mm512_shuffle_i32x4::<0xdd>(odd, odd2);
    }
    out
}

/// The processor's.
pub(super) struct Amx;

/// Operand of `ldtilecfg`.
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl TileUnit for Amx {
    unsafe fn configure(rows: usize) {
        let mut all =
            Configuration { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        // Sums in 0 to 3, weights in 4, tokens in 5.
        all.row_bytes[..6].fill(64);
        all.rows[..5].fill(rows as u8);
        all.rows[5] = SIDE as u8;
        // SAFETY: reads the 64 bytes of `all`. Tile registers are the compiler's in no code that it writes itself, so what
        // this sets up stays until `release`.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const all, options(nostack, readonly)) }
    }

    unsafe fn multiply<const T: usize>(
        (weights, stride): (*const u8, usize),
        tokens: *const u8,
        steps: usize,
        sums: &mut Sums,
    ) {
        // The next rows come from memory ahead of their use: as many lines in each step as it reads of these.
        macro_rules! multiply {
            ($($tile:literal at $bytes:literal),*) => {
                asm!(
                    $(concat!("tilezero tmm", $tile),)*
                    "2:",
                    "tileloadd tmm4, [{weights} + {stride}]",
                    ".irp line, 0, 64, 128, 192, 256, 320, 384, 448, 512, 576, 640, 704, 768, 832, 896, 960",
                    "prefetcht1 [{ahead} + \\line]",
                    ".endr",
                    $(
                        concat!("tileloadd tmm5, [{tokens} + {line} + ", $bytes, "]"),
                        concat!("tdpbf16ps tmm", $tile, ", tmm4, tmm5"),
                    )*
                    "add {weights}, 64",
                    "add {ahead}, 1024",
                    "add {tokens}, {tokens_step}",
                    "dec {steps}",
                    "jnz 2b",
                    $(concat!("tilestored [{sums} + {line} + ", $bytes, "], tmm", $tile),)*
                    weights = inout(reg) weights => _,
                    stride = in(reg) stride,
                    ahead = inout(reg) weights.wrapping_add(SIDE * stride) => _,
                    tokens = inout(reg) tokens => _,
                    tokens_step = const T * 1024,
                    line = in(reg) 64_usize,
                    sums = in(reg) sums.0.as_mut_ptr(),
                    steps = inout(reg) steps => _,
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _, out("tmm4") _, out("tmm5") _,
                    options(nostack),
                )
            };
        }
        // SAFETY: reads `steps` kilobytes of tokens for each of `T` tiles, and of each configured row of weights 64 bytes for
        // each step; writes `T` kilobytes of `sums`. Prefetching takes any address.
        unsafe {
            match T {
                1 => multiply!(0 at 0),
                2 => multiply!(0 at 0, 1 at 1024),
                3 => multiply!(0 at 0, 1 at 1024, 2 at 2048),
                _ => multiply!(0 at 0, 1 at 1024, 2 at 2048, 3 at 3072),
            }
        }
    }

    unsafe fn release() {
        // SAFETY: touches nothing but the unit's registers.
        unsafe { asm!("tilerelease", options(nostack, nomem)) }
    }
}
