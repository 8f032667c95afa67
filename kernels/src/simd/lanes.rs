//! What the kernels ask of a vector of 16 f32.

use super::Kernel;

/// Lanes of every vector, on every instruction set.
pub use sluice_link::activation::LANES;

/// bfloat16 of a vector of pairs: two in each lane.
pub const PAIRED: usize = 2 * LANES;

/// A vector of [`LANES`] f32.
///
/// # Safety
/// Every method may only be called on a processor that supports the implementing type's instruction set, and pointers
/// must be valid for the lanes named; alignment is not needed.
#[allow(clippy::missing_safety_doc, reason = "the trait's own section holds for each method")]
pub trait Lanes: Copy {
    /// Room in registers for a tile of 4 x 6 accumulators (else 2 x 3).
    const MANY_REGISTERS: bool;

    /// [`PAIRED`] bfloat16.
    type Pairs: Copy;

    /// Runs `kernel` in a function of its own, never inlined: its values then have the registers to themselves.
    unsafe fn outlined<K: Kernel>(kernel: K) -> K::Output;

    /// All lanes `value`.
    unsafe fn splat(value: f32) -> Self;
    /// 16 lanes.
    unsafe fn load(from: *const f32) -> Self;
    /// The first `count` lanes, zeros in the others; reads `count` elements only.
    unsafe fn load_first(from: *const f32, count: usize) -> Self;
    /// Writes 16 lanes.
    unsafe fn store(self, to: *mut f32);
    /// Writes the first `count` lanes.
    unsafe fn store_first(self, to: *mut f32, count: usize);
    /// 16 lanes of IEEE half.
    unsafe fn load_f16(from: *const u16) -> Self;
    /// 16 lanes of bfloat16.
    unsafe fn load_bf16(from: *const u16) -> Self;
    /// 32 bfloat16: lane `l` has numbers `2 l` and `2 l + 1`.
    unsafe fn load_pairs(from: *const u16) -> Self::Pairs;

    /// Asks for the line at `address` ahead of its use; any address will do.
    unsafe fn prefetch(address: *const u8);
    /// The same for a line that is not used soon: to the second-level cache.
    unsafe fn prefetch_later(address: *const u8);

    /// `self + other`
    unsafe fn add(self, other: Self) -> Self;
    /// `self - other`
    unsafe fn sub(self, other: Self) -> Self;
    /// `self * other`
    unsafe fn mul(self, other: Self) -> Self;
    /// `self / other`
    unsafe fn div(self, other: Self) -> Self;
    /// `self * factor + addend`, fused.
    unsafe fn mul_add(self, factor: Self, addend: Self) -> Self;
    /// In each lane `self + a1 * b1`, then `+ a0 * b0`, for numbers `2 l + 1` (1) and `2 l` (0): each fused, as by
    /// `vdpbf16ps`, which also takes what is below 2^-126 for zero.
    unsafe fn dot_pairs(self, a: Self::Pairs, b: Self::Pairs) -> Self;
    /// Lane by lane; neither holds NaN.
    unsafe fn max(self, other: Self) -> Self;
    /// Lane by lane; neither holds NaN.
    unsafe fn min(self, other: Self) -> Self;
    /// To the nearest integer, ties to even.
    unsafe fn round(self) -> Self;
    /// `self * 2^power` for integral `power` in `-126..=127`.
    unsafe fn times_power_of_two(self, power: Self) -> Self;
    /// The first `count` lanes of `self`, the others of `other`.
    unsafe fn first_or(self, count: usize, other: Self) -> Self;

    /// The sum of each of four vectors' lanes: 8 + 8, 4 + 4, 2 + 2, 1 + 1.
    unsafe fn fold4(vectors: [Self; 4]) -> [f32; 4];
    /// The largest lane.
    unsafe fn fold_max(self) -> f32;

    /// The sum of the lanes, in the order of [`Lanes::fold4`].
    #[inline(always)]
    unsafe fn fold(self) -> f32 {
        // SAFETY: the caller's.
        unsafe { Self::fold4([self, Self::splat(0.0), Self::splat(0.0), Self::splat(0.0)])[0] }
    }
}
