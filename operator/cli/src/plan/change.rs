//! Effects of a change on existing slots: unchanged, pod replaced, or removed.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::PodTemplateSpec;
use sluice_plan::objects::{Release, claim_digest, claim_name, deployment};
use sluice_plan::observed::{ObservedClaim, ObservedDevice, ObservedPod, ObservedPool, ObservedSlot};
use sluice_plan::pool_plan::PoolPlan;

use super::inputs::PoolInputs;

/// Tenant and index of a slot.
pub type SlotKey = (String, u32);

/// The slots of a pool that have a GPU, with their pod templates.
pub type SlotTemplates = BTreeMap<SlotKey, SlotTemplate>;

/// A slot that has a GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct SlotTemplate {
    /// Its GPU.
    pub gpu: String,
    /// The template of its pod; `None` = the model is unknown.
    pub template: Option<PodTemplateSpec>,
}

/// The effect on a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SlotChange {
    /// The slot is new.
    New,
    /// Its pod continues to run.
    Unchanged,
    /// Its pod is replaced on the same GPU.
    Replaced,
    /// Its pod is replaced by one on another GPU; holds the previous GPU.
    Moved(String),
}

/// Returns the slots of `plan` that have a GPU.
pub fn slot_templates(pool: &PoolInputs<'_>, plan: &PoolPlan<'_>) -> SlotTemplates {
    // Both sides of the comparison use the same release: an upgrade is not part of the change.
    let release = Release {
        sidecar_image: "sidecar".into(),
        engine_image: "engine".into(),
        pull_secrets: Vec::new(),
        operator: BTreeMap::new(),
        operator_namespace: String::new(),
    };
    let mut all = SlotTemplates::new();
    for tenant in &plan.tenants {
        for slot in &tenant.slots {
            let Ok(on) = slot.gpu_index else { continue };
            let placed = pool.pool.and_then(|pool| plan.placed_slot(pool, tenant, slot));
            let template = placed.and_then(|placed| Some(deployment(&placed, &release).spec?.template));
            let name = tenant.tenant.metadata.name.clone().unwrap_or_default();
            all.insert((name, slot.index), SlotTemplate { gpu: plan.gpus[on].gpu.name.clone(), template });
        }
    }
    all
}

/// Compares the slot `key` with its planned state `now`.
pub fn slot_change(before: &SlotTemplates, key: &SlotKey, now: &SlotTemplate) -> SlotChange {
    match before.get(key) {
        None => SlotChange::New,
        Some(then) if then.gpu != now.gpu => SlotChange::Moved(then.gpu.clone()),
        Some(then) if then.template != now.template => SlotChange::Replaced,
        Some(_) => SlotChange::Unchanged,
    }
}

/// Returns the observed state after `plan` is carried out and every tenant serves.
pub fn observed_after(pool: &PoolInputs<'_>, plan: &PoolPlan<'_>) -> ObservedPool {
    let mut seen = ObservedPool::default();
    for (at, planned) in plan.gpus.iter().enumerate() {
        let (Some(epoch), Some(pool)) = (planned.epoch, pool.pool) else { continue };
        let name = claim_name(&planned.gpu, epoch.number);
        for (tenant, slot) in plan.slots_on(at) {
            let tenant = tenant.tenant.metadata.name.clone().unwrap_or_default();
            let (index, claim) = (slot.index, name.clone());
            seen.slots.push(ObservedSlot { tenant: tenant.clone(), index, claim: claim.clone() });
            seen.pods.push(ObservedPod { tenant, index, claim, is_ready: true, ..ObservedPod::default() });
        }
        seen.claims.push(ObservedClaim {
            name,
            digest: claim_digest(pool, &planned.gpu),
            mode: Some(planned.gpu.settings.sharing.mode),
            settings: Some(planned.gpu.settings.clone()),
            device: Some(ObservedDevice {
                capacity_bytes: planned.gpu.capacity_bytes,
                ..ObservedDevice::default()
            }),
            ..ObservedClaim::default()
        });
    }
    seen
}
