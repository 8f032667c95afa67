//! What a change does to slots that exist: which stay, which have their pod replaced, which go.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::PodTemplateSpec;
use sluice_plan::objects::{Release, claim_digest, claim_name, deployment};
use sluice_plan::seen::{ClaimSeen, DeviceSeen, PodSeen, Seen, SlotSeen};
use sluice_plan::unit::Plan;

use super::scene::Pool;

/// Tenant and index of a slot.
pub type SlotKey = (String, u32);

/// The slots of a pool that have a GPU, and what their pods are made of.
pub type Templates = BTreeMap<SlotKey, Standing>;

/// A slot that has a GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct Standing {
    /// Its GPU.
    pub gpu: String,
    /// What its pod is made of; `None` = nobody knows the model.
    pub template: Option<PodTemplateSpec>,
}

/// What becomes of a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// There was none.
    New,
    /// Its pod runs on.
    Stays,
    /// Its pod is replaced where it is.
    Replaced,
    /// Its pod is replaced by one on another GPU than this.
    Moves(String),
}

/// The slots of `plan` that have a GPU.
pub fn templates(pool: &Pool<'_>, plan: &Plan<'_>) -> Templates {
    // The same for both sides of a comparison: another release of the product is another matter.
    let release = Release {
        sidecar_image: "sidecar".into(),
        engine_image: "engine".into(),
        pull_secrets: Vec::new(),
        operator: BTreeMap::new(),
        operator_namespace: String::new(),
    };
    let mut all = Templates::new();
    for tenant in &plan.tenants {
        for slot in &tenant.slots {
            let Ok(on) = slot.on else { continue };
            let placed = pool.pool.and_then(|pool| plan.placed(pool, tenant, slot));
            let template = placed.and_then(|placed| Some(deployment(&placed, &release).spec?.template));
            let name = tenant.tenant.metadata.name.clone().unwrap_or_default();
            all.insert((name, slot.index), Standing { gpu: plan.gpus[on].gpu.name.clone(), template });
        }
    }
    all
}

/// What becomes of the slot `key`, which is to be as `now`.
pub fn change(before: &Templates, key: &SlotKey, now: &Standing) -> Change {
    match before.get(key) {
        None => Change::New,
        Some(then) if then.gpu != now.gpu => Change::Moves(then.gpu.clone()),
        Some(then) if then.template != now.template => Change::Replaced,
        Some(_) => Change::Stays,
    }
}

/// What would be seen once `plan` is carried out and everybody serves.
pub fn seen_after(pool: &Pool<'_>, plan: &Plan<'_>) -> Seen {
    let mut seen = Seen::default();
    for (at, planned) in plan.gpus.iter().enumerate() {
        let (Some(epoch), Some(pool)) = (planned.epoch, pool.pool) else { continue };
        let name = claim_name(&planned.gpu, epoch.number);
        for (tenant, slot) in plan.on(at) {
            let tenant = tenant.tenant.metadata.name.clone().unwrap_or_default();
            let (index, claim) = (slot.index, name.clone());
            seen.slots.push(SlotSeen { tenant: tenant.clone(), index, claim: claim.clone() });
            seen.pods.push(PodSeen { tenant, index, claim, ready: true, ..PodSeen::default() });
        }
        seen.claims.push(ClaimSeen {
            name,
            digest: claim_digest(pool, &planned.gpu),
            mode: Some(planned.gpu.settings.sharing.mode),
            settings: Some(planned.gpu.settings.clone()),
            device: Some(DeviceSeen { capacity_bytes: planned.gpu.capacity_bytes, ..DeviceSeen::default() }),
            ..ClaimSeen::default()
        });
    }
    seen
}
