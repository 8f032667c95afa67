//! The desired slots of a tenant.

use std::collections::BTreeMap;

use sluice_types::tenant::EngineKind;
use sluice_types::{GpuPool, ModelTenant};

use super::desired_state::TenantPlan;
use crate::gpu::Gpu;
use crate::gpu_settings::GpuSettings;
use crate::objects::name;
use crate::observed::{ObservedIndex, ObservedPool, SidecarReport};
use crate::placement::{Slot, SmallerFloor};
use crate::resource_demand::{Demand, DemandParams, check_kv_fits, demand};
use crate::slots::{ExistingSlot, slot_indices};

/// Per-slot parameters of demand from the pool's spec, and of GPUs with other settings in force.
pub struct PoolDemandParams<'a> {
    /// From the pool's spec.
    pub configured: DemandParams,
    /// By the names of those GPUs.
    pub by_gpu: BTreeMap<&'a str, DemandParams>,
}

impl<'a> PoolDemandParams<'a> {
    /// Returns the parameters of a pool and its GPUs.
    pub fn new(pool: &GpuPool, gpus: &'a [Gpu]) -> Self {
        // The parameters are the same in all groups.
        let written = GpuSettings::from_group(&pool.spec, &pool.spec.gpus[0]).demand_params(&pool.spec);
        let others = gpus.iter().map(|gpu| (gpu.name.as_str(), gpu.settings.demand_params(&pool.spec)));
        PoolDemandParams {
            configured: written,
            by_gpu: others.filter(|(_, terms)| *terms != written).collect(),
        }
    }
}

/// Names of the claims that GPUs have or would have, by GPU name.
pub type ClaimNames<'a> = BTreeMap<&'a str, String>;

/// Returns the desired slots of a tenant: as many as its replicas, existing ones first.
pub fn desired_slots(
    terms: &PoolDemandParams<'_>,
    planned: &TenantPlan<'_>,
    (index, claims): (&ObservedIndex<'_>, &ClaimNames<'_>),
    seen: &ObservedPool,
) -> Vec<Slot> {
    let (tenant, spec) = (name(planned.tenant), &planned.tenant.spec);
    let served = planned.is_accepted() && !spec.suspend;
    let replicas = if served { usize::try_from(spec.replicas).unwrap_or(0) } else { 0 };
    let placed = index.slots(tenant);
    let existing_slot = |(index, gpu): &(u32, &str)| ExistingSlot {
        index: *index,
        is_placed: true,
        idle_seconds: idle_seconds(tenant, gpu, seen),
    };
    let own = planned.model.map(|model| demand(spec, &model, &terms.configured));
    let there = |terms: &DemandParams| {
        let model = planned.model.filter(|model| check_kv_fits(spec, model, terms).is_ok())?;
        Some(demand(spec, &model, terms))
    };
    let elsewhere: BTreeMap<String, Option<Demand>> =
        terms.by_gpu.iter().map(|(gpu, terms)| ((*gpu).to_owned(), there(terms))).collect();
    let gpu_of = |at: u32| placed.iter().find(|(index, _)| *index == at).map(|(_, gpu)| *gpu);
    let admitted =
        |at: u32| Some(index.pod(tenant, at, &index.gpu(gpu_of(at)?)?.claim()?.name)?.node.is_some());
    // A pod on an obsolete claim gives way to another.
    let serves = |at: u32| {
        let pod = index.pod(tenant, at, claims.get(gpu_of(at)?)?)?;
        let node = pod.node.as_ref().and_then(|node| seen.nodes.get(node));
        // Kubernetes sets pods of an unreachable node to not ready, but they may still serve: they stay until the
        // node is lost.
        Some(pod.is_ready || node.is_some_and(|node| node.lost_since.is_some()))
    };
    let slot = |at: u32| Slot {
        tenant: tenant.to_owned(),
        index: at,
        group: spec.gpu_group.clone(),
        priority: spec.priority,
        created: created_at(planned.tenant),
        demand: own,
        demand_by_gpu: elsewhere.clone(),
        smaller_floor: SmallerFloor::of(spec, terms.configured.policy),
        is_exclusive: spec.engine.kind != EngineKind::Native,
        current_gpu: gpu_of(at).map(str::to_owned),
        reported_floor_bytes: gpu_of(at).map_or(0, |gpu| reported_floor(tenant, gpu, seen)),
        is_floor_unknown: gpu_of(at).is_some_and(|gpu| seen.unpolled_gpus.contains(gpu)),
        is_admitted: admitted(at).unwrap_or(false),
        is_serving: serves(at).unwrap_or(false),
    };
    let existing: Vec<ExistingSlot> = placed.iter().map(existing_slot).collect();
    slot_indices(&existing, replicas).into_iter().map(slot).collect()
}

/// Returns a larger number the earlier a slot became idle; only the order matters.
fn idle_seconds(tenant: &str, gpu: &str, seen: &ObservedPool) -> u64 {
    let since = report_of(tenant, gpu, seen).and_then(|report| report.idle_since);
    since.map_or(0, |since| u64::try_from(i64::MAX.saturating_sub(since)).unwrap_or(0))
}

fn report_of<'s>(tenant: &str, gpu: &str, seen: &'s ObservedPool) -> Option<&'s SidecarReport> {
    seen.reports.get(&(tenant.to_owned(), gpu.to_owned()))
}

/// Returns the floor that a tenant's sidecar on that GPU reports, bytes; 0 = no report.
pub fn reported_floor(tenant: &str, gpu: &str, seen: &ObservedPool) -> u64 {
    seen.floors.get(&(tenant.to_owned(), gpu.to_owned())).copied().unwrap_or(0)
}

fn created_at(tenant: &ModelTenant) -> i64 {
    tenant.metadata.creation_timestamp.as_ref().map_or(0, |time| time.0.as_second())
}
