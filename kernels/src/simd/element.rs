//! Number formats of weights and KV: how vectors are loaded and multiplied with activations.

#![allow(clippy::undocumented_unsafe_blocks, reason = "each load is under the contract of `Lanes`")]

use half::{bf16, f16};

use super::{LANES, Lanes, PAIRED};

/// A number format in memory. Widening to f32 is exact.
#[allow(clippy::missing_safety_doc, reason = "the contract is that of `Lanes`")]
pub trait Element: Copy + Send + Sync + 'static {
    /// How weights in this format are multiplied with activations.
    type Dot: Dot<Weight = Self>;
    /// Whether weights that are multiplied with many tokens are first widened to f32.
    const WIDENS: bool = false;

    /// Rounds to nearest, ties to even.
    fn narrow(value: f32) -> Self;
    /// Widens exactly.
    fn widen(self) -> f32;
    /// Loads 16 lanes.
    unsafe fn load<V: Lanes>(from: *const Self) -> V;

    /// Loads the first `count` lanes and sets the others to zero; reads only `count` elements.
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

/// A product of weights and activations with one vector of accumulators.
#[allow(clippy::missing_safety_doc, reason = "the contract is that of `Lanes`")]
pub trait Dot {
    /// Weights in memory.
    type Weight: Copy + 'static;
    /// Activations in memory.
    type Input: Copy + 'static;
    /// Weights in registers.
    type Weights<V: Lanes>: Copy;
    /// Activations in registers.
    type Inputs<V: Lanes>: Copy;
    /// Columns per step.
    const STEP: usize;
    /// Whether activations are narrower than f32.
    const NARROWS: bool = size_of::<Self::Input>() < size_of::<f32>();

    /// Loads [`Dot::STEP`] weights.
    unsafe fn load_weights<V: Lanes>(from: *const Self::Weight) -> Self::Weights<V>;
    /// Loads [`Dot::STEP`] activations.
    unsafe fn load_inputs<V: Lanes>(from: *const Self::Input) -> Self::Inputs<V>;
    /// Adds the products to `sum`.
    unsafe fn add<V: Lanes>(weights: Self::Weights<V>, inputs: Self::Inputs<V>, sum: V) -> V;
}

/// Weights widened to f32, with f32 activations.
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

/// Weights and activations in bfloat16; each lane of the f32 sum adds two products per step.
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
