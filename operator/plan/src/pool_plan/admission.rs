//! Whether a tenant can be served at all.

use sluice_types::conditions::{ConditionType, Reason};
use sluice_types::tenant::ModelStatus;
use sluice_types::{GpuPool, ModelTenant};

use super::desired_slots::PoolDemandParams;
use super::{PlanContext, TenantPlan};
use crate::conditions::ConditionResult;
use crate::geometry::{self, Geometry, engine_threads};
use crate::gpu::Gpu;
use crate::objects::inspect::inspection_conditions;
use crate::objects::name;
use crate::observed::ObservedIndex;
use crate::resource_demand::{DemandError, check_kv_fits};
use crate::validate::rejections;

/// Whether the tenant is on a GPU of the group that it names, which the pool may have no more.
pub fn is_in_removed_group(tenant: &ModelTenant, gpus: &[Gpu], index: &ObservedIndex<'_>) -> bool {
    let on = |gpu: &Gpu| index.slots(name(tenant)).iter().any(|(_, there)| *there == gpu.name);
    gpus.iter().any(|gpu| gpu.is_draining && Some(&gpu.group) == tenant.spec.gpu_group.as_ref() && on(gpu))
}

/// Whether it can be served at all, and by what sizes. `keeps_group`: it stays where its group was.
pub fn validate_tenant<'a>(
    given: &PlanContext<'a>,
    tenant: &'a ModelTenant,
    keeps_group: bool,
) -> TenantPlan<'a> {
    let kept = tenant.status.as_ref().and_then(|status| status.model.clone());
    let sizes = |kept: &ModelStatus| Geometry::from_status(kept, engine_threads(&tenant.spec));
    let said = given.observed.inspections.get(name(tenant));
    let told = said.and_then(|said| said.as_ref().ok()).map(geometry::to_status);
    let inspected = kept.filter(|kept| sizes(kept).is_some()).or(told);
    let mut refusals = rejections(tenant, given.pool, given.cluster);
    refusals.retain(|refusal| !keeps_group || refusal.reason != Reason::GroupNotFound);
    let model = Geometry::without_inspection(&tenant.spec).or_else(|| inspected.as_ref().and_then(sizes));
    let refusal = said.and_then(|said| said.as_ref().err()).filter(|_| model.is_none()).cloned();
    let verdict = refusal
        .as_ref()
        .map_or_else(|| last_inspection_result(tenant), |refusal| inspection_conditions(refusal).0);
    refusals.extend(verdict.filter(|_| model.is_none()));
    TenantPlan {
        tenant,
        rejections: refusals,
        model,
        inspected,
        inspection_error: refusal,
        slots: Vec::new(),
    }
}

/// Refuses a tenant whose KV could be held nowhere. One that serves on a GPU where a change waits is judged by what is in force.
pub fn reject_oversized_kv(
    planned: &mut TenantPlan<'_>,
    terms: &PoolDemandParams<'_>,
    index: &ObservedIndex<'_>,
) {
    let Some(model) = &planned.model else { return };
    let spec = &planned.tenant.spec;
    let there = index.slots(name(planned.tenant)).iter().filter_map(|(_, gpu)| terms.by_gpu.get(gpu));
    let Err(unfit) = check_kv_fits(spec, model, &terms.configured) else { return };
    if !there.into_iter().any(|terms| check_kv_fits(spec, model, terms).is_ok()) {
        planned.rejections.push(kv_rejection(&unfit));
    }
}

/// A pool that goes takes nobody who has no slot on it: it waits for its tenants to go.
pub fn reject_if_terminating(planned: &mut TenantPlan<'_>, pool: &GpuPool, index: &ObservedIndex<'_>) {
    let goes = pool.metadata.deletion_timestamp.is_some();
    if goes && index.slots(name(planned.tenant)).is_empty() {
        let message = format!("spec.poolRef: GpuPool `{}` is being deleted", name(pool));
        // Before a verdict on the model, whose message is taken over from the condition while its reason comes first.
        planned.rejections.insert(0, ConditionResult::not_met(Reason::PoolTerminating, message));
    }
}

/// The condition `Accepted` of a tenant whose KV could be held nowhere.
fn kv_rejection(unfit: &DemandError) -> ConditionResult {
    let reason = match unfit {
        DemandError::Block { .. } => Reason::ChunkTooSmall,
        DemandError::Context { .. } => Reason::ContextDoesNotFit,
    };
    ConditionResult::not_met(reason, unfit.to_string())
}

/// What the last inspection found wrong stays true until another one says otherwise: its pods are gone after a while.
fn last_inspection_result(tenant: &ModelTenant) -> Option<ConditionResult> {
    let conditions = &tenant.status.as_ref()?.conditions;
    let accepted = conditions.iter().find(|one| one.type_ == ConditionType::Accepted.as_str())?;
    let reasons = [Reason::ModelUnreadable, Reason::ModelUnsupported];
    let reason = reasons.into_iter().find(|reason| reason.as_str() == accepted.reason)?;
    Some(ConditionResult::not_met(reason, accepted.message.clone()))
}
