//! Number formats of weights and KV, how vectors are read from them, and how they are multiplied with activations.

#![allow(clippy::undocumented_unsafe_blocks, reason = "each load is under the contract of `Lanes`")]

use half::{bf16, f16};

use super::{LANES, Lanes, PAIRED};

/// A number format in memory. Widening to f32 is exact.
#[allow(clippy::missing_safety_doc, reason = "the contract is that of `Lanes`")]
pub trait Element: Copy + Send + Sync + 'static {
    /// How weights of the format are multiplied with activations.
    type Dot: Dot<Weight = Self>;
    /// Weights that meet many tokens are widened to f32 first.
    const WIDENS: bool = false;

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
            if count == LANES {
                return Self::load(from);
            }
            let mut lanes = [Self::narrow(0.0); LANES];
            from.copy_to_nonoverlapping(lanes.as_mut_ptr(), count);
            Self::load(lanes.as_ptr())
        }
    }
}

impl Element for f32 {
    type Dot = Widened<f32>;

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
    type Dot = Widened<f16>;
    const WIDENS: bool = true;

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
    type Dot = Paired;

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

/// A product of weights and activations that one vector of accumulators walks.
#[allow(clippy::missing_safety_doc, reason = "the contract is that of `Lanes`")]
pub trait Dot {
    /// As weights lie in memory.
    type Weight: Copy + 'static;
    /// As activations lie in memory.
    type Input: Copy + 'static;
    /// Weights in registers.
    type Weights<V: Lanes>: Copy;
    /// Activations in registers.
    type Inputs<V: Lanes>: Copy;
    /// Columns of one step.
    const STEP: usize;
    /// Whether activations are narrower than f32.
    const NARROWS: bool = size_of::<Self::Input>() < size_of::<f32>();

    /// [`Dot::STEP`] weights.
    unsafe fn load_weights<V: Lanes>(from: *const Self::Weight) -> Self::Weights<V>;
    /// [`Dot::STEP`] activations.
    unsafe fn load_inputs<V: Lanes>(from: *const Self::Input) -> Self::Inputs<V>;
    /// `sum` and the products.
    unsafe fn add<V: Lanes>(weights: Self::Weights<V>, inputs: Self::Inputs<V>, sum: V) -> V;
}

/// Weights are widened to f32, activations are f32.
pub struct Widened<E>(std::marker::PhantomData<E>);

impl<E: Element> Dot for Widened<E> {
    type Weight = E;
    type Input = f32;
    type Weights<V: Lanes> = V;
    type Inputs<V: Lanes> = V;
    const STEP: usize = LANES;

    #[inline(always)]
    unsafe fn load_weights<V: Lanes>(from: *const E) -> V {
        unsafe { E::load(from) }
    }

    #[inline(always)]
    unsafe fn load_inputs<V: Lanes>(from: *const f32) -> V {
        unsafe { V::load(from) }
    }

    #[inline(always)]
    unsafe fn add<V: Lanes>(weights: V, inputs: V, sum: V) -> V {
        unsafe { weights.mul_add(inputs, sum) }
    }
}

/// Weights and activations are bfloat16, and each lane of the f32 sum takes two products.
pub struct Paired;

impl Dot for Paired {
    type Weight = bf16;
    type Input = bf16;
    type Weights<V: Lanes> = V::Pairs;
    type Inputs<V: Lanes> = V::Pairs;
    const STEP: usize = PAIRED;

    #[inline(always)]
    unsafe fn load_weights<V: Lanes>(from: *const bf16) -> V::Pairs {
        unsafe { V::load_pairs(from.cast()) }
    }

    #[inline(always)]
    unsafe fn load_inputs<V: Lanes>(from: *const bf16) -> V::Pairs {
        unsafe { V::load_pairs(from.cast()) }
    }

    #[inline(always)]
    unsafe fn add<V: Lanes>(weights: V::Pairs, inputs: V::Pairs, sum: V) -> V {
        unsafe { sum.dot_pairs(weights, inputs) }
    }
}
