//! Whether a tenant can be served at all.

use sluice_types::conditions::{ConditionType, Reason};
use sluice_types::tenant::ModelStatus;
use sluice_types::{GpuPool, ModelTenant};

use super::desired_slots::PoolDemandParams;
use super::desired_state::TenantPlan;
use crate::conditions::ConditionResult;
use crate::geometry::{self, EngineGeometry, engine_threads};
use crate::gpu::Gpu;
use crate::objects::inspect::inspection_conditions;
use crate::objects::name;
use crate::observed::ObservedIndex;
use crate::plan_context::PlanContext;
use crate::resource_demand::{DemandError, check_kv_fits};
use crate::validate::rejections;

/// Whether the tenant is on a GPU of the group that it names, and the pool may no longer have that group.
pub fn is_in_removed_group(tenant: &ModelTenant, gpus: &[Gpu], index: &ObservedIndex<'_>) -> bool {
    let on = |gpu: &Gpu| index.slots(name(tenant)).iter().any(|(_, there)| *there == gpu.name);
    gpus.iter().any(|gpu| gpu.is_draining && Some(&gpu.group) == tenant.spec.gpu_group.as_ref() && on(gpu))
}

/// Determines whether the tenant can be served at all, and its sizes. `keeps_group`: it stays in its removed group.
pub fn validate_tenant<'a>(
    given: &PlanContext<'a>,
    tenant: &'a ModelTenant,
    keeps_group: bool,
) -> TenantPlan<'a> {
    let kept = tenant.status.as_ref().and_then(|status| status.model.clone());
    let sizes = |kept: &ModelStatus| EngineGeometry::from_status(kept, engine_threads(&tenant.spec));
    let said = given.observed.inspections.get(name(tenant));
    let measured = said.and_then(|said| said.as_ref().ok()).map(geometry::to_status);
    let inspected = kept.filter(|kept| sizes(kept).is_some()).or(measured);
    let mut refusals = rejections(tenant, given.pool, given.cluster);
    refusals.retain(|refusal| !keeps_group || refusal.reason != Reason::GroupNotFound);
    let model =
        EngineGeometry::without_inspection(&tenant.spec).or_else(|| inspected.as_ref().and_then(sizes));
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

/// Rejects a tenant whose KV fits on no GPU. A tenant on a GPU with a pending update is checked with the settings in
/// force.
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

/// Rejects tenants without a slot on a pool that is being deleted: the pool waits for its tenants to be removed.
pub fn reject_if_terminating(planned: &mut TenantPlan<'_>, pool: &GpuPool, index: &ObservedIndex<'_>) {
    let goes = pool.metadata.deletion_timestamp.is_some();
    if goes && index.slots(name(planned.tenant)).is_empty() {
        let message =
            format!("spec.poolRef: GpuPool `{}` is being deleted and takes no new tenant", name(pool));
        // Precedes a rejection about the model: that one's message is read from the condition, whose reason is that of
        // the first rejection.
        planned.rejections.insert(0, ConditionResult::not_met(Reason::PoolTerminating, message));
    }
}

/// Returns the condition `Accepted` of a tenant whose KV fits on no GPU.
fn kv_rejection(unfit: &DemandError) -> ConditionResult {
    let reason = match unfit {
        DemandError::Block { .. } => Reason::ChunkTooSmall,
        DemandError::Context { .. } => Reason::ContextDoesNotFit,
    };
    ConditionResult::not_met(reason, unfit.to_string())
}

/// Returns the last inspection's rejection from the status: it is valid until another inspection, but its pods are
/// deleted after a while.
fn last_inspection_result(tenant: &ModelTenant) -> Option<ConditionResult> {
    let conditions = &tenant.status.as_ref()?.conditions;
    let accepted = conditions.iter().find(|one| one.type_ == ConditionType::Accepted.as_str())?;
    let reasons = [Reason::ModelUnreadable, Reason::ModelUnsupported];
    let reason = reasons.into_iter().find(|reason| reason.as_str() == accepted.reason)?;
    Some(ConditionResult::not_met(reason, accepted.message.clone()))
}
