//! A pool with its tenants: what is to be, given what is.
//!
//! Nothing is remembered between two plans but what the cluster itself keeps: a Deployment says which claim its slot is on,
//! and a claim's name says its GPU and its epoch.

use std::collections::{BTreeMap, BTreeSet};

use sluice_types::conditions::{ConditionType, Reason};
use sluice_types::tenant::{EngineKind, ModelStatus};
use sluice_types::{GpuPool, ModelTenant};
use sluice_wire::geometry::Refusal;

use crate::accept::{Cluster, accepted};
use crate::dated::dated;
use crate::demand::{Demand, Geometry, Terms, Unfit, demand, fits};
use crate::epoch::Epoch;
use crate::geometry::{self, threads};
use crate::gpu::Gpu;
use crate::objects::inspect::refused;
use crate::objects::{Placed, claim_name, name};
use crate::outage::Outage;
use crate::place::{Misfit, Placement, Slot, Unplaced, place};
use crate::seat::{Seat, seats};
use crate::seen::{ClaimSeen, Index, PodSeen, Report, Seen, Trouble};
use crate::settings::Settings;
use crate::shares::{Part, shares};
use crate::status::{Finding, Truth};

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
    /// Whether it can be served at all.
    pub accepted: Finding,
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
    /// Whether its model is to be inspected, be it anew: what could not be read then may be readable now.
    pub fn to_be_inspected(&self) -> bool {
        let reasons = [Reason::AsExpected, Reason::ModelUnreadable, Reason::ModelUnsupported];
        self.model.is_none() && reasons.contains(&self.accepted.reason)
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

/// Whether the tenant is on a GPU of the group that it names, which the pool may have no more.
fn keeps_group(tenant: &ModelTenant, gpus: &[Gpu], index: &Index<'_>) -> bool {
    let on = |gpu: &Gpu| index.slots(name(tenant)).iter().any(|(_, there)| *there == gpu.name);
    gpus.iter().any(|gpu| gpu.going && Some(&gpu.group) == tenant.spec.gpu_group.as_ref() && on(gpu))
}

fn admitted<'a>(given: &Given<'a>, tenant: &'a ModelTenant, keeps_group: bool) -> TenantPlan<'a> {
    let kept = tenant.status.as_ref().and_then(|status| status.model.clone());
    let sizes = |kept: &ModelStatus| Geometry::of_status(kept, threads(&tenant.spec));
    let said = given.seen.inspections.get(name(tenant));
    let told = said.and_then(|said| said.as_ref().ok()).map(geometry::status);
    let inspected = kept.filter(|kept| sizes(kept).is_some()).or(told);
    let mut accepted = accepted(tenant, given.pool, given.cluster);
    if keeps_group && accepted.reason == Reason::GroupNotFound {
        accepted = Finding::as_expected(Truth::True);
    }
    let model = Geometry::not_needed(&tenant.spec).or_else(|| inspected.as_ref().and_then(sizes));
    let refusal = said.and_then(|said| said.as_ref().err()).filter(|_| model.is_none()).cloned();
    let verdict = refusal.as_ref().map_or_else(|| last_verdict(tenant), |refusal| refused(refusal).0);
    if accepted.truth == Truth::True && model.is_none() {
        accepted = verdict.unwrap_or(accepted);
    }
    TenantPlan { tenant, accepted, model, inspected, refusal, slots: Vec::new() }
}

/// Refuses a tenant whose KV could be held nowhere. One that serves on a GPU where a change waits is judged by what is in force.
fn fit(planned: &mut TenantPlan<'_>, terms: &PoolTerms<'_>, index: &Index<'_>) {
    let (Truth::True, Some(model)) = (planned.accepted.truth, &planned.model) else { return };
    let spec = &planned.tenant.spec;
    let there = index.slots(name(planned.tenant)).iter().filter_map(|(_, gpu)| terms.elsewhere.get(gpu));
    let Err(unfit) = fits(spec, model, &terms.written) else { return };
    if !there.into_iter().any(|terms| fits(spec, model, terms).is_ok()) {
        planned.accepted = holdless(&unfit);
    }
}

/// A pool that goes takes nobody who has no slot on it: it waits for its tenants to go.
fn turn_away(planned: &mut TenantPlan<'_>, pool: &GpuPool, index: &Index<'_>) {
    let goes = pool.metadata.deletion_timestamp.is_some();
    if goes && planned.accepted.truth == Truth::True && index.slots(name(planned.tenant)).is_empty() {
        let message = format!("spec.poolRef: GpuPool `{}` is being deleted", name(pool));
        planned.accepted = Finding::no(Reason::PoolTerminating, message);
    }
}

/// The condition `Accepted` of a tenant whose KV could be held nowhere.
fn holdless(unfit: &Unfit) -> Finding {
    let reason = match unfit {
        Unfit::Block { .. } => Reason::ChunkTooSmall,
        Unfit::Context { .. } => Reason::ContextDoesNotFit,
    };
    Finding::no(reason, unfit.to_string())
}

/// What the last inspection found wrong stays true until another one says otherwise: its pods are gone after a while.
fn last_verdict(tenant: &ModelTenant) -> Option<Finding> {
    let conditions = &tenant.status.as_ref()?.conditions;
    let accepted = conditions.iter().find(|one| one.type_ == ConditionType::Accepted.as_str())?;
    let reasons = [Reason::ModelUnreadable, Reason::ModelUnsupported];
    let reason = reasons.into_iter().find(|reason| reason.as_str() == accepted.reason)?;
    Some(Finding::no(reason, accepted.message.clone()))
}

/// What every slot pays, as the pool says it, and on GPUs that are made of something else.
struct PoolTerms<'a> {
    written: Terms,
    elsewhere: BTreeMap<&'a str, Terms>,
}

impl<'a> PoolTerms<'a> {
    fn new(pool: &GpuPool, gpus: &'a [Gpu]) -> Self {
        // Terms are the same in all groups.
        let written = Settings::of(&pool.spec, &pool.spec.gpus[0]).terms(&pool.spec);
        let others = gpus.iter().map(|gpu| (gpu.name.as_str(), gpu.settings.terms(&pool.spec)));
        PoolTerms { written, elsewhere: others.filter(|(_, terms)| *terms != written).collect() }
    }
}

/// Names of the claims that GPUs have or would have, by the GPUs' names.
type Claims<'a> = BTreeMap<&'a str, String>;

/// The slots that a tenant is to have: as many as it asks for, the ones that exist first.
fn wanted(
    terms: &PoolTerms<'_>,
    planned: &TenantPlan<'_>,
    (index, claims): (&Index<'_>, &Claims<'_>),
    seen: &Seen,
) -> Vec<Slot> {
    let (tenant, spec) = (name(planned.tenant), &planned.tenant.spec);
    let served = planned.accepted.truth == Truth::True && !spec.suspend;
    let replicas = if served { usize::try_from(spec.replicas).unwrap_or(0) } else { 0 };
    let seated = index.slots(tenant);
    let seat = |(index, gpu): &(u32, &str)| Seat {
        index: *index,
        placed: true,
        idle_seconds: idle_seconds(tenant, gpu, seen),
    };
    let own = planned.model.map(|model| demand(spec, &model, &terms.written));
    let there = |terms: &Terms| {
        let model = planned.model.filter(|model| fits(spec, model, terms).is_ok())?;
        Some(demand(spec, &model, terms))
    };
    let elsewhere: BTreeMap<String, Option<Demand>> =
        terms.elsewhere.iter().map(|(gpu, terms)| ((*gpu).to_owned(), there(terms))).collect();
    let gpu_of = |at: u32| seated.iter().find(|(index, _)| *index == at).map(|(_, gpu)| *gpu);
    let admitted =
        |at: u32| Some(index.pod(tenant, at, &index.gpu(gpu_of(at)?)?.claim()?.name)?.node.is_some());
    // A pod on a claim that is to go makes room for another.
    let serves = |at: u32| {
        let pod = index.pod(tenant, at, claims.get(gpu_of(at)?)?)?;
        let node = pod.node.as_ref().and_then(|node| seen.nodes.get(node));
        // Who is on a node that says nothing is called not ready, and may serve on: until it counts as lost it stays.
        Some(pod.ready || node.is_some_and(|node| node.lost_since.is_some()))
    };
    let slot = |at: u32| Slot {
        tenant: tenant.to_owned(),
        index: at,
        group: spec.gpu_group.clone(),
        priority: spec.priority,
        created: created(planned.tenant),
        demand: own,
        elsewhere: elsewhere.clone(),
        alone: spec.engine.kind != EngineKind::Native,
        on: gpu_of(at).map(str::to_owned),
        told_floor_bytes: gpu_of(at).map_or(0, |gpu| told_floor(tenant, gpu, seen)),
        unheard: gpu_of(at).is_some_and(|gpu| seen.unheard.contains(gpu)),
        admitted: admitted(at).unwrap_or(false),
        serves: serves(at).unwrap_or(false),
    };
    let seats_now: Vec<Seat> = seated.iter().map(seat).collect();
    seats(&seats_now, replicas).into_iter().map(slot).collect()
}

/// The earlier a slot fell idle the larger; only the order counts.
fn idle_seconds(tenant: &str, gpu: &str, seen: &Seen) -> u64 {
    let since = reported(tenant, gpu, seen).and_then(|report| report.idle_since);
    since.map_or(0, |since| u64::try_from(i64::MAX.saturating_sub(since)).unwrap_or(0))
}

fn reported<'s>(tenant: &str, gpu: &str, seen: &'s Seen) -> Option<&'s Report> {
    seen.reports.get(&(tenant.to_owned(), gpu.to_owned()))
}

/// What a tenant's sidecar on that GPU has found to be its floor, bytes; 0 = it has told nothing.
fn told_floor(tenant: &str, gpu: &str, seen: &Seen) -> u64 {
    seen.floors.get(&(tenant.to_owned(), gpu.to_owned())).copied().unwrap_or(0)
}

fn created(tenant: &ModelTenant) -> i64 {
    tenant.metadata.creation_timestamp.as_ref().map_or(0, |time| time.0.as_second())
}

/// Deals out the memory of each GPU; of one whose size nobody knows yet each slot has its floor.
fn share_out(plan: &mut Plan<'_>, seen: &Seen) {
    for gpu in 0..plan.gpus.len() {
        let on = &plan.gpus[gpu].gpu;
        let demands = plan.on(gpu).map(|(_, slot)| slot.demand);
        // The driver's: nobody holds a chunk of it.
        let contexts: u64 = demands.map(|demand| demand.context_bytes).sum();
        let capacity = on.capacity_bytes.map(|capacity| capacity.saturating_sub(contexts));
        let parts = parts(plan, gpu, capacity.unwrap_or(u64::MAX), seen);
        let dealt = capacity.map(|capacity| shares(capacity, on.settings.chunk_bytes(), &parts));
        for (at, (tenant, slot)) in plan.slots[gpu].iter().enumerate() {
            let TenantPlan { model, slots, .. } = &mut plan.tenants[*tenant];
            let slot = &mut slots[*slot];
            slot.floor_bytes = parts[at].floor_bytes;
            slot.dealt = dealt.is_some() && model.is_some();
            slot.share_bytes = dealt.as_ref().map_or(slot.floor_bytes, |dealt| dealt[at]);
        }
    }
}

/// What each slot of a GPU of `capacity` bytes brings. What its sidecar has found to be its floor counts where that is more than
/// was foreseen: nobody else would ever leave it the rest. It counts as far as all others keep what was foreseen of theirs,
/// whatever is told.
fn parts(plan: &Plan<'_>, gpu: usize, capacity: u64, seen: &Seen) -> Vec<Part> {
    let on = &plan.gpus[gpu].gpu;
    let chunk = on.settings.chunk_bytes().max(1);
    let chunks = |bytes: u64| bytes.div_ceil(chunk);
    let foreseen: Vec<u64> = plan.on(gpu).map(|(_, slot)| slot.demand.chunks_bytes()).collect();
    let beyond = |((tenant, _), own): ((&TenantPlan<'_>, &SlotPlan), &u64)| {
        chunks(told_floor(name(tenant.tenant), &on.name, seen)).saturating_sub(chunks(*own))
    };
    let beyond: Vec<u64> = plan.on(gpu).zip(&foreseen).map(beyond).collect();
    let room = (capacity / chunk).saturating_sub(foreseen.iter().map(|own| chunks(*own)).sum());
    let granted = within(room, &beyond);
    let part = |(at, (tenant, _)): (usize, (&TenantPlan<'_>, &SlotPlan))| Part {
        weights_bytes: tenant.model.map_or(0, |model| model.weights_bytes()),
        floor_bytes: match granted[at] {
            0 => foreseen[at],
            more => (chunks(foreseen[at]) + more) * chunk,
        },
    };
    plan.on(gpu).enumerate().map(part).collect()
}

/// As many of `wanted` as there is room for: all, or parts in proportion, rounded down.
fn within(room: u64, wanted: &[u64]) -> Vec<u64> {
    let all: u128 = wanted.iter().map(|one| u128::from(*one)).sum();
    let part = |one: &u64| match u64::try_from(all) {
        Ok(all) if all <= room => *one,
        _ => u64::try_from(u128::from(room) * u128::from(*one) / all).expect("a part of the room"),
    };
    wanted.iter().map(part).collect()
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
