//! The GPUs of a pool with the settings in force, each with the claim that it has or would have.

use std::collections::{BTreeMap, BTreeSet};

use sluice_types::GpuPool;
use sluice_types::pool::{GpuPoolStatus, UpdatePolicy};

use crate::epoch::{DesiredClaim, Epoch, ReplacePolicy, epoch};
use crate::gpu::{Gpu, GpuSizes, draining_gpu, gpus, group_of};
use crate::gpu_settings::GpuSettings;
use crate::objects::{claim_digest, name, parse_claim_name};
use crate::observed::{ObservedClaim, ObservedGpu, ObservedIndex, ObservedPool};
use crate::plan_context::PlanContext;

/// A GPU and the epoch of its claim.
pub(crate) struct CurrentClaim {
    /// The GPU with the settings in force: those of its claim while an update is pending.
    pub gpu: Gpu,
    /// Epoch of the claim that it has, or would have with a slot.
    pub epoch: Epoch,
}

/// Returns all GPUs of `pool` in the order of its groups, then the removed GPUs whose slots must not be disturbed.
pub(crate) fn current_claims(
    pool: &GpuPool,
    index: &ObservedIndex<'_>,
    given: &PlanContext<'_>,
) -> Vec<CurrentClaim> {
    let rule = ReplacePolicy {
        update_policy: pool.spec.update_policy,
        grace_seconds: given.grace_seconds,
        disruption: given.disruption,
        now: given.now,
    };
    let date = |gpu: Gpu| {
        let own = index.gpu(&gpu.name);
        let digest = claim_digest(pool, &gpu);
        let wanted = DesiredClaim { digest: &digest, settings: &gpu.settings };
        let epoch = epoch(own, wanted, given.observed, rule);
        let standing = own.and_then(|own| own.claim()).filter(|_| epoch.is_update_pending);
        let gpu = match standing.map(|claim| settings_in_force(claim, &gpu.settings)) {
            Some(settings) => {
                Gpu::with_settings(gpu.clone(), settings, known_sizes(index, given.observed, &gpu.name))
            }
            None => gpu,
        };
        CurrentClaim { gpu, epoch }
    };
    let last = last_known_bytes(pool);
    let known = |name: &str| GpuSizes {
        last_known_bytes: last.get(name).copied(),
        ..known_sizes(index, given.observed, name)
    };
    let mut all: Vec<CurrentClaim> = gpus(pool, &known).into_iter().map(date).collect();
    if rule.update_policy == UpdatePolicy::WhenEmpty {
        let pool_name = name(pool);
        let there: BTreeSet<String> = all.iter().map(|dated| dated.gpu.name.clone()).collect();
        let others = index.occupied_gpus().filter(|(gpu, _)| !there.contains(*gpu));
        let draining = others.filter_map(|(gpu, own)| {
            let gone = draining_gpu(pool, group_of(pool_name, gpu)?, known(gpu), gpu);
            draining_claim(gone, own, known(gpu), given.observed, rule)
        });
        all.extend(draining);
    }
    all
}

/// Returns the claim of a GPU that the pool no longer has. The GPU keeps the settings of its claim, whatever the pool
/// specifies, and stays only while that claim is valid. The claim is never recreated: the slots on it move to other
/// GPUs once its node is lost or drained.
fn draining_claim(
    gpu: Gpu,
    own: &ObservedGpu<'_>,
    known: GpuSizes,
    seen: &ObservedPool,
    rule: ReplacePolicy,
) -> Option<CurrentClaim> {
    let claim = own.claim()?;
    let settings = settings_in_force(claim, &gpu.settings);
    let gpu = gpu.with_settings(settings, known);
    let wanted = DesiredClaim { digest: &claim.digest, settings: &gpu.settings };
    let epoch = epoch(Some(own), wanted, seen, rule);
    let (_, number) = parse_claim_name(&claim.name)?;
    (number == epoch.number)
        .then_some(CurrentClaim { epoch: Epoch { is_update_pending: true, ..epoch }, gpu })
}

/// Returns the device memory of GPUs from the pool's status. A status of another generation is ignored: that spec may
/// name other devices.
fn last_known_bytes(pool: &GpuPool) -> BTreeMap<&str, u64> {
    let of_spec = |status: &&GpuPoolStatus| status.observed_generation == pool.metadata.generation;
    let gpus = pool.status.as_ref().filter(of_spec).into_iter().flat_map(|status| &status.gpus);
    gpus.filter_map(|gpu| Some((gpu.name.as_str(), gpu.capacity.as_ref()?.bytes()))).collect()
}

/// Returns the settings that a claim was created with. Older claims have no settings annotation and record only the
/// mode.
fn settings_in_force(claim: &ObservedClaim, written: &GpuSettings) -> GpuSettings {
    let mode = || claim.mode.map_or_else(|| written.clone(), |mode| written.clone().with_mode(mode));
    claim.settings.clone().unwrap_or_else(mode)
}

/// Returns the sizes of a GPU that its claim reveals.
fn known_sizes(index: &ObservedIndex<'_>, seen: &ObservedPool, gpu: &str) -> GpuSizes {
    let Some(own) = index.gpu(gpu) else { return GpuSizes::default() };
    let Some(claim) = own.claim() else { return GpuSizes::default() };
    let device = claim.device.as_ref();
    let node = device.and_then(|device| seen.nodes.get(device.node.as_ref()?));
    GpuSizes {
        capacity_bytes: device.and_then(|device| device.capacity_bytes),
        last_known_bytes: None,
        node_bytes: node.map(|node| node.free_bytes(own.requested_bytes(device))),
    }
}
