//! Products of bfloat16 on AMX, the matrix unit of Intel processors: 16 rows of weights, 16 tokens and 32 columns at a
//! time.
//!
//! Weights are read in place; a block of tokens is first copied to scratch in the unit's layout. The unit has its own
//! order of summation (Intel's manual, `TDPBF16PS`): for each 32 columns it adds up the even and the odd products from
//! zero, then adds both sums, then adds the result to the element. So its bits differ from the other sets, but they
//! depend on nothing else: every bfloat16 product with whole tiles of columns takes this path, with one token or
//! thousands.
//!
//! The instructions are inline assembly because their intrinsics are unstable (rust-lang/rust#126622).

#![allow(clippy::needless_range_loop, reason = "an index over several register arrays at once")]
#![allow(clippy::undocumented_unsafe_blocks, reason = "pointer arithmetic under the contract of `Product`")]

// The copy of a block of tokens takes 2 bytes per token and column.
const _: () =
    assert!(MAX_TILES * SIDE * 2 <= PANEL_ROWS * 4, "a block of tokens fits the scratch of a product");

#[cfg(test)]
mod tests;

use std::arch::asm;
use std::arch::x86_64::*;
use std::ops::Range;
use std::sync::OnceLock;

use super::avx512::Register;
use super::product::{Epilogue, PANEL_ROWS, Product};
use super::{Dot, Element, Lanes, math};

type V = Register<true>;

/// Rows of weights, or tokens, per tile.
const SIDE: usize = 16;
/// Columns per tile.
const COLUMNS: usize = 32;
/// Tiles of tokens that are multiplied with a tile of rows before the next tile of rows is read.
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

/// Requests the unit's registers from the kernel for all threads of the process: Linux saves them only on request
/// (Documentation/arch/x86/xstate.rst). Returns `false` without AMX or on a kernel that does not support it.
fn is_permitted() -> bool {
    const ARCH_REQ_XCOMP_PERM: usize = 0x1023;
    const XFEATURE_XTILEDATA: usize = 18;
    // SAFETY: the call takes two numbers and accesses no memory.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

/// Whether the unit can multiply `product`.
pub(super) fn is_supported_for<E: Element>(product: &Product<E>) -> bool {
    E::Dot::NARROWS && product.k > 0 && product.k.is_multiple_of(COLUMNS)
}

/// # Safety
/// The processor has the unit, [`is_supported_for`] is true, and the contract of `Product` holds.
pub(super) unsafe fn run<E: Element>(product: &Product<E>) {
    unsafe { run_on::<Amx, E>(product) }
}

/// A unit that multiplies tiles.
pub(super) trait TileUnit {
    /// Prepares the unit for tiles of `rows` rows. From then on until [`TileUnit::release`] the thread owns its
    /// registers.
    ///
    /// # Safety
    /// The processor has the unit, the process may use it, and `rows` is 1 to [`SIDE`].
    unsafe fn configure(rows: usize);

    /// Computes `sums[tile][row][token]` for each of `T` tiles of tokens, over `steps` times 32 columns.
    ///
    /// `weights` is the address of the first row and the bytes from one row to the next; `tokens` is a block written by
    /// [`copy_tokens`].
    ///
    /// # Safety
    /// The thread has configured the unit for the number of rows in `weights`, and `steps` is not 0.
    unsafe fn multiply<const T: usize>(
        weights: (*const u8, usize),
        tokens: *const u8,
        steps: usize,
        sums: &mut Sums,
    );

    /// Releases the registers, so that a thread switch does not save them.
    ///
    /// # Safety
    /// The processor has the unit.
    unsafe fn release();
}

/// `[tile][row][token]`
#[repr(C, align(64))]
pub(super) struct Sums(pub [[[f32; SIDE]; SIDE]; MAX_TILES]);

/// Like [`run`], on a unit of the caller's choice.
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

/// Multiplies at most [`SIDE`] rows with a block of tokens in scratch.
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

/// Applies bias and epilogue to a tile and writes it to the output.
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

/// Copies a block of tokens to scratch in the unit's layout. For each 32 columns each tile has a kilobyte, in which the
/// column pairs follow each other, each pair for all tokens. Tokens missing in a tile are zeros.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
unsafe fn copy_tokens<E: Element>(product: &Product<E>, block: &Range<usize>) {
    let ((input, words), tiles) = (product.input, block.len().div_ceil(SIDE));
    for (tile, first) in block.clone().step_by(SIDE).enumerate() {
        let tokens = first..(first + SIDE).min(block.end);
        for step in 0..product.k / COLUMNS {
            unsafe {
                let mut pairs = [_mm512_setzero_si512(); SIDE];
                for (at, token) in tokens.clone().enumerate() {
                    // A row of bfloat16 starts at the start of its f32 row: 16 words are 32 columns.
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

/// Transposes a square of words.
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

/// The processor's own unit.
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
        // Registers 0 to 3 hold sums, 4 weights, 5 tokens.
        all.row_bytes[..6].fill(64);
        all.rows[..5].fill(rows as u8);
        all.rows[5] = SIDE as u8;
        // SAFETY: reads the 64 bytes of `all`. The compiler itself generates no code that uses tile registers, so the
        // configuration stays until `release`.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const all, options(nostack, readonly)) }
    }

    unsafe fn multiply<const T: usize>(
        (weights, stride): (*const u8, usize),
        tokens: *const u8,
        steps: usize,
        sums: &mut Sums,
    ) {
        // Prefetches the next rows from memory: in each step as many lines as the step reads of the current rows.
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
        // SAFETY: reads `steps` kilobytes of tokens for each of `T` tiles, and 64 bytes per step of each configured row
        // of weights; writes `T` kilobytes of `sums`. A prefetch may use any address.
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
        // SAFETY: changes only the unit's registers.
        unsafe { asm!("tilerelease", options(nostack, nomem)) }
    }
}
