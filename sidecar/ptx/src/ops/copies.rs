//! `cp.async`: copies from global to shared memory. Here no byte arrives before its thread waits for it, which is the
//! latest that a GPU may do; so a missing wait is seen in the result.

use crate::copies::Pending;
use crate::fault::{Access, FaultKind};
use crate::instruction::Instruction;
use crate::lanes::{Lanes, NONE};
use crate::operation::{Body, Operation};
use crate::place::Named;

/// `cp.async [d], [s], value {, b}`: `a` and `c` are the addresses with offsets in `list[0]` and `list[1]`.
struct Start;

impl Body for Start {
    #[inline(always)]
    unsafe fn run(lanes: &mut Lanes, i: &Instruction) {
        // SAFETY: slots are those of the kernel.
        let (to, from, take) = unsafe {
            (lanes.get::<u32>(i.a), lanes.get::<u64>(i.c), (i.b != NONE).then(|| lanes.get::<u32>(i.b)))
        };
        let offset = i64::from(i.list[1] as i32) as u64;
        let to = to.map(|to| u64::from(to.wrapping_add(i.list[0])));
        let from = from.map(|from| from.wrapping_add(offset));
        if lanes.view.inspects() {
            let reads =
                lanes.lanes().filter(|l| take.is_none_or(|take| take[*l] > 0)).fold(0, |all, l| all | 1 << l);
            lanes.view.count(Named::Shared, &to, i.value, lanes.mask);
            lanes.view.count(Named::Global, &from, i.value, reads);
        }
        for l in lanes.lanes() {
            let take = take.map_or(i.value, |take| u64::from(take[l]));
            if let Err(kind) =
                start(lanes, Pending { lane: l, group: 0, to: to[l], from: from[l], take, bytes: i.value })
            {
                return lanes.fail(kind, l);
            }
        }
    }
}

#[inline(always)]
fn start(lanes: &mut Lanes, copy: Pending) -> Result<(), FaultKind> {
    let Pending { lane, to, from, take, bytes, .. } = copy;
    if take > bytes {
        return Err(FaultKind::CopySize { take, bytes });
    }
    let target = lanes.view.place(Named::Shared, to, bytes, lane)?;
    if take > 0 {
        // The source is aligned for the whole copy, even where less is taken.
        if !from.is_multiple_of(bytes) {
            return Err(FaultKind::Misaligned { space: crate::fault::Space::Global, address: from, bytes });
        }
        source(lanes, &copy)?;
    }
    lanes.view.check_copy_start(target, bytes, lane)?;
    let group = lanes.view.copies.groups[lane];
    lanes.view.copies.pending.push(Pending { group, ..copy });
    Ok(())
}

/// The bytes that the copy takes. They may be fewer than its alignment, so they are looked up one piece at a time.
fn source(lanes: &mut Lanes, copy: &Pending) -> Result<*mut u8, FaultKind> {
    let piece = 1 << copy.take.trailing_zeros();
    let mut first = None;
    for at in (0..copy.take).step_by(piece as usize) {
        let found = lanes.view.place(Named::Global, copy.from + at, piece, copy.lane)?;
        let found = lanes.view.check_read(found, piece, Access::Read, copy.lane)?;
        first.get_or_insert(found);
    }
    Ok(first.expect("a copy that takes bytes"))
}

/// `cp.async.commit_group`
struct Commit;

impl Body for Commit {
    #[inline(always)]
    unsafe fn run(lanes: &mut Lanes, _: &Instruction) {
        for l in lanes.lanes() {
            lanes.view.copies.groups[l] += 1;
        }
    }
}

/// `cp.async.wait_group value`, and with `detail` = 1 `cp.async.wait_all`.
struct Wait;

impl Body for Wait {
    #[inline(always)]
    unsafe fn run(lanes: &mut Lanes, i: &Instruction) {
        if i.detail == 1 {
            // SAFETY: `Commit` uses no operand.
            unsafe { Commit::run(lanes, i) };
        }
        let pending = std::mem::take(&mut lanes.view.copies.pending);
        let mut kept = Vec::with_capacity(pending.len());
        for copy in pending {
            let committed = u64::from(lanes.view.copies.groups[copy.lane]);
            if lanes.mask >> copy.lane & 1 == 0 || u64::from(copy.group) + i.value >= committed {
                kept.push(copy);
            } else if let Err(kind) = finish(lanes, &copy) {
                lanes.fail(kind, copy.lane);
            }
        }
        lanes.view.copies.pending = kept;
    }
}

fn finish(lanes: &mut Lanes, copy: &Pending) -> Result<(), FaultKind> {
    // Mappings may have changed since the copy began, so its source is looked up again.
    let from = if copy.take > 0 { Some(source(lanes, copy)?) } else { None };
    let target = lanes.view.place(Named::Shared, copy.to, copy.bytes, copy.lane)?;
    let to = lanes.view.check_copy_end(target, copy.bytes, copy.lane)?;
    // SAFETY: the view has checked both places; global and shared memory are different memory.
    unsafe {
        if let Some(from) = from {
            to.copy_from_nonoverlapping(from, copy.take as usize);
        }
        to.add(copy.take as usize).write_bytes(0, (copy.bytes - copy.take) as usize);
    }
    Ok(())
}

pub(crate) fn start_copy() -> Operation {
    Operation::of::<Start>()
}

pub(crate) fn commit() -> Operation {
    Operation::of::<Commit>()
}

pub(crate) fn wait() -> Operation {
    Operation::of::<Wait>()
}
