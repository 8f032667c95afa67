//! The slots that a tenant is to have.

use std::collections::BTreeMap;

use sluice_types::tenant::EngineKind;
use sluice_types::{GpuPool, ModelTenant};

use super::TenantPlan;
use crate::demand::{Demand, Terms, demand, fits};
use crate::gpu::Gpu;
use crate::objects::name;
use crate::place::Slot;
use crate::seat::{Seat, seats};
use crate::seen::{Index, Report, Seen};
use crate::settings::Settings;

/// What every slot pays, as the pool says it, and on GPUs that are made of something else.
pub struct PoolTerms<'a> {
    /// As the pool says it.
    pub written: Terms,
    /// By the names of those GPUs.
    pub elsewhere: BTreeMap<&'a str, Terms>,
}

impl<'a> PoolTerms<'a> {
    /// Those of a pool and its GPUs.
    pub fn new(pool: &GpuPool, gpus: &'a [Gpu]) -> Self {
        // Terms are the same in all groups.
        let written = Settings::of(&pool.spec, &pool.spec.gpus[0]).terms(&pool.spec);
        let others = gpus.iter().map(|gpu| (gpu.name.as_str(), gpu.settings.terms(&pool.spec)));
        PoolTerms { written, elsewhere: others.filter(|(_, terms)| *terms != written).collect() }
    }
}

/// Names of the claims that GPUs have or would have, by the GPUs' names.
pub type Claims<'a> = BTreeMap<&'a str, String>;

/// The slots that a tenant is to have: as many as it asks for, the ones that exist first.
pub fn wanted(
    terms: &PoolTerms<'_>,
    planned: &TenantPlan<'_>,
    (index, claims): (&Index<'_>, &Claims<'_>),
    seen: &Seen,
) -> Vec<Slot> {
    let (tenant, spec) = (name(planned.tenant), &planned.tenant.spec);
    let served = planned.is_accepted() && !spec.suspend;
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
pub fn told_floor(tenant: &str, gpu: &str, seen: &Seen) -> u64 {
    seen.floors.get(&(tenant.to_owned(), gpu.to_owned())).copied().unwrap_or(0)
}

fn created(tenant: &ModelTenant) -> i64 {
    tenant.metadata.creation_timestamp.as_ref().map_or(0, |time| time.0.as_second())
}
