//! Instructions that lanes execute together: shuffles, votes, matches, reductions. The warp has brought all lanes of the
//! mask here before it calls one of these.

use std::marker::PhantomData;

use crate::fault::FaultKind;
use crate::instruction::Instruction;
use crate::lanes::{LANES, Lane, Lanes};
use crate::operation::{Body, Operation};

/// How a shuffle finds the lane that it reads: whether that lane is within reach, and its number.
pub(crate) trait Reach {
    /// `segment` and `highest` are those of PTX's description of `shfl`.
    fn reach(lane: u32, b: u32, highest: u32, segment: u32) -> (bool, u32);
}

pub(crate) struct Up;
pub(crate) struct Down;
pub(crate) struct Butterfly;
pub(crate) struct Index;

impl Reach for Up {
    #[inline(always)]
    fn reach(lane: u32, b: u32, highest: u32, _: u32) -> (bool, u32) {
        let from = lane.wrapping_sub(b);
        (from as i32 >= highest as i32, from)
    }
}

impl Reach for Down {
    #[inline(always)]
    fn reach(lane: u32, b: u32, highest: u32, _: u32) -> (bool, u32) {
        (lane + b <= highest, lane + b)
    }
}

impl Reach for Butterfly {
    #[inline(always)]
    fn reach(lane: u32, b: u32, highest: u32, _: u32) -> (bool, u32) {
        (lane ^ b <= highest, lane ^ b)
    }
}

impl Reach for Index {
    #[inline(always)]
    fn reach(lane: u32, b: u32, highest: u32, segment: u32) -> (bool, u32) {
        let from = (lane & segment) | (b & !segment);
        (from <= highest, from)
    }
}

/// `shfl.sync.mode.b32 d|list[0], a, b, c, e`
struct Shuffle<R>(PhantomData<R>);

impl<R: Reach> Body for Shuffle<R> {
    #[inline(always)]
    unsafe fn run(lanes: &mut Lanes, i: &Instruction) {
        // SAFETY: slots are those of the kernel.
        unsafe {
            let (a, b, c) = (lanes.get::<u32>(i.a), lanes.get::<u32>(i.b), lanes.get::<u32>(i.c));
            let (mut d, mut reached, mut absent) = ([0; LANES], 0, 0);
            for l in 0..LANES {
                let (clamp, segment) = (c[l] & 31, c[l] >> 8 & 31);
                let highest = (l as u32 & segment) | (clamp & !segment);
                let (within, from) = R::reach(l as u32, b[l] & 31, highest, segment);
                let from = if within { from & 31 } else { l as u32 };
                absent |= (lanes.mask >> l & !(lanes.mask >> from) & 1) << l;
                reached |= u32::from(within) << l;
                d[l] = a[from as usize];
            }
            if absent != 0 {
                let l = absent.trailing_zeros() as usize;
                let (segment, clamp) = (c[l] >> 8 & 31, c[l] & 31);
                let highest = (l as u32 & segment) | (clamp & !segment);
                let (_, lane) = R::reach(l as u32, b[l] & 31, highest, segment);
                return lanes.fail(FaultKind::AbsentLane { lane }, l);
            }
            lanes.put::<u32>(i.d, &d);
            lanes.put_predicate(i.list[0], reached);
        }
    }
}

/// The shuffle `mode`.
pub(crate) fn shuffle(mode: &str) -> Option<Operation> {
    Some(match mode {
        "up" => Operation::of::<Shuffle<Up>>(),
        "down" => Operation::of::<Shuffle<Down>>(),
        "bfly" => Operation::of::<Shuffle<Butterfly>>(),
        "idx" => Operation::of::<Shuffle<Index>>(),
        _ => return None,
    })
}

/// Kinds of votes, in `Instruction::detail`.
pub(crate) const VOTE_ALL: u32 = 0;
pub(crate) const VOTE_ANY: u32 = 1;
pub(crate) const VOTE_UNIFORM: u32 = 2;
pub(crate) const VOTE_BALLOT: u32 = 3;
/// Added to a vote whose predicate is negated.
pub(crate) const VOTE_NOT: u32 = 4;

struct Vote;

impl Body for Vote {
    #[inline(always)]
    unsafe fn run(lanes: &mut Lanes, i: &Instruction) {
        // SAFETY: slots are those of the kernel.
        unsafe {
            let predicate = lanes.predicate(i.a) ^ if i.detail & VOTE_NOT != 0 { u32::MAX } else { 0 };
            let (true_in, all) = (predicate & lanes.mask, lanes.mask);
            let answer = match i.detail & 3 {
                VOTE_ALL => true_in == all,
                VOTE_ANY => true_in != 0,
                VOTE_UNIFORM => true_in == all || true_in == 0,
                _ => return lanes.put::<u32>(i.d, &[true_in; LANES]),
            };
            lanes.put_predicate(i.d, if answer { u32::MAX } else { 0 });
        }
    }
}

pub(crate) fn vote() -> Operation {
    Operation::of::<Vote>()
}

/// `match.any.sync` and, with a second destination `c`, `match.all.sync`.
struct Match<T, const ALL: bool>(PhantomData<T>);

impl<T: Lane<Stored = T> + PartialEq, const ALL: bool> Body for Match<T, ALL> {
    #[inline(always)]
    unsafe fn run(lanes: &mut Lanes, i: &Instruction) {
        // SAFETY: slots are those of the kernel.
        unsafe {
            let a = lanes.get::<T>(i.a);
            let mut d = [0; LANES];
            for l in lanes.lanes() {
                d[l] = lanes.lanes().filter(|other| a[*other] == a[l]).fold(0, |all, other| all | 1 << other);
            }
            if ALL {
                let same = lanes.mask != 0 && d[lanes.mask.trailing_zeros() as usize] == lanes.mask;
                lanes.put_predicate(i.c, if same { u32::MAX } else { 0 });
                d = [if same { lanes.mask } else { 0 }; LANES];
            }
            lanes.put::<u32>(i.d, &d);
        }
    }
}

/// `match.any` or `match.all` of 32 or 64 bits.
pub(crate) fn matches(all: bool, wide: bool) -> Operation {
    match (all, wide) {
        (false, false) => Operation::of::<Match<u32, false>>(),
        (false, true) => Operation::of::<Match<u64, false>>(),
        (true, false) => Operation::of::<Match<u32, true>>(),
        (true, true) => Operation::of::<Match<u64, true>>(),
    }
}

/// `redux.sync`: `detail` is the operation.
struct Reduce;

/// An operation of [`Reduce`] by its name.
type Reduction = (&'static str, fn(u32, u32) -> u32);

/// Operations of [`Reduce`].
pub(crate) const REDUCTIONS: [Reduction; 8] = [
    ("add", u32::wrapping_add),
    ("min.u32", |a, b| a.min(b)),
    ("max.u32", |a, b| a.max(b)),
    ("min.s32", |a, b| (a as i32).min(b as i32) as u32),
    ("max.s32", |a, b| (a as i32).max(b as i32) as u32),
    ("and", |a, b| a & b),
    ("or", |a, b| a | b),
    ("xor", |a, b| a ^ b),
];

impl Body for Reduce {
    #[inline(always)]
    unsafe fn run(lanes: &mut Lanes, i: &Instruction) {
        let (_, f) = REDUCTIONS[i.detail as usize];
        // SAFETY: slots are those of the kernel.
        unsafe {
            let a = lanes.get::<u32>(i.a);
            let d = lanes.lanes().map(|l| a[l]).reduce(f).unwrap_or(0);
            lanes.put::<u32>(i.d, &[d; LANES]);
        }
    }
}

pub(crate) fn reduce() -> Operation {
    Operation::of::<Reduce>()
}

/// `bar.warp.sync`
struct WarpBarrier;

impl Body for WarpBarrier {
    #[inline(always)]
    unsafe fn run(lanes: &mut Lanes, _: &Instruction) {
        lanes.view.warp_barrier(lanes.mask, lanes.alive);
    }
}

pub(crate) fn warp_barrier() -> Operation {
    Operation::of::<WarpBarrier>()
}

/// `activemask`: the lanes that run with this one.
struct ActiveMask;

impl Body for ActiveMask {
    #[inline(always)]
    unsafe fn run(lanes: &mut Lanes, i: &Instruction) {
        // SAFETY: slots are those of the kernel.
        unsafe { lanes.put::<u32>(i.d, &[lanes.mask; LANES]) };
    }
}

pub(crate) fn active_mask() -> Operation {
    Operation::of::<ActiveMask>()
}

/// Nothing.
struct Nothing;

impl Body for Nothing {
    #[inline(always)]
    unsafe fn run(_: &mut Lanes, _: &Instruction) {}
}

pub(crate) fn nothing() -> Operation {
    Operation::of::<Nothing>()
}
