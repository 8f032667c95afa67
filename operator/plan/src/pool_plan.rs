//! The plan of a pool with its tenants: desired state from observed state.
//!
//! The only state between two plans is in the cluster: a Deployment names the claim of its slot, and a claim's name
//! contains its GPU and its epoch.

mod admission;
mod desired_slots;
mod share_plan;

use std::collections::{BTreeMap, BTreeSet};

use sluice_types::conditions::Reason;
use sluice_types::tenant::ModelStatus;
use sluice_types::{GpuPool, ModelTenant};
use sluice_wire::geometry::GeometryError;

use self::admission::{is_in_removed_group, reject_if_terminating, reject_oversized_kv, validate_tenant};
use self::desired_slots::{ClaimNames, PoolDemandParams, desired_slots};
use self::share_plan::assign_shares;
pub use self::share_plan::slot_memory;
use crate::claims_in_force::current_claims;
use crate::conditions::ConditionResult;
use crate::directives::{GpuPeers, PeerSidecar, SlotPeer};
use crate::epoch::Epoch;
use crate::gpu::Gpu;
use crate::objects::{PlacedSlot, claim_name};
use crate::observed::{ApplyFailure, ObservedClaim, ObservedIndex, ObservedPod, ObservedPool, SidecarReport};
use crate::placement::{Slot, SlotPlacement, UnfitReason, UnplacedReason, place};
use crate::resource_demand::{Demand, EngineGeometry};
use crate::spec_convert::sharing;
use crate::validate::ClusterFeatures;
use crate::zone_disruption::ZoneDisruption;

/// Interval of plans while a slot lacks host memory, seconds: no event reports that other pods freed some.
const CAPACITY_RECHECK_SECONDS: i64 = 60;

/// Input of a plan.
#[derive(Clone, Copy, Debug)]
pub struct PlanContext<'a> {
    /// The pool; `None` = no pool of that name exists.
    pub pool: Option<&'a GpuPool>,
    /// The tenants that refer to it, without those that are being deleted.
    pub tenants: &'a [&'a ModelTenant],
    /// Their observed state.
    pub observed: &'a ObservedPool,
    /// Features of the cluster.
    pub cluster: ClusterFeatures,
    /// A node that has not been ready for this long is lost, seconds.
    pub grace_seconds: i64,
    /// Whether too many nodes are not ready at once.
    pub disruption: ZoneDisruption,
    /// Seconds since 1970.
    pub now: i64,
}

/// Errors from applying a plan, by tenant.
pub type ApplyErrors = BTreeMap<String, ApplyFailure>;

/// The desired state.
#[derive(Clone, Debug, Default)]
pub struct PoolPlan<'a> {
    /// GPUs of the pool, including those without a slot.
    pub gpus: Vec<GpuPlan>,
    /// Its tenants, in the order given.
    pub tenants: Vec<TenantPlan<'a>>,
    /// Slots of each GPU, as indices of a tenant and of its slot.
    slots: Vec<Vec<(usize, usize)>>,
    index: ObservedIndex<'a>,
}

/// A GPU.
#[derive(Clone, Debug)]
pub struct GpuPlan {
    /// The GPU.
    pub gpu: Gpu,
    /// The epoch of its claim; `None` = it has no slot, and so no claim.
    pub epoch: Option<Epoch>,
}

/// A tenant.
#[derive(Clone, Debug)]
pub struct TenantPlan<'a> {
    /// The tenant that is planned.
    pub tenant: &'a ModelTenant,
    /// Every reason why it cannot be served at all; empty = it is accepted.
    pub rejections: Vec<ConditionResult>,
    /// Sizes of its model; `None` = not known.
    pub model: Option<EngineGeometry>,
    /// Inspection result for its status.
    pub inspected: Option<ModelStatus>,
    /// Why an inspection determined no sizes.
    pub inspection_error: Option<GeometryError>,
    /// Its slots.
    pub slots: Vec<SlotPlan>,
}

/// A slot.
#[derive(Clone, Debug)]
pub struct SlotPlan {
    /// Its index in the tenant.
    pub index: u32,
    /// Its GPU as an index into [`PoolPlan::gpus`], or why it has none.
    pub gpu_index: Result<usize, UnplacedReason>,
    /// Resources that it takes.
    pub demand: Demand,
    /// Memory that it cannot lend while it is awake, bytes: the reported value where that exceeds the planned one.
    pub floor_bytes: u64,
    /// Memory that it may hold without borrowing, bytes.
    pub share_bytes: u64,
    /// Whether the share is assigned: the sizes of its GPU and of its model are known.
    pub is_share_assigned: bool,
}

impl TenantPlan<'_> {
    /// Whether it can be served at all.
    pub fn is_accepted(&self) -> bool {
        self.rejections.is_empty()
    }

    /// Returns the condition `Accepted`.
    pub fn accepted(&self) -> ConditionResult {
        ConditionResult::met_unless(&self.rejections)
    }

    /// Whether its model needs an inspection, or another one: an unreadable model may be readable now.
    pub fn should_inspect(&self) -> bool {
        let reasons = [Reason::ModelUnreadable, Reason::ModelUnsupported];
        self.model.is_none() && self.rejections.iter().all(|refusal| reasons.contains(&refusal.reason))
    }
}

impl<'a> PoolPlan<'a> {
    /// Returns the input for rendering `slot` of `tenant`; `None` = it has no GPU, or its model is not known.
    pub fn placed_slot(
        &'a self,
        pool: &'a GpuPool,
        tenant: &TenantPlan<'a>,
        slot: &SlotPlan,
    ) -> Option<PlacedSlot<'a>> {
        let on = &self.gpus[*slot.gpu_index.as_ref().ok()?];
        Some(PlacedSlot {
            pool,
            tenant: tenant.tenant,
            index: slot.index,
            gpu: &on.gpu,
            epoch: on.epoch?.number,
            model: tenant.model?,
            demand: slot.demand,
            share_bytes: slot.share_bytes,
        })
    }

    /// Returns the slots on a GPU, with their tenants.
    pub fn slots_on(&self, gpu: usize) -> impl Iterator<Item = (&TenantPlan<'a>, &SlotPlan)> {
        let of = |&(tenant, slot): &(usize, usize)| {
            let tenant = &self.tenants[tenant];
            (tenant, &tenant.slots[slot])
        };
        self.slots.get(gpu).into_iter().flatten().map(of)
    }

    /// Returns the input for the directives of a GPU's slots. `sidecar` returns the sidecar of a slot; `None` = it has
    /// no address yet, and no directive names it.
    pub fn gpu_peers<'p>(
        &'p self,
        pool: &'p GpuPool,
        gpu: usize,
        sidecar: impl Fn(&TenantPlan<'a>, &SlotPlan) -> Option<PeerSidecar>,
    ) -> GpuPeers<'p> {
        let planned = &self.gpus[gpu];
        let seen = planned.epoch.and_then(|epoch| self.claim(&claim_name(&planned.gpu, epoch.number)));
        let peer = |(tenant, slot): (&TenantPlan<'a>, &SlotPlan)| {
            Some(SlotPeer {
                tenant: tenant.tenant,
                share_bytes: slot.share_bytes,
                is_share_assigned: slot.is_share_assigned,
                floor_bytes: slot.floor_bytes,
                sidecar: sidecar(tenant, slot)?,
            })
        };
        GpuPeers {
            pool,
            sharing: sharing(&planned.gpu.settings.sharing),
            claim_uid: seen.map(|claim| claim.uid.as_str()),
            gpu_uuid: seen.and_then(|claim| claim.device.as_ref()?.uuid.as_deref()),
            peers: self.slots_on(gpu).filter_map(peer).collect(),
        }
    }

    /// Returns the observed claim `name`.
    pub fn claim(&self, name: &str) -> Option<&'a ObservedClaim> {
        self.index.claim(name)
    }

    /// Returns the current pod of a slot on that claim.
    pub fn pod(&self, tenant: &str, slot: u32, claim: &str) -> Option<&'a ObservedPod> {
        self.index.pod(tenant, slot, claim)
    }

    /// Returns the tenants of a GPU that report on a holder of the time slice, with their reports.
    pub(crate) fn peer_reports(&self, gpu: &str) -> &[(&'a str, &'a SidecarReport)] {
        self.index.peer_reports(gpu)
    }

    /// Returns the seconds until the next plan without an event.
    pub fn requeue_after_seconds(&self) -> Option<i64> {
        let slots = self.tenants.iter().flat_map(|tenant| &tenant.slots);
        let lacks_host = |slot: &SlotPlan| {
            matches!(slot.gpu_index, Err(UnplacedReason::NoRoom { misfit: UnfitReason::HostMemory(_), .. }))
                .then_some(CAPACITY_RECHECK_SECONDS)
        };
        let epochs = self.gpus.iter().filter_map(|gpu| gpu.epoch?.requeue_after_seconds);
        epochs.chain(slots.filter_map(lacks_host)).min()
    }
}

/// Plans a pool and its tenants. Without a pool nothing is placed, and nothing that exists is removed.
pub fn plan<'a>(given: &PlanContext<'a>) -> PoolPlan<'a> {
    let Some(pool) = given.pool else {
        let tenants = given.tenants.iter().map(|tenant| validate_tenant(given, tenant, false)).collect();
        return PoolPlan { tenants, ..PoolPlan::default() };
    };
    let index = ObservedIndex::new(given.observed);
    let (gpus, epochs): (Vec<Gpu>, Vec<Epoch>) =
        current_claims(pool, &index, given).into_iter().map(|dated| (dated.gpu, dated.epoch)).unzip();
    let keeps = |tenant: &&ModelTenant| is_in_removed_group(tenant, &gpus, &index);
    let mut tenants: Vec<TenantPlan<'a>> =
        given.tenants.iter().map(|tenant| validate_tenant(given, tenant, keeps(tenant))).collect();
    let terms = PoolDemandParams::new(pool, &gpus);
    let claims: ClaimNames<'_> = gpus
        .iter()
        .zip(&epochs)
        .map(|(gpu, epoch)| (gpu.name.as_str(), claim_name(gpu, epoch.number)))
        .collect();
    for tenant in &mut tenants {
        reject_oversized_kv(tenant, &terms, &index);
        reject_if_terminating(tenant, pool, &index);
    }
    let wanted: Vec<Vec<Slot>> = tenants
        .iter()
        .map(|tenant| desired_slots(&terms, tenant, (&index, &claims), given.observed))
        .collect();
    let mut placement = place(&gpus, &wanted.concat());
    let by_name: BTreeMap<&str, usize> =
        gpus.iter().enumerate().map(|(index, gpu)| (gpu.name.as_str(), index)).collect();
    for (tenant, slots) in tenants.iter_mut().zip(wanted) {
        let on = |name: String| by_name[name.as_str()];
        tenant.slots = slots.iter().map(|slot| plan_slot(slot, &mut placement, &gpus, &on)).collect();
    }
    let gpus = gpus.into_iter().map(|gpu| GpuPlan { gpu, epoch: None }).collect();
    let mut plan = PoolPlan { gpus, tenants, ..PoolPlan::default() };
    plan.slots = slots_by_gpu(&plan);
    assign_shares(&mut plan, given.observed);
    assign_epochs(&mut plan, &epochs);
    PoolPlan { index, ..plan }
}

fn slots_by_gpu(plan: &PoolPlan<'_>) -> Vec<Vec<(usize, usize)>> {
    let mut all = vec![Vec::new(); plan.gpus.len()];
    for (at, tenant) in plan.tenants.iter().enumerate() {
        for (slot, planned) in tenant.slots.iter().enumerate() {
            if let Ok(gpu) = planned.gpu_index {
                all[gpu].push((at, slot));
            }
        }
    }
    all
}

fn plan_slot(
    slot: &Slot,
    placement: &mut SlotPlacement,
    gpus: &[Gpu],
    at: &impl Fn(String) -> usize,
) -> SlotPlan {
    let on =
        placement.remove(&(slot.tenant.clone(), slot.index)).expect("every slot is placed or not").map(at);
    let there = on.as_ref().ok().and_then(|gpu| slot.demand_on(&gpus[*gpu]));
    let demand = there.or(slot.demand).unwrap_or_default();
    SlotPlan {
        index: slot.index,
        gpu_index: on,
        demand,
        floor_bytes: demand.floor_bytes,
        share_bytes: 0,
        is_share_assigned: false,
    }
}

fn all_slots<'p>(plan: &'p PoolPlan<'_>) -> impl Iterator<Item = (&'p TenantPlan<'p>, &'p SlotPlan)> {
    plan.tenants.iter().flat_map(|tenant| tenant.slots.iter().map(move |slot| (tenant, slot)))
}

/// Sets the epoch of every GPU with a slot.
fn assign_epochs(plan: &mut PoolPlan<'_>, epochs: &[Epoch]) {
    let taken: BTreeSet<usize> =
        all_slots(plan).filter_map(|(_, slot)| slot.gpu_index.as_ref().ok().copied()).collect();
    for (at, (planned, epoch)) in plan.gpus.iter_mut().zip(epochs).enumerate() {
        planned.epoch = Some(*epoch).filter(|_| taken.contains(&at));
    }
}

/// Returns the names of the claims that should exist.
pub fn claim_names(plan: &PoolPlan<'_>) -> BTreeSet<String> {
    plan.gpus.iter().filter_map(|planned| Some(claim_name(&planned.gpu, planned.epoch?.number))).collect()
}
