//! `atom` and `red`.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};

use crate::fault::Access;
use crate::float;
use crate::instruction::Instruction;
use crate::lanes::{Lane, Lanes, NONE};
use crate::operation::{Body, Operation};
use crate::ops::access::addresses;
use crate::place::Named;
use crate::types::Ty;

/// Memory that an atomic operation can change.
pub(crate) trait Word: Lane<Stored = Self> + Default + PartialEq {
    /// Replaces the word by `f(old)` and returns the old one.
    ///
    /// # Safety
    /// The pointer is valid and aligned, and other users of the word use atomic operations.
    unsafe fn update(place: *mut u8, f: impl Fn(Self) -> Self) -> Self;
}

macro_rules! words {
    ($($T:ty, $Atomic:ty;)*) => { $(
        impl Word for $T {
            #[inline(always)]
            unsafe fn update(place: *mut u8, f: impl Fn(Self) -> Self) -> Self {
                // SAFETY: the caller's promise.
                let word = unsafe { <$Atomic>::from_ptr(place.cast()) };
                let mut old = word.load(SeqCst);
                while let Err(now) = word.compare_exchange_weak(old, f(old), SeqCst, SeqCst) {
                    old = now;
                }
                old
            }
        }
    )* };
}
words! { u32, AtomicU32; u64, AtomicU64; }

/// `d = [a]; [a] = f([a], b, c)`, one lane after the other.
struct Atomic<T, F, const W: bool>(PhantomData<(T, F)>);

/// What an atomic operation makes of the old value, `b` and `c`.
trait Change<T>: 'static {
    fn change(old: T, b: T, c: T) -> T;
}

impl<T: Word, F: Change<T>, const W: bool> Body for Atomic<T, F, W> {
    #[inline(always)]
    unsafe fn run(lanes: &mut Lanes, i: &Instruction) {
        let named = Named::of(i.detail);
        let bytes = size_of::<T>() as u64;
        // SAFETY: slots are those of the kernel.
        let all = unsafe { addresses::<W>(lanes, i) };
        lanes.view.count(named, &all, bytes, lanes.mask);
        for l in lanes.lanes() {
            let found = lanes.view.place(named, all[l], bytes, l);
            let found = found.and_then(|found| lanes.view.check_write(found, bytes, Access::Atomic, l));
            let place = match found {
                Ok(place) => place,
                Err(kind) => return lanes.fail(kind, l),
            };
            // SAFETY: the view has checked the bytes; slots are those of the kernel.
            unsafe {
                let b = lanes.get_lane::<T>(i.b, l);
                let c = if i.c == NONE { T::default() } else { lanes.get_lane::<T>(i.c, l) };
                let old = T::update(place, |old| F::change(old, b, c));
                if i.d != NONE {
                    lanes.put_lane::<T>(i.d, l, old);
                }
            }
        }
    }
}

macro_rules! changes {
    ($($Name:ident $T:ty, |$old:ident, $b:ident, $c:ident| $value:expr;)*) => { $(
        struct $Name;
        impl Change<$T> for $Name {
            #[inline(always)]
            fn change($old: $T, $b: $T, $c: $T) -> $T { $value }
        }
    )* };
}
changes! {
    Add32 u32, |old, b, _c| old.wrapping_add(b);
    Add64 u64, |old, b, _c| old.wrapping_add(b);
    AddF32 u32, |old, b, _c| float::canonical(f32::from_bits(old) + f32::from_bits(b)).to_bits();
    AddF64 u64, |old, b, _c| (f64::from_bits(old) + f64::from_bits(b)).to_bits();
    MinU32 u32, |old, b, _c| old.min(b);
    MaxU32 u32, |old, b, _c| old.max(b);
    MinS32 u32, |old, b, _c| (old as i32).min(b as i32) as u32;
    MaxS32 u32, |old, b, _c| (old as i32).max(b as i32) as u32;
    MinU64 u64, |old, b, _c| old.min(b);
    MaxU64 u64, |old, b, _c| old.max(b);
    MinS64 u64, |old, b, _c| (old as i64).min(b as i64) as u64;
    MaxS64 u64, |old, b, _c| (old as i64).max(b as i64) as u64;
    And32 u32, |old, b, _c| old & b;
    Or32 u32, |old, b, _c| old | b;
    Xor32 u32, |old, b, _c| old ^ b;
    And64 u64, |old, b, _c| old & b;
    Or64 u64, |old, b, _c| old | b;
    Xor64 u64, |old, b, _c| old ^ b;
    Exch32 u32, |_old, b, _c| b;
    Exch64 u64, |_old, b, _c| b;
    Cas32 u32, |old, b, c| if old == b { c } else { old };
    Cas64 u64, |old, b, c| if old == b { c } else { old };
    Inc32 u32, |old, b, _c| if old >= b { 0 } else { old + 1 };
    Dec32 u32, |old, b, _c| if old == 0 || old > b { b } else { old - 1 };
}

/// The operation `name` on words of type `ty`, with addresses in 64-bit registers if `wide`.
pub(crate) fn atomic(name: &str, ty: Ty, wide: bool) -> Option<Operation> {
    macro_rules! of {
        ($T:ty, $F:ty) => {
            if wide {
                Operation::of::<Atomic<$T, $F, true>>()
            } else {
                Operation::of::<Atomic<$T, $F, false>>()
            }
        };
    }
    Some(match (name, ty) {
        ("add", Ty::U32 | Ty::S32) => of!(u32, Add32),
        ("add", Ty::U64 | Ty::S64) => of!(u64, Add64),
        ("add", Ty::F32) => of!(u32, AddF32),
        ("add", Ty::F64) => of!(u64, AddF64),
        ("min", Ty::U32) => of!(u32, MinU32),
        ("max", Ty::U32) => of!(u32, MaxU32),
        ("min", Ty::S32) => of!(u32, MinS32),
        ("max", Ty::S32) => of!(u32, MaxS32),
        ("min", Ty::U64) => of!(u64, MinU64),
        ("max", Ty::U64) => of!(u64, MaxU64),
        ("min", Ty::S64) => of!(u64, MinS64),
        ("max", Ty::S64) => of!(u64, MaxS64),
        ("and", Ty::B32) => of!(u32, And32),
        ("or", Ty::B32) => of!(u32, Or32),
        ("xor", Ty::B32) => of!(u32, Xor32),
        ("and", Ty::B64) => of!(u64, And64),
        ("or", Ty::B64) => of!(u64, Or64),
        ("xor", Ty::B64) => of!(u64, Xor64),
        ("exch", Ty::B32) => of!(u32, Exch32),
        ("exch", Ty::B64) => of!(u64, Exch64),
        ("cas", Ty::B32) => of!(u32, Cas32),
        ("cas", Ty::B64) => of!(u64, Cas64),
        ("inc", Ty::U32) => of!(u32, Inc32),
        ("dec", Ty::U32) => of!(u32, Dec32),
        _ => return None,
    })
}
