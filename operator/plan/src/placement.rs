//! Placement: the GPU of each slot.
//!
//! A slot keeps its GPU while it fits there: no slot is moved to free memory or to balance load. A slot that serves
//! fits while the GPU alone is large enough for it, because floors may grow after placement, and growth of one slot
//! must not evict another. Slots without a GPU are placed by priority, then by age. Each takes the GPU with the most
//! memory above all floors, so that much can be lent. No slot takes capacity that an earlier slot could have used. A
//! new slot is checked against reported floors where they exceed the planned ones.

mod gpu_capacity;

use std::cmp::Reverse;
use std::collections::BTreeMap;

use self::gpu_capacity::GpuCapacity;
use crate::gpu::Gpu;
use crate::resource_demand::Demand;

/// A slot of a tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Its tenant, by name: a pool and its tenants share a namespace.
    pub tenant: String,
    /// Its index in the tenant.
    pub index: u32,
    /// The group that the tenant names; `None` = any group of the pool.
    pub group: Option<String>,
    /// Priority of the tenant: higher is placed first.
    pub priority: i32,
    /// Creation time of the tenant, seconds since 1970: among equals the oldest is placed first.
    pub created: i64,
    /// Resources that it takes; `None` = the model has not been inspected.
    pub demand: Option<Demand>,
    /// Resources that it takes of GPUs with other settings in force, by name, while an update is pending; `None` = it
    /// cannot run there.
    pub demand_by_gpu: BTreeMap<String, Option<Demand>>,
    /// It has a proxied engine, whose memory Sluice does not manage: it shares its GPU with no slot.
    pub is_exclusive: bool,
    /// The GPU that it has.
    pub current_gpu: Option<String>,
    /// Floor that its sidecar reports there, bytes; 0 = no report. The slot itself stays by its planned floor, which
    /// is the same on every GPU; new slots are checked against the reported one where it is larger.
    pub reported_floor_bytes: u64,
    /// A new leader has not polled its sidecar yet: no slot is added to the GPU until it has.
    pub is_floor_unknown: bool,
    /// Its pod is scheduled on that GPU's node with all its requests: neither later requests of other pods nor less
    /// host memory for the GPU evict it.
    pub is_admitted: bool,
    /// Its pod is ready: it has its floor, and moves only if the GPU changes or is too small for this slot alone.
    pub is_serving: bool,
}

impl Slot {
    /// Returns the resources that it takes of `gpu`; `None` = it cannot run there.
    pub fn demand_on(&self, gpu: &Gpu) -> Option<Demand> {
        match self.demand_by_gpu.get(&gpu.name) {
            Some(other) if self.demand.is_some() => *other,
            _ => Some(self.demand.unwrap_or_default()),
        }
    }
}

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

/// What a GPU lacks for a slot, from farthest to nearest to a fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum UnfitReason {
    /// Another slot of the tenant is there.
    #[error("another slot of this tenant is on it, and two slots of a tenant never share a GPU")]
    SameTenant,
    /// The settings in force until an update is applied do not fit the slot.
    #[error(
        "a change of the pool is pending there (spec.updatePolicy: WhenEmpty), and its current chunks are \
         too small for this model"
    )]
    UpdatePending,
    /// A proxied engine has the GPU or needs it exclusively.
    #[error("a Vllm engine does not share its GPU")]
    Exclusive,
    /// The demand of one of its slots is not known.
    #[error("a tenant on it has not been inspected")]
    Uninspected,
    /// The floors that its sidecars have determined are not known yet.
    #[error("the operator has just started and does not know the floors of its tenants yet")]
    FloorUnknown,
    /// It has its maximum number of slots.
    #[error("it has its maximum number of tenants")]
    Full,
    /// The floors of its slots leave too little.
    #[error("the floors of its tenants leave too little device memory: {} bytes are missing", .0.0)]
    DeviceMemory(Reverse<u64>),
    /// Its slots leave too little host memory.
    #[error("its tenants leave too little host memory: {} bytes are missing", .0.0)]
    HostMemory(Reverse<u64>),
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
