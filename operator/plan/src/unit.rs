//! A pool with its tenants: what is to be, given what is.
//!
//! Nothing is remembered between two plans but what the cluster itself keeps: a Deployment says which claim its slot is on,
//! and a claim's name says its GPU and its epoch.

mod admission;
mod dealt;
mod wanted;

use std::collections::{BTreeMap, BTreeSet};

use sluice_types::conditions::Reason;
use sluice_types::tenant::ModelStatus;
use sluice_types::{GpuPool, ModelTenant};
use sluice_wire::geometry::Refusal;

use self::admission::{admitted, fit, keeps_group, turn_away};
use self::dealt::share_out;
use self::wanted::{Claims, PoolTerms, wanted};
use crate::accept::Cluster;
use crate::dated::dated;
use crate::demand::{Demand, Geometry};
use crate::epoch::Epoch;
use crate::gpu::Gpu;
use crate::objects::{Placed, claim_name};
use crate::outage::Outage;
use crate::place::{Misfit, Placement, Slot, Unplaced, place};
use crate::seen::{ClaimSeen, Index, PodSeen, Report, Seen, Trouble};
use crate::status::Finding;

/// While a slot lacks host memory, which pods of others give back without a word, its pool is looked at so often, seconds.
const ROOM_SECONDS: i64 = 60;

/// What is there.
#[derive(Clone, Copy, Debug)]
pub struct Given<'a> {
    /// The pool; `None` = there is none of that name.
    pub pool: Option<&'a GpuPool>,
    /// The tenants that refer to it, those that are being deleted aside.
    pub tenants: &'a [&'a ModelTenant],
    /// What is seen of them.
    pub seen: &'a Seen,
    /// What the cluster can do.
    pub cluster: Cluster,
    /// A node that is not ready for so long is lost, seconds.
    pub grace_seconds: i64,
    /// Whether too many nodes are not ready at once.
    pub outage: Outage,
    /// Seconds since 1970.
    pub now: i64,
}

/// What went wrong when a plan was carried out, by tenant.
pub type Troubles = BTreeMap<String, Trouble>;

/// What is to be.
#[derive(Clone, Debug, Default)]
pub struct Plan<'a> {
    /// GPUs of the pool, those without a slot among them.
    pub gpus: Vec<GpuPlan>,
    /// Its tenants, in the order given.
    pub tenants: Vec<TenantPlan<'a>>,
    /// Slots of each GPU, as indices of a tenant and of its slot.
    slots: Vec<Vec<(usize, usize)>>,
    index: Index<'a>,
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
    pub refusals: Vec<Finding>,
    /// Sizes of its model; `None` = not known.
    pub model: Option<Geometry>,
    /// What its status keeps of an inspection.
    pub inspected: Option<ModelStatus>,
    /// Why it has no sizes, if somebody has looked.
    pub refusal: Option<Refusal>,
    /// Its slots.
    pub slots: Vec<SlotPlan>,
}

/// A slot.
#[derive(Clone, Debug)]
pub struct SlotPlan {
    /// Its index in the tenant.
    pub index: u32,
    /// Its GPU as an index into [`Plan::gpus`], or why it has none.
    pub on: Result<usize, Unplaced>,
    /// What it takes.
    pub demand: Demand,
    /// What it can never lend while it is awake, bytes: as its sidecar there has told, where that is more than was foreseen.
    pub floor_bytes: u64,
    /// What it may hold without asking anybody, bytes.
    pub share_bytes: u64,
    /// Whether that was dealt out: the sizes of its GPU and of its model are known.
    pub dealt: bool,
}

impl TenantPlan<'_> {
    /// Whether it can be served at all.
    pub fn is_accepted(&self) -> bool {
        self.refusals.is_empty()
    }

    /// The condition `Accepted`.
    pub fn accepted(&self) -> Finding {
        Finding::unless(&self.refusals)
    }

    /// Whether its model is to be inspected, be it anew: what could not be read then may be readable now.
    pub fn to_be_inspected(&self) -> bool {
        let reasons = [Reason::ModelUnreadable, Reason::ModelUnsupported];
        self.model.is_none() && self.refusals.iter().all(|refusal| reasons.contains(&refusal.reason))
    }
}

impl<'a> Plan<'a> {
    /// What `slot` of `tenant` is rendered from; `None` = it has no GPU, or nobody knows its model.
    pub fn placed(
        &'a self,
        pool: &'a GpuPool,
        tenant: &TenantPlan<'a>,
        slot: &SlotPlan,
    ) -> Option<Placed<'a>> {
        let on = &self.gpus[*slot.on.as_ref().ok()?];
        Some(Placed {
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
    pub fn on(&self, gpu: usize) -> impl Iterator<Item = (&TenantPlan<'a>, &SlotPlan)> {
        let of = |&(tenant, slot): &(usize, usize)| {
            let tenant = &self.tenants[tenant];
            (tenant, &tenant.slots[slot])
        };
        self.slots.get(gpu).into_iter().flatten().map(of)
    }

    /// What was seen of the claim `name`.
    pub fn claim(&self, name: &str) -> Option<&'a ClaimSeen> {
        self.index.claim(name)
    }

    /// The pod of a slot on that claim which is to stay.
    pub fn pod(&self, tenant: &str, slot: u32, claim: &str) -> Option<&'a PodSeen> {
        self.index.pod(tenant, slot, claim)
    }

    /// Tenants of a GPU that tell something of a holder of the turn, and what they told.
    pub(crate) fn witnesses(&self, gpu: &str) -> &[(&'a str, &'a Report)] {
        self.index.witnesses(gpu)
    }

    /// Seconds after which to plan again though nothing may have happened.
    pub fn look_again(&self) -> Option<i64> {
        let slots = self.tenants.iter().flat_map(|tenant| &tenant.slots);
        let lacks_host = |slot: &SlotPlan| {
            matches!(slot.on, Err(Unplaced::NoRoom { misfit: Misfit::Host(_), .. })).then_some(ROOM_SECONDS)
        };
        let epochs = self.gpus.iter().filter_map(|gpu| gpu.epoch?.look_again);
        epochs.chain(slots.filter_map(lacks_host)).min()
    }
}

/// Plans a pool and its tenants. Without a pool nothing is placed, and nothing of what is there is to go.
pub fn plan<'a>(given: &Given<'a>) -> Plan<'a> {
    let Some(pool) = given.pool else {
        let tenants = given.tenants.iter().map(|tenant| admitted(given, tenant, false)).collect();
        return Plan { tenants, ..Plan::default() };
    };
    let index = Index::new(given.seen);
    let (gpus, epochs): (Vec<Gpu>, Vec<Epoch>) =
        dated(pool, &index, given).into_iter().map(|dated| (dated.gpu, dated.epoch)).unzip();
    let keeps = |tenant: &&ModelTenant| keeps_group(tenant, &gpus, &index);
    let mut tenants: Vec<TenantPlan<'a>> =
        given.tenants.iter().map(|tenant| admitted(given, tenant, keeps(tenant))).collect();
    let terms = PoolTerms::new(pool, &gpus);
    let claims: Claims<'_> = gpus
        .iter()
        .zip(&epochs)
        .map(|(gpu, epoch)| (gpu.name.as_str(), claim_name(gpu, epoch.number)))
        .collect();
    for tenant in &mut tenants {
        fit(tenant, &terms, &index);
        turn_away(tenant, pool, &index);
    }
    let wanted: Vec<Vec<Slot>> =
        tenants.iter().map(|tenant| wanted(&terms, tenant, (&index, &claims), given.seen)).collect();
    let mut placement = place(&gpus, &wanted.concat());
    let by_name: BTreeMap<&str, usize> =
        gpus.iter().enumerate().map(|(index, gpu)| (gpu.name.as_str(), index)).collect();
    for (tenant, slots) in tenants.iter_mut().zip(wanted) {
        let on = |name: String| by_name[name.as_str()];
        tenant.slots = slots.iter().map(|slot| planned(slot, &mut placement, &gpus, &on)).collect();
    }
    let gpus = gpus.into_iter().map(|gpu| GpuPlan { gpu, epoch: None }).collect();
    let mut plan = Plan { gpus, tenants, ..Plan::default() };
    plan.slots = by_gpu(&plan);
    share_out(&mut plan, given.seen);
    date(&mut plan, &epochs);
    Plan { index, ..plan }
}

fn by_gpu(plan: &Plan<'_>) -> Vec<Vec<(usize, usize)>> {
    let mut all = vec![Vec::new(); plan.gpus.len()];
    for (at, tenant) in plan.tenants.iter().enumerate() {
        for (slot, planned) in tenant.slots.iter().enumerate() {
            if let Ok(gpu) = planned.on {
                all[gpu].push((at, slot));
            }
        }
    }
    all
}

fn planned(slot: &Slot, placement: &mut Placement, gpus: &[Gpu], at: &impl Fn(String) -> usize) -> SlotPlan {
    let on =
        placement.remove(&(slot.tenant.clone(), slot.index)).expect("every slot is placed or not").map(at);
    let there = on.as_ref().ok().and_then(|gpu| slot.demand_on(&gpus[*gpu]));
    let demand = there.or(slot.demand).unwrap_or_default();
    SlotPlan { index: slot.index, on, demand, floor_bytes: demand.floor_bytes, share_bytes: 0, dealt: false }
}

fn all<'p>(plan: &'p Plan<'_>) -> impl Iterator<Item = (&'p TenantPlan<'p>, &'p SlotPlan)> {
    plan.tenants.iter().flat_map(|tenant| tenant.slots.iter().map(move |slot| (tenant, slot)))
}

/// Gives every GPU with a slot its epoch.
fn date(plan: &mut Plan<'_>, epochs: &[Epoch]) {
    let taken: BTreeSet<usize> = all(plan).filter_map(|(_, slot)| slot.on.as_ref().ok().copied()).collect();
    for (at, (planned, epoch)) in plan.gpus.iter_mut().zip(epochs).enumerate() {
        planned.epoch = Some(*epoch).filter(|_| taken.contains(&at));
    }
}

/// Names of the claims that are to be there.
pub fn claims(plan: &Plan<'_>) -> BTreeSet<String> {
    plan.gpus.iter().filter_map(|planned| Some(claim_name(&planned.gpu, planned.epoch?.number))).collect()
}
