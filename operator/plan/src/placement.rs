//! Placement: the GPU of each slot.
//!
//! A slot keeps its GPU while it fits there: no slot is moved to free memory or to balance load. A slot that serves
//! fits while the GPU alone is large enough for it, because floors may grow after placement, and growth of one slot
//! must not evict another. Slots without a GPU are placed by priority, then by age. Each takes the GPU with the most
//! memory above all floors, so that much can be lent. No slot takes capacity that an earlier slot could have used. A
//! new slot is checked against reported floors where they exceed the planned ones.

mod gpu_capacity;
mod slot;
mod smaller_floor;
mod unfit_reason;

use std::cmp::Reverse;
use std::collections::BTreeMap;

use sluice_common::text::{bytes, counted};

use self::gpu_capacity::GpuCapacity;
pub use self::slot::Slot;
pub use self::smaller_floor::SmallerFloor;
pub use self::unfit_reason::UnfitReason;
use crate::gpu::Gpu;
use crate::resource_demand::Demand;

/// Why a slot has no GPU.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnplacedReason {
    /// The size of its model is not known yet.
    #[error("the model has not been inspected yet")]
    ModelNotInspected,
    /// The pool has no such group.
    #[error("the pool has no group `{group}`; its groups are {known}")]
    GroupNotFound {
        /// The group that the tenant names.
        group: String,
        /// The groups of the pool.
        known: String,
    },
    /// Its floor exceeds every GPU that it may use.
    #[error(
        "the tenant's floor of {}{} exceeds its largest usable GPU, which has {}{}",
        bytes(*floor_bytes), contexts(*context_bytes), bytes(*capacity_bytes), smaller_floor.advice()
    )]
    ModelLargerThanGpu {
        /// The floor, bytes.
        floor_bytes: u64,
        /// The part of the floor for CUDA contexts, bytes.
        context_bytes: u64,
        /// Device memory of the largest, bytes.
        capacity_bytes: u64,
        /// What would lower the floor.
        smaller_floor: SmallerFloor,
    },
    /// Every GPU that it may use lacks something.
    #[error("no room on {}; the nearest is {gpu}: {misfit}", counted(*tried, "GPU"))]
    NoCapacity {
        /// GPUs that it may use.
        tried: usize,
        /// The one that lacks least.
        gpu: String,
        /// What that GPU lacks.
        misfit: UnfitReason,
    },
}

/// Returns what the contexts take of a floor, as a part of a sentence; empty if there are none.
fn contexts(context_bytes: u64) -> String {
    match context_bytes {
        0 => String::new(),
        some => format!(", of which {} are for CUDA contexts (device.contextReserve),", bytes(some)),
    }
}

/// The GPU of every slot, or why it has none, by tenant and index.
pub type SlotPlacement = BTreeMap<(String, u32), Result<String, UnplacedReason>>;

/// Places every one of `slots` on one of `gpus`. The order of both does not matter.
pub fn place<'a>(gpus: &'a [Gpu], slots: &'a [Slot]) -> SlotPlacement {
    let mut capacities: Vec<GpuCapacity<'a>> = gpus.iter().map(GpuCapacity::new).collect();
    capacities.sort_by_key(|capacity| &capacity.gpu.name);
    let mut order: Vec<&Slot> = slots.iter().collect();
    order.sort_by_key(|slot| (Reverse(slot.priority), slot.created, &slot.tenant, slot.index));
    let mut placement = SlotPlacement::new();
    // Serving slots first, because their floors are in use; new slots last, on the remaining capacity.
    place_each(&mut order, &mut placement, |slot| {
        if slot.is_serving { keep_current_gpu(&mut capacities, slot) } else { None }
    });
    place_each(&mut order, &mut placement, |slot| keep_current_gpu(&mut capacities, slot));
    // All displaced slots count where they are until each is moved, so that none gives way to another displaced slot.
    let displaced: Vec<&Slot> =
        order.iter().copied().filter(|slot| is_displaced(&mut capacities, slot)).collect();
    displaced
        .iter()
        .for_each(|slot| drop(current_gpu(&mut capacities, slot).map(|capacity| capacity.allocate(slot))));
    let makes_way = |slot: &'a Slot| displaced.contains(&slot).then(|| relocate(&mut capacities, slot))?;
    place_each(&mut order, &mut placement, makes_way);
    placement.extend(order.into_iter().map(|slot| (slot_key(slot), find_gpu(&mut capacities, slot))));
    placement
}

fn slot_key(slot: &Slot) -> (String, u32) {
    (slot.tenant.clone(), slot.index)
}

/// Removes the slots from `order` that `step` places.
fn place_each<'a>(
    order: &mut Vec<&'a Slot>,
    placement: &mut SlotPlacement,
    mut step: impl FnMut(&'a Slot) -> Option<String>,
) {
    order.retain(|slot| {
        let on = step(slot);
        let is_unplaced = on.is_none();
        placement.extend(on.map(|gpu| (slot_key(slot), Ok(gpu))));
        is_unplaced
    });
}

/// Returns the GPU that the slot has, if it may use it.
fn current_gpu<'r, 'a>(
    capacities: &'r mut [GpuCapacity<'a>],
    slot: &Slot,
) -> Option<&'r mut GpuCapacity<'a>> {
    capacities.iter_mut().find(|capacity| capacity.is_gpu_of(slot) && capacity.can_use(slot))
}

/// Keeps a slot on its GPU, if it fits there.
fn keep_current_gpu<'a>(capacities: &mut [GpuCapacity<'a>], slot: &'a Slot) -> Option<String> {
    let capacity = current_gpu(capacities, slot).filter(|capacity| capacity.unfit_reason(slot).is_none())?;
    Some(capacity.allocate(slot))
}

/// Whether the floors of others displace a slot from its GPU.
fn is_displaced(capacities: &mut [GpuCapacity<'_>], slot: &Slot) -> bool {
    current_gpu(capacities, slot).is_some_and(|capacity| capacity.is_displaced(slot))
}

/// Moves a displaced slot to another GPU. If none has capacity, the slot stays and waits for memory: other slots may
/// shrink or be removed.
fn relocate<'a>(capacities: &mut [GpuCapacity<'a>], slot: &'a Slot) -> Option<String> {
    current_gpu(capacities, slot)?.release(slot);
    find_gpu(capacities, slot).ok().or_else(|| Some(current_gpu(capacities, slot)?.allocate(slot)))
}

/// Places a slot on the GPU with the most free memory, the first by name among equals.
fn find_gpu<'a>(capacities: &mut [GpuCapacity<'a>], slot: &'a Slot) -> Result<String, UnplacedReason> {
    let demand = slot.demand.ok_or(UnplacedReason::ModelNotInspected)?;
    check_group_exists(capacities, slot)?;
    check_floor_fits(capacities, slot, demand)?;
    let fits =
        |capacity: &&mut GpuCapacity<'_>| capacity.can_use(slot) && capacity.unfit_reason(slot).is_none();
    match capacities.iter_mut().filter(fits).min_by_key(|capacity| Reverse(capacity.free_bytes())) {
        Some(capacity) => Ok(capacity.allocate(slot)),
        None => Err(no_capacity_error(capacities, slot)),
    }
}

fn check_group_exists(capacities: &[GpuCapacity<'_>], slot: &Slot) -> Result<(), UnplacedReason> {
    if capacities.iter().any(|capacity| capacity.can_use(slot)) {
        return Ok(());
    }
    let staying = capacities.iter().filter(|capacity| !capacity.gpu.is_draining);
    let mut known: Vec<&str> = staying.map(|capacity| capacity.gpu.group.as_str()).collect();
    known.dedup();
    let group = slot.group.clone().unwrap_or_default();
    Err(UnplacedReason::GroupNotFound { group, known: known.join(", ") })
}

fn check_floor_fits(
    capacities: &[GpuCapacity<'_>],
    slot: &Slot,
    demand: Demand,
) -> Result<(), UnplacedReason> {
    let bytes = |capacity: &GpuCapacity<'_>| capacity.gpu.expected_bytes().unwrap_or(u64::MAX);
    let holds = |capacity: &GpuCapacity<'_>| {
        slot.demand_on(capacity.gpu).is_some_and(|own| own.floor_bytes <= bytes(capacity))
    };
    let usable = || capacities.iter().filter(|capacity| capacity.can_use(slot));
    let largest = usable().map(bytes).max().unwrap_or(0);
    // A GPU with an unsuitable pending setting may hold the slot once the update is applied.
    if demand.floor_bytes <= largest || usable().any(holds) {
        return Ok(());
    }
    Err(UnplacedReason::ModelLargerThanGpu {
        floor_bytes: demand.floor_bytes,
        context_bytes: demand.context_bytes,
        capacity_bytes: largest,
        smaller_floor: slot.smaller_floor,
    })
}

fn no_capacity_error(capacities: &[GpuCapacity<'_>], slot: &Slot) -> UnplacedReason {
    let lacks = |capacity: &GpuCapacity<'_>| Some((capacity.unfit_reason(slot)?, capacity.gpu.name.clone()));
    let tried = capacities.iter().filter(|capacity| capacity.can_use(slot));
    let lacking: Vec<_> = tried.filter_map(lacks).collect();
    let tried = lacking.len();
    let nearest = lacking.into_iter().max_by(|(a, _), (b, _)| a.cmp(b));
    let (misfit, gpu) = nearest.expect("a slot without a GPU lacks something on each that it may use");
    UnplacedReason::NoCapacity { tried, gpu, misfit }
}
