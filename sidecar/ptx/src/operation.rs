//! What instructions execute: operations in two forms, many of them made of closures over the values of one lane.

use std::marker::PhantomData;
use std::ptr::NonNull;

use crate::instruction::{Execute, Instruction};
use crate::lanes::{LANES, Lane, Lanes, NONE};

/// The two forms of an operation: for any machine, and for AVX2 with FMA. Both give the same bits.
#[derive(Clone, Copy)]
pub(crate) struct Operation {
    pub portable: Execute,
    pub vector: Execute,
}

/// The body of an operation, which is compiled once for each form.
pub(crate) trait Body {
    /// # Safety
    /// As for [`Execute`].
    unsafe fn run(lanes: &mut Lanes, instruction: &Instruction);
}

impl Operation {
    pub fn of<B: Body>() -> Self {
        #[cfg(target_arch = "x86_64")]
        return Operation { portable: portable::<B>, vector: vector::<B> };
        #[cfg(not(target_arch = "x86_64"))]
        Operation { portable: portable::<B>, vector: portable::<B> }
    }
}

/// # Safety
/// As for [`Execute`].
unsafe fn portable<B: Body>(lanes: &mut Lanes, instruction: &Instruction) {
    // SAFETY: the caller's promise.
    unsafe { B::run(lanes, instruction) }
}

/// # Safety
/// As for [`Execute`]; the machine has the features.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
unsafe fn vector<B: Body>(lanes: &mut Lanes, instruction: &Instruction) {
    // SAFETY: the caller's promise.
    unsafe { B::run(lanes, instruction) }
}

/// Whether this machine runs the vector form.
pub(crate) fn has_vectors() -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("lzcnt")
        && is_x86_feature_detected!("popcnt");
    #[cfg(not(target_arch = "x86_64"))]
    true
}

/// Makes a closure without captures out of its type.
///
/// # Safety
/// A value of `F` was made before: it has no bytes, so any other is the same.
#[inline(always)]
unsafe fn closure<F: Copy>() -> F {
    const { assert!(size_of::<F>() == 0, "operations capture nothing") };
    // SAFETY: a type without bytes can be read from any aligned pointer; the caller promises that it has values.
    unsafe { NonNull::<F>::dangling().read() }
}

/// `d = f(a)`.
pub(crate) fn unary<A: Lane, D: Lane, F: Fn(A) -> D + Copy>(_: F) -> Operation {
    struct Unary<A, D, F>(PhantomData<(A, D, F)>);
    impl<A: Lane, D: Lane, F: Fn(A) -> D + Copy> Body for Unary<A, D, F> {
        #[inline(always)]
        unsafe fn run(lanes: &mut Lanes, i: &Instruction) {
            // SAFETY: `unary` was given a value of `F`; slots are those of the kernel.
            unsafe {
                let f = closure::<F>();
                let a = lanes.get::<A>(i.a);
                let mut d = [D::Stored::default(); LANES];
                for l in 0..LANES {
                    d[l] = f(A::read(a[l])).stored();
                }
                lanes.put::<D>(i.d, &d);
            }
        }
    }
    Operation::of::<Unary<A, D, F>>()
}

/// `d = f(a, b)`.
pub(crate) fn binary<A: Lane, B: Lane, D: Lane, F: Fn(A, B) -> D + Copy>(_: F) -> Operation {
    struct Binary<A, B, D, F>(PhantomData<(A, B, D, F)>);
    impl<A: Lane, B: Lane, D: Lane, F: Fn(A, B) -> D + Copy> Body for Binary<A, B, D, F> {
        #[inline(always)]
        unsafe fn run(lanes: &mut Lanes, i: &Instruction) {
            // SAFETY: `binary` was given a value of `F`; slots are those of the kernel.
            unsafe {
                let f = closure::<F>();
                let (a, b) = (lanes.get::<A>(i.a), lanes.get::<B>(i.b));
                let mut d = [D::Stored::default(); LANES];
                for l in 0..LANES {
                    d[l] = f(A::read(a[l]), B::read(b[l])).stored();
                }
                lanes.put::<D>(i.d, &d);
            }
        }
    }
    Operation::of::<Binary<A, B, D, F>>()
}

/// `d = f(a, b, c)`.
pub(crate) fn ternary<A: Lane, B: Lane, C: Lane, D: Lane, F: Fn(A, B, C) -> D + Copy>(_: F) -> Operation {
    struct Ternary<A, B, C, D, F>(PhantomData<(A, B, C, D, F)>);
    impl<A: Lane, B: Lane, C: Lane, D: Lane, F: Fn(A, B, C) -> D + Copy> Body for Ternary<A, B, C, D, F> {
        #[inline(always)]
        unsafe fn run(lanes: &mut Lanes, i: &Instruction) {
            // SAFETY: `ternary` was given a value of `F`; slots are those of the kernel.
            unsafe {
                let f = closure::<F>();
                let (a, b, c) = (lanes.get::<A>(i.a), lanes.get::<B>(i.b), lanes.get::<C>(i.c));
                let mut d = [D::Stored::default(); LANES];
                for l in 0..LANES {
                    d[l] = f(A::read(a[l]), B::read(b[l]), C::read(c[l])).stored();
                }
                lanes.put::<D>(i.d, &d);
            }
        }
    }
    Operation::of::<Ternary<A, B, C, D, F>>()
}

/// `d = f(a, b, c, e)`, all of one type but the last two.
pub(crate) fn quaternary<A: Lane, F: Fn(A, A, u32, u32) -> A + Copy>(_: F) -> Operation {
    struct Quaternary<A, F>(PhantomData<(A, F)>);
    impl<A: Lane, F: Fn(A, A, u32, u32) -> A + Copy> Body for Quaternary<A, F> {
        #[inline(always)]
        unsafe fn run(lanes: &mut Lanes, i: &Instruction) {
            // SAFETY: `quaternary` was given a value of `F`; slots are those of the kernel.
            unsafe {
                let f = closure::<F>();
                let (a, b) = (lanes.get::<A>(i.a), lanes.get::<A>(i.b));
                let (c, e) = (lanes.get::<u32>(i.c), lanes.get::<u32>(i.e));
                let mut d = [A::Stored::default(); LANES];
                for l in 0..LANES {
                    d[l] = f(A::read(a[l]), A::read(b[l]), c[l], e[l]).stored();
                }
                lanes.put::<A>(i.d, &d);
            }
        }
    }
    Operation::of::<Quaternary<A, F>>()
}

/// Sets predicate `d` where `f(a, b)`, combined as [`Combine`] says, and predicate `c` where not `f(a, b)`.
pub(crate) fn compare<A: Lane, F: Fn(A, A) -> bool + Copy>(_: F) -> Operation {
    struct Compare<A, F>(PhantomData<(A, F)>);
    impl<A: Lane, F: Fn(A, A) -> bool + Copy> Body for Compare<A, F> {
        #[inline(always)]
        unsafe fn run(lanes: &mut Lanes, i: &Instruction) {
            // SAFETY: `compare` was given a value of `F`; slots are those of the kernel.
            unsafe {
                let f = closure::<F>();
                let (a, b) = (lanes.get::<A>(i.a), lanes.get::<A>(i.b));
                let mut words = [0u32; LANES];
                for l in 0..LANES {
                    words[l] = u32::from(f(A::read(a[l]), A::read(b[l]))) << l;
                }
                let found = words.iter().fold(0, |all, word| all | word);
                if i.detail == Combine::NOTHING {
                    lanes.put_predicate(i.d, found);
                    return;
                }
                let (p, q) = Combine(i.detail).of(found, if i.e == NONE { 0 } else { lanes.predicate(i.e) });
                lanes.put_predicate(i.d, p);
                lanes.put_predicate(i.c, q);
            }
        }
    }
    Operation::of::<Compare<A, F>>()
}

/// How `setp` combines its comparison with a predicate: an operation, and whether the predicate is negated.
#[derive(Clone, Copy)]
pub(crate) struct Combine(pub u32);

impl Combine {
    /// One destination, no predicate.
    pub const NOTHING: u32 = 0;
    pub const NONE: u32 = 1;
    pub const AND: u32 = 2;
    pub const OR: u32 = 3;
    pub const XOR: u32 = 4;
    /// Added to one of the others.
    pub const NEGATED: u32 = 8;

    /// The two predicates.
    fn of(self, found: u32, predicate: u32) -> (u32, u32) {
        let other = if self.0 & Self::NEGATED != 0 { !predicate } else { predicate };
        match self.0 & !Self::NEGATED {
            Self::AND => (found & other, !found & other),
            Self::OR => (found | other, !found | other),
            Self::XOR => (found ^ other, !found ^ other),
            _ => (found, !found),
        }
    }
}
