//! Whether a tenant can be served at all, whatever room there is.

use std::cmp::Reverse;

use sluice_types::conditions::Reason;
use sluice_types::pool::GpuGroup;
use sluice_types::tenant::{EngineKind, SourceType};
use sluice_types::{GpuPool, HOST_DEVICE_CLASS, ModelTenant};

use crate::place::Unplaced;
use crate::status::{Finding, Truth};

/// What the cluster can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// Volumes can be made of images (Kubernetes 1.36).
    pub image_volumes: bool,
}

/// Every reason not to accept a tenant whose pool is `pool`; empty = it can be served.
pub fn refusals(tenant: &ModelTenant, pool: Option<&GpuPool>, cluster: Cluster) -> Vec<Finding> {
    let others =
        [unsupported(tenant, cluster), no_image(tenant), pool_lacks(tenant, pool), no_device(tenant, pool)];
    local_only(tenant).chain(others.into_iter().flatten()).collect()
}

/// What only `sluice up` takes.
fn local_only(tenant: &ModelTenant) -> impl Iterator<Item = Finding> {
    let spec = &tenant.spec;
    let fields = [
        ("spec.model.source.file", spec.model.source.kind == SourceType::File),
        ("spec.access.apiKeysFile", spec.access.api_keys_file.is_some()),
    ];
    fields.into_iter().filter(|(_, asked)| *asked).map(|(field, _)| {
        Finding::no(Reason::LocalOnly, format!("{field} is for local processes (sluice up) alone"))
    })
}

fn unsupported(tenant: &ModelTenant, cluster: Cluster) -> Option<Finding> {
    let image = tenant.spec.model.source.kind == SourceType::Image;
    let message =
        "spec.model.source.image needs image volumes, which this cluster does not have (Kubernetes 1.36)";
    (image && !cluster.image_volumes).then(|| Finding::no(Reason::ImageVolumesUnsupported, message))
}

/// There is no image of a proxied engine that the operator could stand for.
fn no_image(tenant: &ModelTenant) -> Option<Finding> {
    let engine = &tenant.spec.engine;
    let message = "spec.engine.image: a Vllm engine needs one, such as vllm/vllm-openai with a version";
    let lacks = engine.kind == EngineKind::Vllm && engine.image.is_none();
    lacks.then(|| Finding::no(Reason::EngineImageMissing, message))
}

/// The native engine computes on the CPU so far: a real GPU would be held for nothing.
fn no_device(tenant: &ModelTenant, pool: Option<&GpuPool>) -> Option<Finding> {
    let class = pool?.spec.device_class_name.as_str();
    let native = tenant.spec.engine.kind == EngineKind::Native;
    let message = format!(
        "spec.engine.kind: the Native engine runs on GPUs made of host memory so far ({HOST_DEVICE_CLASS}), and the pool's \
         are of {class}; a Vllm engine runs there"
    );
    (native && class != HOST_DEVICE_CLASS).then(|| Finding::no(Reason::DeviceUnsupported, message))
}

fn pool_lacks(tenant: &ModelTenant, pool: Option<&GpuPool>) -> Option<Finding> {
    let spec = &tenant.spec;
    let Some(pool) = pool else {
        let message = format!("spec.poolRef: no GpuPool `{}` in this namespace", spec.pool_ref.name);
        return Some(Finding::no(Reason::PoolNotFound, message));
    };
    let usable = |group: &&GpuGroup| spec.gpu_group.as_ref().is_none_or(|name| *name == group.name);
    if pool.spec.gpus.iter().any(|group| usable(&group)) {
        return None;
    }
    let known: Vec<&str> = pool.spec.gpus.iter().map(|group| group.name.as_str()).collect();
    let name = spec.gpu_group.as_deref().unwrap_or_default();
    let message = format!("spec.gpuGroup: the pool has no group `{name}`, it has {}", known.join(", "));
    Some(Finding::no(Reason::GroupNotFound, message))
}

/// The conditions `Accepted` and `Placed` that follow from where a tenant's slots are: what no GPU could ever hold is a
/// mistake in the tenant, what none holds now is a matter of room.
pub fn placed<'a>(
    slots: impl Iterator<Item = (u32, Result<&'a str, &'a Unplaced>)>,
) -> (Option<Finding>, Finding) {
    let (mut all, mut missing) = (0, Vec::new());
    for (index, slot) in slots {
        all += 1;
        if let Err(why) = slot {
            missing.push((index, why));
        }
    }
    // What no change of the room mends is told before what one might.
    let Some((_, worst)) = missing.iter().max_by_key(|(index, why)| (gravity(why), Reverse(*index))) else {
        return (None, Finding::as_expected(Truth::True));
    };
    let said: Vec<String> = missing.iter().map(|(index, why)| format!("slot {index}: {why}")).collect();
    let message = format!("{} of {all} slots have no GPU: {}", missing.len(), said.join("; "));
    match worst {
        Unplaced::ModelNotInspected => (None, Finding::unknown(Reason::ModelNotInspected, message)),
        Unplaced::ModelLargerThanGpu { .. } => {
            let refused = Finding::no(Reason::ModelLargerThanGpu, worst.to_string());
            (Some(refused), Finding::no(Reason::ModelLargerThanGpu, message))
        }
        Unplaced::GroupNotFound { .. } => (None, Finding::no(Reason::GroupNotFound, message)),
        Unplaced::NoRoom { .. } => (None, Finding::no(Reason::NoRoom, message)),
    }
}

/// How much has to change until such a slot has a GPU.
const fn gravity(why: &Unplaced) -> u8 {
    match why {
        Unplaced::ModelLargerThanGpu { .. } => 3,
        Unplaced::GroupNotFound { .. } => 2,
        Unplaced::NoRoom { .. } => 1,
        Unplaced::ModelNotInspected => 0,
    }
}
