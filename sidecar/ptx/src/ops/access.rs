//! Loads and stores.

use std::marker::PhantomData;
use std::sync::atomic::{Ordering, fence};

use crate::fault::Access;
use crate::instruction::Instruction;
use crate::lanes::{LANES, Lanes, Vector};
use crate::operation::{Body, Operation};
use crate::place::Named;

/// Bits of `Instruction::detail` above the space: sign-extend what is loaded.
pub(crate) const SIGNED: u32 = 1 << 3;
/// Nothing before the access moves behind it.
pub(crate) const RELEASE: u32 = 1 << 4;
/// Nothing behind the access moves before it.
pub(crate) const ACQUIRE: u32 = 1 << 5;
/// A volatile, relaxed, acquiring or releasing access, which races with no other such access.
pub(crate) const STRONG: u32 = 1 << 6;
/// The first of the bits that say whether a register of the vector has 64 bits.
pub(crate) const WIDE: u32 = 8;

/// What one register of an access moves.
pub(crate) trait Cell: Copy {
    fn extend(self, signed: bool) -> u64;
    fn cut(value: u64) -> Self;
}

macro_rules! cells {
    ($($T:ty, $Signed:ty;)*) => { $(
        impl Cell for $T {
            #[inline(always)]
            fn extend(self, signed: bool) -> u64 {
                if signed { self as $Signed as i64 as u64 } else { u64::from(self) }
            }
            #[inline(always)]
            fn cut(value: u64) -> Self { value as $T }
        }
    )* };
}
cells! { u8, i8; u16, i16; u32, i32; u64, i64; }

/// The addresses of all lanes.
///
/// # Safety
/// `i.a` is a register of the kernel, of 64 bits if `W`.
#[inline(always)]
pub(crate) unsafe fn addresses<const W: bool>(lanes: &Lanes, i: &Instruction) -> Vector<u64> {
    let mut all = [0; LANES];
    // SAFETY: the caller's promise.
    unsafe {
        if W {
            let base = lanes.get::<u64>(i.a);
            for l in 0..LANES {
                all[l] = base[l].wrapping_add(i.value);
            }
        } else {
            let base = lanes.get::<u32>(i.a);
            for l in 0..LANES {
                all[l] = u64::from(base[l].wrapping_add(i.value as u32));
            }
        }
    }
    all
}

/// What to add to the address of each lane of the mask, if a look at all of them says that every access is aligned and
/// within one piece of memory. Checks and profiles want each lane by itself.
#[inline(always)]
fn together(lanes: &mut Lanes, i: &Instruction, all: &Vector<u64>, bytes: u64) -> Option<*mut u8> {
    if lanes.view.inspects() {
        return None;
    }
    let (mut least, mut most, mut bits) = (u64::MAX, 0, 0);
    if lanes.mask == u32::MAX {
        for address in all {
            least = least.min(*address);
            most = most.max(*address);
            bits |= address;
        }
    } else {
        for l in 0..LANES {
            let runs = lanes.mask >> l & 1 != 0;
            least = least.min(if runs { all[l] } else { u64::MAX });
            most = most.max(if runs { all[l] } else { 0 });
            bits |= if runs { all[l] } else { 0 };
        }
    }
    if bits & (bytes - 1) != 0 {
        return None;
    }
    lanes.view.whole(Named::of(i.detail), least, most, bytes)
}

/// Whether the accesses of all 32 lanes follow each other without gaps.
#[inline(always)]
fn in_a_row(lanes: &Lanes, all: &Vector<u64>, bytes: u64) -> bool {
    let mut different = 0;
    for l in 0..LANES {
        different |= all[l] ^ all[0].wrapping_add(l as u64 * bytes);
    }
    different == 0 && lanes.mask == u32::MAX
}

/// A load of `b` registers of `T` each.
pub(crate) struct Load<T, const W: bool>(PhantomData<T>);

impl<T: Cell, const W: bool> Body for Load<T, W> {
    #[inline(always)]
    unsafe fn run(lanes: &mut Lanes, i: &Instruction) {
        // SAFETY: slots are those of the kernel; pointers come from the view, which has checked them.
        unsafe {
            let count = i.b as usize;
            let bytes = (count * size_of::<T>()) as u64;
            let all = addresses::<W>(lanes, i);
            let Some(base) = together(lanes, i, &all, bytes) else {
                return load_each::<T>(lanes, i, &all, bytes);
            };
            let signed = i.detail & SIGNED != 0;
            if count == 1 && !signed && i.detail >> WIDE & 1 == 0 && in_a_row(lanes, &all, bytes) {
                let from = base.wrapping_add(all[0] as usize).cast::<T>();
                let mut values = [0; LANES];
                for l in 0..LANES {
                    values[l] = from.add(l).read().extend(false) as u32;
                }
                lanes.put::<u32>(i.list[0], &values);
            } else {
                for k in 0..count {
                    let at = |l: usize| base.wrapping_add(all[l] as usize).cast::<T>().wrapping_add(k);
                    let wide = i.detail >> (WIDE + k as u32) & 1 != 0;
                    load_register(lanes, i, k, wide, |l| at(l).read_volatile().extend(signed));
                }
            }
            if i.detail & ACQUIRE != 0 {
                fence(Ordering::SeqCst);
            }
        }
    }
}

/// Sets register `k` of a vector in the lanes of the mask.
///
/// # Safety
/// `i.list[k]` is a register of the kernel, of 64 bits if `wide`.
#[inline(always)]
unsafe fn load_register(
    lanes: &mut Lanes,
    i: &Instruction,
    k: usize,
    wide: bool,
    value: impl Fn(usize) -> u64,
) {
    // SAFETY: the caller's promise.
    unsafe {
        if lanes.mask == u32::MAX && !wide {
            let mut values = [0; LANES];
            for l in 0..LANES {
                values[l] = value(l) as u32;
            }
            lanes.put::<u32>(i.list[k], &values);
        } else if lanes.mask == u32::MAX {
            let mut values = [0; LANES];
            for l in 0..LANES {
                values[l] = value(l);
            }
            lanes.put::<u64>(i.list[k], &values);
        } else {
            for l in lanes.lanes() {
                if wide {
                    lanes.put_lane::<u64>(i.list[k], l, value(l));
                } else {
                    lanes.put_lane::<u32>(i.list[k], l, value(l) as u32);
                }
            }
        }
    }
}

/// # Safety
/// As for [`Body::run`].
#[inline(never)]
unsafe fn load_each<T: Cell>(lanes: &mut Lanes, i: &Instruction, all: &Vector<u64>, bytes: u64) {
    let (named, signed) = (Named::of(i.detail), i.detail & SIGNED != 0);
    let access = if i.detail & STRONG != 0 { Access::Atomic } else { Access::Read };
    lanes.view.count(named, all, bytes, lanes.mask);
    for l in lanes.lanes() {
        let found = lanes.view.place(named, all[l], bytes, l);
        let found = found.and_then(|found| lanes.view.check_read(found, bytes, access, l));
        let from = match found {
            Ok(pointer) => pointer.cast::<T>(),
            Err(kind) => return lanes.fail(kind, l),
        };
        for k in 0..i.b as usize {
            // SAFETY: the view has checked the bytes; slots are those of the kernel.
            unsafe {
                let value = from.add(k).read_volatile().extend(signed);
                if i.detail >> (WIDE + k as u32) & 1 != 0 {
                    lanes.put_lane::<u64>(i.list[k], l, value);
                } else {
                    lanes.put_lane::<u32>(i.list[k], l, value as u32);
                }
            }
        }
    }
    if i.detail & ACQUIRE != 0 {
        fence(Ordering::SeqCst);
    }
}

/// A load of parameters at an offset that is the same for all lanes.
pub(crate) struct LoadParam<T>(PhantomData<T>);

impl<T: Cell> Body for LoadParam<T> {
    #[inline(always)]
    unsafe fn run(lanes: &mut Lanes, i: &Instruction) {
        let count = i.b as usize;
        let bytes = (count * size_of::<T>()) as u64;
        let from = match lanes.view.place(Named::Param, i.value, bytes, 0) {
            Ok((pointer, _)) => pointer.cast::<T>(),
            Err(kind) => return lanes.fail(kind, lanes.mask.trailing_zeros() as usize),
        };
        for k in 0..count {
            // SAFETY: the view has checked the bytes, which may be unaligned in the caller's slice; slots are those of
            // the kernel.
            unsafe {
                let value = from.add(k).read_unaligned().extend(i.detail & SIGNED != 0);
                if i.detail >> (WIDE + k as u32) & 1 != 0 {
                    lanes.put::<u64>(i.list[k], &[value; LANES]);
                } else {
                    lanes.put::<u32>(i.list[k], &[value as u32; LANES]);
                }
            }
        }
    }
}

/// A store of `b` registers of `T` each.
pub(crate) struct Store<T, const W: bool>(PhantomData<T>);

impl<T: Cell, const W: bool> Body for Store<T, W> {
    #[inline(always)]
    unsafe fn run(lanes: &mut Lanes, i: &Instruction) {
        // SAFETY: slots are those of the kernel; pointers come from the view, which has checked them.
        unsafe {
            let count = i.b as usize;
            let bytes = (count * size_of::<T>()) as u64;
            if i.detail & RELEASE != 0 {
                fence(Ordering::SeqCst);
            }
            let all = addresses::<W>(lanes, i);
            let Some(base) = together(lanes, i, &all, bytes) else {
                return store_each::<T>(lanes, i, &all, bytes);
            };
            if count == 1 && i.detail >> WIDE & 1 == 0 && in_a_row(lanes, &all, bytes) {
                let to = base.wrapping_add(all[0] as usize).cast::<T>();
                let values = lanes.get::<u32>(i.list[0]);
                for l in 0..LANES {
                    to.add(l).write(T::cut(u64::from(values[l])));
                }
                return;
            }
            for k in 0..count {
                let at = |l: usize| base.wrapping_add(all[l] as usize).cast::<T>().wrapping_add(k);
                if i.detail >> (WIDE + k as u32) & 1 != 0 {
                    let values = lanes.get::<u64>(i.list[k]);
                    lanes.lanes().for_each(|l| at(l).write_volatile(T::cut(values[l])));
                } else {
                    let values = lanes.get::<u32>(i.list[k]);
                    lanes.lanes().for_each(|l| at(l).write_volatile(T::cut(u64::from(values[l]))));
                }
            }
        }
    }
}

/// # Safety
/// As for [`Body::run`].
#[inline(never)]
unsafe fn store_each<T: Cell>(lanes: &mut Lanes, i: &Instruction, all: &Vector<u64>, bytes: u64) {
    let named = Named::of(i.detail);
    let access = if i.detail & STRONG != 0 { Access::Atomic } else { Access::Write };
    lanes.view.count(named, all, bytes, lanes.mask);
    for l in lanes.lanes() {
        let found = lanes.view.place(named, all[l], bytes, l);
        let found = found.and_then(|found| lanes.view.check_write(found, bytes, access, l));
        let to = match found {
            Ok(pointer) => pointer.cast::<T>(),
            Err(kind) => return lanes.fail(kind, l),
        };
        for k in 0..i.b as usize {
            // SAFETY: the view has checked the bytes; slots are those of the kernel.
            unsafe {
                let value = if i.detail >> (WIDE + k as u32) & 1 != 0 {
                    lanes.get_lane::<u64>(i.list[k], l)
                } else {
                    u64::from(lanes.get_lane::<u32>(i.list[k], l))
                };
                to.add(k).write_volatile(T::cut(value));
            }
        }
    }
}

/// The operation that loads (or stores) cells of `bytes` bytes each, with addresses in 64-bit registers if `wide`.
pub(crate) fn access(store: bool, bytes: u64, wide: bool) -> Operation {
    macro_rules! of {
        ($Op:ident) => {
            match (bytes, wide) {
                (1, true) => Operation::of::<$Op<u8, true>>(),
                (1, false) => Operation::of::<$Op<u8, false>>(),
                (2, true) => Operation::of::<$Op<u16, true>>(),
                (2, false) => Operation::of::<$Op<u16, false>>(),
                (4, true) => Operation::of::<$Op<u32, true>>(),
                (4, false) => Operation::of::<$Op<u32, false>>(),
                (_, true) => Operation::of::<$Op<u64, true>>(),
                (_, false) => Operation::of::<$Op<u64, false>>(),
            }
        };
    }
    if store { of!(Store) } else { of!(Load) }
}

/// The operation that loads parameters of `bytes` bytes each.
pub(crate) fn param(bytes: u64) -> Operation {
    match bytes {
        1 => Operation::of::<LoadParam<u8>>(),
        2 => Operation::of::<LoadParam<u16>>(),
        4 => Operation::of::<LoadParam<u32>>(),
        _ => Operation::of::<LoadParam<u64>>(),
    }
}
