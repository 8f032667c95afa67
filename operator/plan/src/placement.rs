//! Which GPU each slot gets.
//!
//! A slot that has a GPU keeps it for as long as it fits there: nothing is ever moved to make room or for balance. One that
//! serves there fits for as long as the GPU alone is large enough for it: floors of slots that fitted together may grow, and
//! nobody loses its GPU because another has grown. Slots without one are placed in the order of priority, then of age; each
//! takes the GPU that has the most memory left above all floors, so that there is much to lend. Nobody takes room that a slot
//! before it could have used. Whoever comes finds the floors that sidecars have told, where these are larger than foreseen.

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
    /// The group that the tenant names; `None` = any of the pool.
    pub group: Option<String>,
    /// Priority of the tenant: higher is placed first.
    pub priority: i32,
    /// When the tenant was made, seconds since 1970: among equals the oldest is placed first.
    pub created: i64,
    /// What it takes; `None` = the model has not been inspected.
    pub demand: Option<Demand>,
    /// What it takes of GPUs that are made of something else, by name, while a change waits there; `None` = it cannot run on it.
    pub demand_by_gpu: BTreeMap<String, Option<Demand>>,
    /// Its engine's memory is not ours (a proxied engine): nobody shares a GPU with it.
    pub is_exclusive: bool,
    /// The GPU that it has.
    pub current_gpu: Option<String>,
    /// What its sidecar there has found to be its floor, bytes; 0 = it has told nothing. It stays by what is foreseen, which is
    /// the same wherever it would go; others come by this, where it is more.
    pub reported_floor_bytes: u64,
    /// A leader that has just begun has not asked its sidecar there yet: nobody joins it meanwhile.
    pub is_floor_unknown: bool,
    /// Its pod is on that GPU's node, which took it with all that it asks for: what others ask for since turns it away no more,
    /// nor does less host memory for the GPU.
    pub is_admitted: bool,
    /// Its pod is ready there: it has its floor, and goes only if the GPU is another one or too small for it alone.
    pub is_serving: bool,
}

impl Slot {
    /// What it takes of `gpu`; `None` = it cannot run on it.
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
    /// Nobody knows yet how large its model is.
    #[error("the model has not been inspected yet")]
    ModelNotInspected,
    /// The pool has no such group.
    #[error("the pool has no group `{group}` ({known})")]
    GroupNotFound {
        /// What the tenant names.
        group: String,
        /// What there is.
        known: String,
    },
    /// Its floor exceeds every GPU that it may use.
    #[error(
        "its floor of {floor_bytes} bytes exceeds the largest GPU that it may use, of {capacity_bytes} bytes; lower \
         memory.guaranteedKv, or raise memory.maxRemappedPercent"
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
        /// What that one lacks.
        misfit: UnfitReason,
    },
}

/// What a GPU lacks for a slot. Later ones are nearer to a fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum UnfitReason {
    /// Another slot of the tenant is there.
    #[error("it has another slot of the same tenant, and two slots of a tenant never share a GPU")]
    SameTenant,
    /// What it is made of until a change is carried out does not do for the slot.
    #[error(
        "a change waits there (spec.updatePolicy), and what it is made of until then has too small chunks"
    )]
    UpdatePending,
    /// A proxied engine has or needs it for itself.
    #[error("a proxied engine's memory cannot be shared")]
    Exclusive,
    /// Nobody knows what one of its slots takes.
    #[error("a tenant on it has not been inspected")]
    Uninspected,
    /// What its sidecars have found to be their floors is not known yet.
    #[error("the operator has just started, and has not heard yet which floors are in force there")]
    FloorUnknown,
    /// It has as many slots as it takes.
    #[error("it has as many tenants as it takes")]
    Full,
    /// The floors of its slots leave too little.
    #[error("its floors leave too little device memory, {} bytes are missing", .0.0)]
    DeviceMemory(Reverse<u64>),
    /// Its slots leave too little host memory.
    #[error("its tenants leave too little host memory, {} bytes are missing", .0.0)]
    HostMemory(Reverse<u64>),
}

/// The GPU of every slot, or why it has none, by tenant and index.
pub type Placement = BTreeMap<(String, u32), Result<String, UnplacedReason>>;

/// Places every one of `slots` on one of `gpus`. Neither order matters.
pub fn place<'a>(gpus: &'a [Gpu], slots: &'a [Slot]) -> Placement {
    let mut rooms: Vec<GpuCapacity<'a>> = gpus.iter().map(GpuCapacity::new).collect();
    rooms.sort_by_key(|room| &room.gpu.name);
    let mut order: Vec<&Slot> = slots.iter().collect();
    order.sort_by_key(|slot| (Reverse(slot.priority), slot.created, &slot.tenant, slot.index));
    let mut placement = Placement::new();
    // Who serves comes first, since its floor is taken; who comes anew finds what all others have left.
    place_each(&mut order, &mut placement, |slot| {
        if slot.is_serving { keep_current_gpu(&mut rooms, slot) } else { None }
    });
    place_each(&mut order, &mut placement, |slot| keep_current_gpu(&mut rooms, slot));
    // Nobody makes way for one who is to make way as well: until then each has its room where it is.
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

/// Takes those out of `order` to whom `step` gives a GPU.
fn place_each<'a>(
    order: &mut Vec<&'a Slot>,
    placement: &mut Placement,
    mut step: impl FnMut(&'a Slot) -> Option<String>,
) {
    order.retain(|slot| {
        let on = step(slot);
        let homeless = on.is_none();
        placement.extend(on.map(|gpu| (slot_key(slot), Ok(gpu))));
        homeless
    });
}

/// The GPU that the slot has, if it may use it.
fn current_gpu<'r, 'a>(rooms: &'r mut [GpuCapacity<'a>], slot: &Slot) -> Option<&'r mut GpuCapacity<'a>> {
    rooms.iter_mut().find(|room| room.is_gpu_of(slot) && room.can_use(slot))
}

/// Leaves a slot where it is, if it fits there.
fn keep_current_gpu<'a>(rooms: &mut [GpuCapacity<'a>], slot: &'a Slot) -> Option<String> {
    let room = current_gpu(rooms, slot).filter(|room| room.unfit_reason(slot).is_none())?;
    Some(room.allocate(slot))
}

/// Whether others have outgrown a slot on the GPU that it has.
fn is_displaced(rooms: &mut [GpuCapacity<'_>], slot: &Slot) -> bool {
    current_gpu(rooms, slot).is_some_and(|room| room.is_displaced(slot))
}

/// Gives a slot that others have outgrown another GPU. If none has room it stays, and waits for its memory: they may shrink or go.
fn relocate<'a>(rooms: &mut [GpuCapacity<'a>], slot: &'a Slot) -> Option<String> {
    current_gpu(rooms, slot)?.release(slot);
    find_gpu(rooms, slot).ok().or_else(|| Some(current_gpu(rooms, slot)?.allocate(slot)))
}

/// Gives a slot the GPU with the most memory left, the first by name among equals.
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
    // One that it cannot run on for another reason may hold it once a change is carried out.
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
