//! Placement: the GPU of each slot.
//!
//! A slot keeps its GPU while it fits there: no slot is moved to free memory or to balance load. A slot that serves
//! fits while the GPU alone is large enough for it, because floors may grow after placement, and growth of one slot
//! must not evict another. Slots without a GPU are placed by priority, then by age. Each takes the GPU with the most
//! memory above all floors, so that much can be lent. No slot takes capacity that an earlier slot could have used. A
//! new slot is checked against reported floors where they exceed the planned ones.

mod gpu_capacity;
mod slot;
mod unfit_reason;

use std::cmp::Reverse;
use std::collections::BTreeMap;

use self::gpu_capacity::GpuCapacity;
pub use self::slot::Slot;
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
        "the tenant's floor of {floor_bytes} bytes exceeds its largest usable GPU, which has \
         {capacity_bytes} bytes; lower memory.guaranteedKv or raise memory.maxRemappedPercent"
    )]
    ModelLargerThanGpu {
        /// The floor, bytes.
        floor_bytes: u64,
        /// Device memory of the largest, bytes.
        capacity_bytes: u64,
    },
    /// Every GPU that it may use lacks something.
    #[error("no room on {tried} GPUs; the nearest is {gpu}: {misfit}")]
    NoRoom {
        /// GPUs that it may use.
        tried: usize,
        /// The one that lacks least.
        gpu: String,
        /// What that GPU lacks.
        misfit: UnfitReason,
    },
}

/// The GPU of every slot, or why it has none, by tenant and index.
pub type SlotPlacement = BTreeMap<(String, u32), Result<String, UnplacedReason>>;

/// Places every one of `slots` on one of `gpus`. The order of both does not matter.
pub fn place<'a>(gpus: &'a [Gpu], slots: &'a [Slot]) -> SlotPlacement {
    let mut rooms: Vec<GpuCapacity<'a>> = gpus.iter().map(GpuCapacity::new).collect();
    rooms.sort_by_key(|room| &room.gpu.name);
    let mut order: Vec<&Slot> = slots.iter().collect();
    order.sort_by_key(|slot| (Reverse(slot.priority), slot.created, &slot.tenant, slot.index));
    let mut placement = SlotPlacement::new();
    // Serving slots first, because their floors are in use; new slots last, on the remaining capacity.
    place_each(&mut order, &mut placement, |slot| {
        if slot.is_serving { keep_current_gpu(&mut rooms, slot) } else { None }
    });
    place_each(&mut order, &mut placement, |slot| keep_current_gpu(&mut rooms, slot));
    // All displaced slots count where they are until each is moved, so that none gives way to another displaced slot.
    let outgrown: Vec<&Slot> = order.iter().copied().filter(|slot| is_displaced(&mut rooms, slot)).collect();
    outgrown.iter().for_each(|slot| drop(current_gpu(&mut rooms, slot).map(|room| room.allocate(slot))));
    let makes_way = |slot: &'a Slot| outgrown.contains(&slot).then(|| relocate(&mut rooms, slot))?;
    place_each(&mut order, &mut placement, makes_way);
    placement.extend(order.into_iter().map(|slot| (slot_key(slot), find_gpu(&mut rooms, slot))));
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
        let homeless = on.is_none();
        placement.extend(on.map(|gpu| (slot_key(slot), Ok(gpu))));
        homeless
    });
}

/// Returns the GPU that the slot has, if it may use it.
fn current_gpu<'r, 'a>(rooms: &'r mut [GpuCapacity<'a>], slot: &Slot) -> Option<&'r mut GpuCapacity<'a>> {
    rooms.iter_mut().find(|room| room.is_gpu_of(slot) && room.can_use(slot))
}

/// Keeps a slot on its GPU, if it fits there.
fn keep_current_gpu<'a>(rooms: &mut [GpuCapacity<'a>], slot: &'a Slot) -> Option<String> {
    let room = current_gpu(rooms, slot).filter(|room| room.unfit_reason(slot).is_none())?;
    Some(room.allocate(slot))
}

/// Whether the floors of others displace a slot from its GPU.
fn is_displaced(rooms: &mut [GpuCapacity<'_>], slot: &Slot) -> bool {
    current_gpu(rooms, slot).is_some_and(|room| room.is_displaced(slot))
}

/// Moves a displaced slot to another GPU. If none has capacity, the slot stays and waits for memory: other slots may
/// shrink or be removed.
fn relocate<'a>(rooms: &mut [GpuCapacity<'a>], slot: &'a Slot) -> Option<String> {
    current_gpu(rooms, slot)?.release(slot);
    find_gpu(rooms, slot).ok().or_else(|| Some(current_gpu(rooms, slot)?.allocate(slot)))
}

/// Places a slot on the GPU with the most free memory, the first by name among equals.
fn find_gpu<'a>(rooms: &mut [GpuCapacity<'a>], slot: &'a Slot) -> Result<String, UnplacedReason> {
    let demand = slot.demand.ok_or(UnplacedReason::ModelNotInspected)?;
    check_group_exists(rooms, slot)?;
    check_floor_fits(rooms, slot, demand)?;
    let fits = |room: &&mut GpuCapacity<'_>| room.can_use(slot) && room.unfit_reason(slot).is_none();
    match rooms.iter_mut().filter(fits).min_by_key(|room| Reverse(room.free_bytes())) {
        Some(room) => Ok(room.allocate(slot)),
        None => Err(no_room_error(rooms, slot)),
    }
}

fn check_group_exists(rooms: &[GpuCapacity<'_>], slot: &Slot) -> Result<(), UnplacedReason> {
    if rooms.iter().any(|room| room.can_use(slot)) {
        return Ok(());
    }
    let staying = rooms.iter().filter(|room| !room.gpu.is_draining);
    let mut known: Vec<&str> = staying.map(|room| room.gpu.group.as_str()).collect();
    known.dedup();
    let group = slot.group.clone().unwrap_or_default();
    Err(UnplacedReason::GroupNotFound { group, known: known.join(", ") })
}

fn check_floor_fits(rooms: &[GpuCapacity<'_>], slot: &Slot, demand: Demand) -> Result<(), UnplacedReason> {
    let bytes = |room: &GpuCapacity<'_>| room.gpu.expected_bytes().unwrap_or(u64::MAX);
    let holds =
        |room: &GpuCapacity<'_>| slot.demand_on(room.gpu).is_some_and(|own| own.floor_bytes <= bytes(room));
    let usable = || rooms.iter().filter(|room| room.can_use(slot));
    let largest = usable().map(bytes).max().unwrap_or(0);
    // A GPU with an unsuitable pending setting may hold the slot once the update is applied.
    if demand.floor_bytes <= largest || usable().any(holds) {
        return Ok(());
    }
    Err(UnplacedReason::ModelLargerThanGpu { floor_bytes: demand.floor_bytes, capacity_bytes: largest })
}

fn no_room_error(rooms: &[GpuCapacity<'_>], slot: &Slot) -> UnplacedReason {
    let lacks = |room: &GpuCapacity<'_>| Some((room.unfit_reason(slot)?, room.gpu.name.clone()));
    let tried = rooms.iter().filter(|room| room.can_use(slot));
    let lacking: Vec<_> = tried.filter_map(lacks).collect();
    let tried = lacking.len();
    let nearest = lacking.into_iter().max_by(|(a, _), (b, _)| a.cmp(b));
    let (misfit, gpu) = nearest.expect("a slot without a GPU lacks something on each that it may use");
    UnplacedReason::NoRoom { tried, gpu, misfit }
}
