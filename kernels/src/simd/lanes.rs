//! Kernels, and the operations that they need of a vector of 16 f32.

/// Lanes of every vector, on all instruction sets.
pub use sluice_link::activation::LANES;

/// Numbers of bfloat16 in a vector of pairs: two per lane.
pub const PAIRED: usize = 2 * LANES;

/// A vector of [`LANES`] f32.
///
/// # Safety
/// The processor must support the implementing type's instruction set, and pointers must be valid for the named lanes;
/// they need no alignment.
#[allow(clippy::missing_safety_doc, reason = "the trait's own section holds for each method")]
pub trait Lanes: Copy {
    /// Whether the registers hold a tile of 4 x 6 accumulators (else 2 x 3).
    const MANY_REGISTERS: bool;

    /// [`PAIRED`] numbers of bfloat16.
    type Pairs: Copy;

    /// Runs `kernel` in a separate function that is never inlined, so that only its values use the registers.
    unsafe fn outlined<K: Kernel>(kernel: K) -> K::Output;

    /// Sets all lanes to `value`.
    unsafe fn splat(value: f32) -> Self;
    /// Loads 16 lanes.
    unsafe fn load(from: *const f32) -> Self;
    /// Loads the first `count` lanes and sets the others to zero; reads only `count` elements.
    unsafe fn load_first(from: *const f32, count: usize) -> Self;
    /// Stores 16 lanes.
    unsafe fn store(self, to: *mut f32);
    /// Stores the first `count` lanes.
    unsafe fn store_first(self, to: *mut f32, count: usize);
    /// Loads 16 lanes of IEEE half.
    unsafe fn load_f16(from: *const u16) -> Self;
    /// Loads 16 lanes of bfloat16.
    unsafe fn load_bf16(from: *const u16) -> Self;
    /// Loads 32 bfloat16: lane `l` has numbers `2 l` and `2 l + 1`.
    unsafe fn load_pairs(from: *const u16) -> Self::Pairs;

    /// Prefetches the line at `address`, which may be any address.
    unsafe fn prefetch(address: *const u8);
    /// Prefetches a line that is used later into the second-level cache.
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
    /// Computes in each lane `self + a1 * b1`, then `+ a0 * b0`, for numbers `2 l + 1` (1) and `2 l` (0). Each step is
    /// fused, as in `vdpbf16ps`, which also treats numbers below 2^-126 as zero.
    unsafe fn dot_pairs(self, a: Self::Pairs, b: Self::Pairs) -> Self;
    /// Returns the maximum per lane; neither holds NaN.
    unsafe fn max(self, other: Self) -> Self;
    /// Returns the minimum per lane; neither holds NaN.
    unsafe fn min(self, other: Self) -> Self;
    /// Rounds to the nearest integer, ties to even.
    unsafe fn round(self) -> Self;
    /// `self * 2^power` for integral `power` in `-126..=127`.
    unsafe fn times_power_of_two(self, power: Self) -> Self;
    /// Takes the first `count` lanes of `self` and the others of `other`.
    unsafe fn first_or(self, count: usize, other: Self) -> Self;

    /// Returns the lane sum of each of four vectors: 8 + 8, 4 + 4, 2 + 2, 1 + 1.
    unsafe fn fold4(vectors: [Self; 4]) -> [f32; 4];
    /// Returns the largest lane.
    unsafe fn fold_max(self) -> f32;

    /// Returns the sum of the lanes, in the order of [`Lanes::fold4`].
    #[inline(always)]
    unsafe fn fold(self) -> f32 {
        // SAFETY: the caller upholds the contract of the trait.
        unsafe { Self::fold4([self, Self::splat(0.0), Self::splat(0.0), Self::splat(0.0)])[0] }
    }
}

/// Code that is compiled once per instruction set. `run`, and every function with a [`Lanes`] parameter that it calls,
/// must be `#[inline(always)]`; otherwise it is compiled without the features of the set.
pub trait Kernel {
    /// The result.
    type Output;

    /// Runs the code.
    ///
    /// # Safety
    /// The processor supports `V`, and the kernel's pointers are valid as its type requires.
    unsafe fn run<V: Lanes>(self) -> Self::Output;

    /// Runs the code on a processor with a matrix unit. Gives the kernel back if it has no code for the unit, by default.
    ///
    /// # Safety
    /// The processor supports [`super::Isa::Amx`], and the kernel's pointers are valid as its type requires.
    #[cfg(target_arch = "x86_64")]
    unsafe fn run_amx(self) -> Result<Self::Output, Self>
    where
        Self: Sized,
    {
        Err(self)
    }
}
