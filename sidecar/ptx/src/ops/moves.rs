//! Moves between registers that closures of one lane do not express: vectors, predicates, clocks, fences.

use std::sync::OnceLock;
use std::sync::atomic::{Ordering, fence};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::instruction::Instruction;
use crate::lanes::{LANES, Lanes, NONE};
use crate::operation::{Body, Operation};

/// `mov {list}, a`: `b` parts of `detail` bits each.
struct Unpack<const WIDE: bool>;

impl<const WIDE: bool> Body for Unpack<WIDE> {
    #[inline(always)]
    unsafe fn run(lanes: &mut Lanes, i: &Instruction) {
        // SAFETY: slots are those of the kernel.
        unsafe {
            let source: [u64; LANES] =
                if WIDE { lanes.get::<u64>(i.a) } else { lanes.get::<u32>(i.a).map(u64::from) };
            for k in 0..i.b {
                let (slot, shift) = (i.list[k as usize], k * i.detail);
                if slot != NONE {
                    let mask = u32::MAX >> (32 - i.detail);
                    lanes.put::<u32>(slot, &source.map(|value| (value >> shift) as u32 & mask));
                }
            }
        }
    }
}

/// `mov d, {list}`: `b` parts of `detail` bits each.
struct Pack<const WIDE: bool>;

impl<const WIDE: bool> Body for Pack<WIDE> {
    #[inline(always)]
    unsafe fn run(lanes: &mut Lanes, i: &Instruction) {
        // SAFETY: slots are those of the kernel.
        unsafe {
            let mut all = [0u64; LANES];
            for k in 0..i.b {
                let part = lanes.get::<u32>(i.list[k as usize]);
                let mask = u32::MAX >> (32 - i.detail);
                for l in 0..LANES {
                    all[l] |= u64::from(part[l] & mask) << (k * i.detail);
                }
            }
            if WIDE {
                lanes.put::<u64>(i.d, &all)
            } else {
                lanes.put::<u32>(i.d, &all.map(|value| value as u32))
            }
        }
    }
}

pub(crate) fn unpack(wide: bool) -> Operation {
    if wide { Operation::of::<Unpack<true>>() } else { Operation::of::<Unpack<false>>() }
}

pub(crate) fn pack(wide: bool) -> Operation {
    if wide { Operation::of::<Pack<true>>() } else { Operation::of::<Pack<false>>() }
}

/// `d = a` where predicate `c`, else `b`.
struct Select<const WIDE: bool>;

impl<const WIDE: bool> Body for Select<WIDE> {
    #[inline(always)]
    unsafe fn run(lanes: &mut Lanes, i: &Instruction) {
        // SAFETY: slots are those of the kernel.
        unsafe {
            let chosen = lanes.predicate(i.c);
            macro_rules! select {
                ($T:ty) => {{
                    let (a, b) = (lanes.get::<$T>(i.a), lanes.get::<$T>(i.b));
                    let mut d = [0; LANES];
                    for l in 0..LANES {
                        d[l] = if chosen >> l & 1 != 0 { a[l] } else { b[l] };
                    }
                    lanes.put::<$T>(i.d, &d);
                }};
            }
            if WIDE { select!(u64) } else { select!(u32) }
        }
    }
}

pub(crate) fn select(wide: bool) -> Operation {
    if wide { Operation::of::<Select<true>>() } else { Operation::of::<Select<false>>() }
}

/// Operations of [`Predicates`], in `Instruction::detail`.
pub(crate) const AND: u32 = 0;
pub(crate) const OR: u32 = 1;
pub(crate) const XOR: u32 = 2;
pub(crate) const NOT: u32 = 3;
pub(crate) const COPY: u32 = 4;
pub(crate) const SET: u32 = 5;

/// Logic of whole predicates.
struct Predicates;

impl Body for Predicates {
    #[inline(always)]
    unsafe fn run(lanes: &mut Lanes, i: &Instruction) {
        // SAFETY: slots are those of the kernel.
        unsafe {
            let value = match i.detail {
                AND => lanes.predicate(i.a) & lanes.predicate(i.b),
                OR => lanes.predicate(i.a) | lanes.predicate(i.b),
                XOR => lanes.predicate(i.a) ^ lanes.predicate(i.b),
                NOT => !lanes.predicate(i.a),
                COPY => lanes.predicate(i.a),
                _ => i.value as u32,
            };
            lanes.put_predicate(i.d, value);
        }
    }
}

pub(crate) fn predicates() -> Operation {
    Operation::of::<Predicates>()
}

/// Clocks, in `Instruction::detail`.
pub(crate) const GLOBAL_TIMER: u32 = 0;
pub(crate) const CLOCK: u32 = 1;

/// Nanoseconds: since 1970 for `%globaltimer`, since the first look for `%clock`. `value` is how far to shift them.
struct Clock<const WIDE: bool>;

impl<const WIDE: bool> Body for Clock<WIDE> {
    #[inline(always)]
    unsafe fn run(lanes: &mut Lanes, i: &Instruction) {
        let now = now_ns(i.detail) >> i.value;
        // SAFETY: slots are those of the kernel.
        unsafe {
            if WIDE {
                lanes.put::<u64>(i.d, &[now; LANES])
            } else {
                lanes.put::<u32>(i.d, &[now as u32; LANES])
            }
        }
    }
}

#[inline(never)]
fn now_ns(clock: u32) -> u64 {
    static FIRST: OnceLock<Instant> = OnceLock::new();
    if clock == GLOBAL_TIMER {
        return SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
    }
    FIRST.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

pub(crate) fn clock(wide: bool) -> Operation {
    if wide { Operation::of::<Clock<true>>() } else { Operation::of::<Clock<false>>() }
}

/// `membar` and `fence`.
struct Fence;

impl Body for Fence {
    #[inline(always)]
    unsafe fn run(lanes: &mut Lanes, _: &Instruction) {
        fence(Ordering::SeqCst);
        lanes.view.fence(lanes.mask);
    }
}

pub(crate) fn memory_fence() -> Operation {
    Operation::of::<Fence>()
}
