//! Number formats of weights and KV, and how vectors are read from them.

#![allow(clippy::undocumented_unsafe_blocks, reason = "each load is under the contract of `Lanes`")]

use half::{bf16, f16};

use super::{LANES, Lanes};

/// A number format in memory. Widening to f32 is exact.
#[allow(clippy::missing_safety_doc, reason = "the contract is that of `Lanes`")]
pub trait Element: Copy + Send + Sync + 'static {
    /// Already f32: no widening needed.
    const IS_F32: bool = false;

    /// Rounds to nearest, ties to even.
    fn narrow(value: f32) -> Self;
    /// Exact.
    fn widen(self) -> f32;
    /// 16 lanes.
    unsafe fn load<V: Lanes>(from: *const Self) -> V;

    /// The first `count` lanes, zeros in the others; reads `count` elements only.
    #[inline(always)]
    unsafe fn load_first<V: Lanes>(from: *const Self, count: usize) -> V {
        unsafe {
            let mut lanes = [Self::narrow(0.0); LANES];
            from.copy_to_nonoverlapping(lanes.as_mut_ptr(), count);
            Self::load(lanes.as_ptr())
        }
    }
}

impl Element for f32 {
    const IS_F32: bool = true;

    #[inline(always)]
    fn narrow(value: f32) -> Self {
        value
    }

    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }

    #[inline(always)]
    unsafe fn load<V: Lanes>(from: *const Self) -> V {
        unsafe { V::load(from) }
    }

    #[inline(always)]
    unsafe fn load_first<V: Lanes>(from: *const Self, count: usize) -> V {
        unsafe { V::load_first(from, count) }
    }
}

impl Element for f16 {
    #[inline(always)]
    fn narrow(value: f32) -> Self {
        f16::from_f32(value)
    }

    #[inline(always)]
    fn widen(self) -> f32 {
        self.to_f32()
    }

    #[inline(always)]
    unsafe fn load<V: Lanes>(from: *const Self) -> V {
        unsafe { V::load_f16(from.cast()) }
    }
}

impl Element for bf16 {
    #[inline(always)]
    fn narrow(value: f32) -> Self {
        bf16::from_f32(value)
    }

    #[inline(always)]
    fn widen(self) -> f32 {
        self.to_f32()
    }

    #[inline(always)]
    unsafe fn load<V: Lanes>(from: *const Self) -> V {
        unsafe { V::load_bf16(from.cast()) }
    }
}
