//! Checks whether a tenant can be served at all, whatever capacity is free.

use std::cmp::Reverse;

use sluice_common::text::counted;
use sluice_types::conditions::Reason;
use sluice_types::pool::GpuGroup;
use sluice_types::tenant::{EngineKind, SourceType};
use sluice_types::{GpuPool, ModelTenant};

use crate::conditions::{ConditionResult, ConditionStatus};
use crate::placement::UnplacedReason;

/// Features of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClusterFeatures {
    /// Image volumes are supported (Kubernetes 1.36).
    pub has_image_volumes: bool,
}

/// Returns every reason to reject a tenant whose pool is `pool`; empty = it can be served.
pub fn rejections(
    tenant: &ModelTenant,
    pool: Option<&GpuPool>,
    cluster: ClusterFeatures,
) -> Vec<ConditionResult> {
    let others = [check_image_volumes(tenant, cluster), check_engine_image(tenant), check_pool(tenant, pool)];
    check_local_only(tenant).chain(others.into_iter().flatten()).collect()
}

/// Rejects fields that only `sluice up` supports.
fn check_local_only(tenant: &ModelTenant) -> impl Iterator<Item = ConditionResult> {
    let spec = &tenant.spec;
    let fields = [
        ("spec.model.source.file", spec.model.source.kind == SourceType::File),
        ("spec.access.apiKeysFile", spec.access.api_keys_file.is_some()),
    ];
    fields.into_iter().filter(|(_, asked)| *asked).map(|(field, _)| {
        ConditionResult::not_met(
            Reason::LocalOnly,
            format!("{field} works only for local processes (sluice up)"),
        )
    })
}

fn check_image_volumes(tenant: &ModelTenant, cluster: ClusterFeatures) -> Option<ConditionResult> {
    let image = tenant.spec.model.source.kind == SourceType::Image;
    let message = "spec.model.source.image needs image volumes (Kubernetes 1.36 or later), which this cluster does not have";
    (image && !cluster.has_image_volumes)
        .then(|| ConditionResult::not_met(Reason::ImageVolumesUnsupported, message))
}

/// A proxied engine has no default image.
fn check_engine_image(tenant: &ModelTenant) -> Option<ConditionResult> {
    let engine = &tenant.spec.engine;
    let message =
        "spec.engine.image must name an image for a Vllm engine, such as vllm/vllm-openai with a version";
    let lacks = engine.kind == EngineKind::Vllm && engine.image.is_none();
    lacks.then(|| ConditionResult::not_met(Reason::EngineImageMissing, message))
}

fn check_pool(tenant: &ModelTenant, pool: Option<&GpuPool>) -> Option<ConditionResult> {
    let spec = &tenant.spec;
    let Some(pool) = pool else {
        let message = format!("spec.poolRef: no GpuPool `{}` in this namespace", spec.pool_ref.name);
        return Some(ConditionResult::not_met(Reason::PoolNotFound, message));
    };
    let usable = |group: &&GpuGroup| spec.gpu_group.as_ref().is_none_or(|name| *name == group.name);
    if pool.spec.gpus.iter().any(|group| usable(&group)) {
        return None;
    }
    let known: Vec<&str> = pool.spec.gpus.iter().map(|group| group.name.as_str()).collect();
    let name = spec.gpu_group.as_deref().unwrap_or_default();
    let message =
        format!("spec.gpuGroup: the pool has no group `{name}`; its groups are {}", known.join(", "));
    Some(ConditionResult::not_met(Reason::GroupNotFound, message))
}

/// Returns the conditions `Accepted` and `Placed` that follow from placement. A slot that no GPU can ever hold makes
/// the tenant not accepted; one that no GPU holds now makes it not placed.
pub fn placement_conditions<'a>(
    slots: impl Iterator<Item = (u32, Result<&'a str, &'a UnplacedReason>)>,
) -> (Option<ConditionResult>, ConditionResult) {
    let (mut all, mut missing) = (0, Vec::new());
    for (index, slot) in slots {
        all += 1;
        if let Err(why) = slot {
            missing.push((index, why));
        }
    }
    // The most severe reason is reported.
    let Some((_, worst)) = missing.iter().max_by_key(|(index, why)| (severity(why), Reverse(*index))) else {
        return (None, ConditionResult::as_expected(ConditionStatus::True));
    };
    let said: Vec<String> = missing.iter().map(|(index, why)| format!("slot {index}: {why}")).collect();
    let verb = if missing.len() == 1 { "has" } else { "have" };
    let message = format!("{} of {} {verb} no GPU: {}", missing.len(), counted(all, "slot"), said.join("; "));
    match worst {
        UnplacedReason::ModelNotInspected => {
            (None, ConditionResult::unknown(Reason::ModelNotInspected, message))
        }
        UnplacedReason::ModelLargerThanGpu { .. } => {
            let refused = ConditionResult::not_met(Reason::ModelLargerThanGpu, worst.to_string());
            (Some(refused), ConditionResult::not_met(Reason::ModelLargerThanGpu, message))
        }
        UnplacedReason::GroupNotFound { .. } => {
            (None, ConditionResult::not_met(Reason::GroupNotFound, message))
        }
        UnplacedReason::NoCapacity { .. } => (None, ConditionResult::not_met(Reason::Unschedulable, message)),
    }
}

/// Ranks a reason by how much must change until the slot has a GPU.
const fn severity(why: &UnplacedReason) -> u8 {
    match why {
        UnplacedReason::ModelLargerThanGpu { .. } => 3,
        UnplacedReason::GroupNotFound { .. } => 2,
        UnplacedReason::NoCapacity { .. } => 1,
        UnplacedReason::ModelNotInspected => 0,
    }
}
