//! A pool with its tenants: what is to be, given what is.
//!
//! Nothing is remembered between two plans but what the cluster itself keeps: a Deployment says which claim its slot is on,
//! and a claim's name says its GPU and its epoch.

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
use crate::claims_in_force::current_claims;
use crate::conditions::ConditionResult;
use crate::epoch::Epoch;
use crate::gpu::Gpu;
use crate::objects::{PlacedSlot, claim_name};
use crate::observed::{ApplyFailure, ObservedClaim, ObservedIndex, ObservedPod, ObservedPool, SidecarReport};
use crate::placement::{Placement, Slot, UnfitReason, UnplacedReason, place};
use crate::resource_demand::{Demand, Geometry};
use crate::validate::ClusterFeatures;
use crate::zone_disruption::ZoneDisruption;

/// While a slot lacks host memory, which pods of others give back without a word, its pool is looked at so often, seconds.
const CAPACITY_RECHECK_SECONDS: i64 = 60;

/// What is there.
#[derive(Clone, Copy, Debug)]
pub struct PlanContext<'a> {
    /// The pool; `None` = there is none of that name.
    pub pool: Option<&'a GpuPool>,
    /// The tenants that refer to it, those that are being deleted aside.
    pub tenants: &'a [&'a ModelTenant],
    /// What is seen of them.
    pub observed: &'a ObservedPool,
    /// What the cluster can do.
    pub cluster: ClusterFeatures,
    /// A node that is not ready for so long is lost, seconds.
    pub grace_seconds: i64,
    /// Whether too many nodes are not ready at once.
    pub disruption: ZoneDisruption,
    /// Seconds since 1970.
    pub now: i64,
}

/// What went wrong when a plan was carried out, by tenant.
pub type ApplyErrors = BTreeMap<String, ApplyFailure>;

/// What is to be.
#[derive(Clone, Debug, Default)]
pub struct PoolPlan<'a> {
    /// GPUs of the pool, those without a slot among them.
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
    /// What it is.
    pub gpu: Gpu,
    /// The claim that it has or is to have; `None` = it has no slot, and so no claim.
    pub epoch: Option<Epoch>,
}

/// A tenant.
#[derive(Clone, Debug)]
pub struct TenantPlan<'a> {
    /// What was asked.
    pub tenant: &'a ModelTenant,
    /// Every reason why it cannot be served at all; empty = it is accepted.
    pub rejections: Vec<ConditionResult>,
    /// Sizes of its model; `None` = not known.
    pub model: Option<Geometry>,
    /// What its status keeps of an inspection.
    pub inspected: Option<ModelStatus>,
    /// Why it has no sizes, if somebody has looked.
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
    /// What it takes.
    pub demand: Demand,
    /// What it can never lend while it is awake, bytes: as its sidecar there has told, where that is more than was foreseen.
    pub floor_bytes: u64,
    /// What it may hold without asking anybody, bytes.
    pub share_bytes: u64,
    /// Whether that was dealt out: the sizes of its GPU and of its model are known.
    pub is_share_assigned: bool,
}

impl TenantPlan<'_> {
    /// Whether it can be served at all.
    pub fn is_accepted(&self) -> bool {
        self.rejections.is_empty()
    }

    /// The condition `Accepted`.
    pub fn accepted(&self) -> ConditionResult {
        ConditionResult::met_unless(&self.rejections)
    }

    /// Whether its model is to be inspected, be it anew: what could not be read then may be readable now.
    pub fn should_inspect(&self) -> bool {
        let reasons = [Reason::ModelUnreadable, Reason::ModelUnsupported];
        self.model.is_none() && self.rejections.iter().all(|refusal| reasons.contains(&refusal.reason))
    }
}

impl<'a> PoolPlan<'a> {
    /// What `slot` of `tenant` is rendered from; `None` = it has no GPU, or nobody knows its model.
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

    /// Slots on a GPU, with their tenants.
    pub fn slots_on(&self, gpu: usize) -> impl Iterator<Item = (&TenantPlan<'a>, &SlotPlan)> {
        let of = |&(tenant, slot): &(usize, usize)| {
            let tenant = &self.tenants[tenant];
            (tenant, &tenant.slots[slot])
        };
        self.slots.get(gpu).into_iter().flatten().map(of)
    }

    /// What was seen of the claim `name`.
    pub fn claim(&self, name: &str) -> Option<&'a ObservedClaim> {
        self.index.claim(name)
    }

    /// The pod of a slot on that claim which is to stay.
    pub fn pod(&self, tenant: &str, slot: u32, claim: &str) -> Option<&'a ObservedPod> {
        self.index.pod(tenant, slot, claim)
    }

    /// Tenants of a GPU that tell something of a holder of the turn, and what they told.
    pub(crate) fn peer_reports(&self, gpu: &str) -> &[(&'a str, &'a SidecarReport)] {
        self.index.peer_reports(gpu)
    }

    /// Seconds after which to plan again though nothing may have happened.
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

/// Plans a pool and its tenants. Without a pool nothing is placed, and nothing of what is there is to go.
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
    placement: &mut Placement,
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

/// Gives every GPU with a slot its epoch.
fn assign_epochs(plan: &mut PoolPlan<'_>, epochs: &[Epoch]) {
    let taken: BTreeSet<usize> =
        all_slots(plan).filter_map(|(_, slot)| slot.gpu_index.as_ref().ok().copied()).collect();
    for (at, (planned, epoch)) in plan.gpus.iter_mut().zip(epochs).enumerate() {
        planned.epoch = Some(*epoch).filter(|_| taken.contains(&at));
    }
}

/// Names of the claims that are to be there.
pub fn claim_names(plan: &PoolPlan<'_>) -> BTreeSet<String> {
    plan.gpus.iter().filter_map(|planned| Some(claim_name(&planned.gpu, planned.epoch?.number))).collect()
}
