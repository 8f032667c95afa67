//! Whether a tenant can be served at all.

use sluice_types::conditions::{ConditionType, Reason};
use sluice_types::tenant::ModelStatus;
use sluice_types::{GpuPool, ModelTenant};

use super::wanted::PoolTerms;
use super::{Given, TenantPlan};
use crate::accept::refusals;
use crate::demand::{Unfit, fits};
use crate::geometry::{self, Geometry, threads};
use crate::gpu::Gpu;
use crate::objects::inspect::refused;
use crate::objects::name;
use crate::seen::Index;
use crate::status::Finding;

/// Whether the tenant is on a GPU of the group that it names, which the pool may have no more.
pub fn keeps_group(tenant: &ModelTenant, gpus: &[Gpu], index: &Index<'_>) -> bool {
    let on = |gpu: &Gpu| index.slots(name(tenant)).iter().any(|(_, there)| *there == gpu.name);
    gpus.iter().any(|gpu| gpu.going && Some(&gpu.group) == tenant.spec.gpu_group.as_ref() && on(gpu))
}

/// Whether it can be served at all, and by what sizes. `keeps_group`: it stays where its group was.
pub fn admitted<'a>(given: &Given<'a>, tenant: &'a ModelTenant, keeps_group: bool) -> TenantPlan<'a> {
    let kept = tenant.status.as_ref().and_then(|status| status.model.clone());
    let sizes = |kept: &ModelStatus| Geometry::of_status(kept, threads(&tenant.spec));
    let said = given.seen.inspections.get(name(tenant));
    let told = said.and_then(|said| said.as_ref().ok()).map(geometry::status);
    let inspected = kept.filter(|kept| sizes(kept).is_some()).or(told);
    let mut refusals = refusals(tenant, given.pool, given.cluster);
    refusals.retain(|refusal| !keeps_group || refusal.reason != Reason::GroupNotFound);
    let model = Geometry::not_needed(&tenant.spec).or_else(|| inspected.as_ref().and_then(sizes));
    let refusal = said.and_then(|said| said.as_ref().err()).filter(|_| model.is_none()).cloned();
    let verdict = refusal.as_ref().map_or_else(|| last_verdict(tenant), |refusal| refused(refusal).0);
    refusals.extend(verdict.filter(|_| model.is_none()));
    TenantPlan { tenant, refusals, model, inspected, refusal, slots: Vec::new() }
}

/// Refuses a tenant whose KV could be held nowhere. One that serves on a GPU where a change waits is judged by what is in force.
pub fn fit(planned: &mut TenantPlan<'_>, terms: &PoolTerms<'_>, index: &Index<'_>) {
    let Some(model) = &planned.model else { return };
    let spec = &planned.tenant.spec;
    let there = index.slots(name(planned.tenant)).iter().filter_map(|(_, gpu)| terms.elsewhere.get(gpu));
    let Err(unfit) = fits(spec, model, &terms.written) else { return };
    if !there.into_iter().any(|terms| fits(spec, model, terms).is_ok()) {
        planned.refusals.push(holdless(&unfit));
    }
}

/// A pool that goes takes nobody who has no slot on it: it waits for its tenants to go.
pub fn turn_away(planned: &mut TenantPlan<'_>, pool: &GpuPool, index: &Index<'_>) {
    let goes = pool.metadata.deletion_timestamp.is_some();
    if goes && index.slots(name(planned.tenant)).is_empty() {
        let message = format!("spec.poolRef: GpuPool `{}` is being deleted", name(pool));
        // Before a verdict on the model, whose message is taken over from the condition while its reason comes first.
        planned.refusals.insert(0, Finding::no(Reason::PoolTerminating, message));
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
