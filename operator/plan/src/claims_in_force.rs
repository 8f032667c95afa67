//! The GPUs of a pool as they are in force, each with the claim that it has or would have.

use std::collections::{BTreeMap, BTreeSet};

use sluice_types::GpuPool;
use sluice_types::pool::{GpuPoolStatus, UpdatePolicy};

use crate::epoch::{DesiredClaim, Epoch, ReplacePolicy, epoch};
use crate::gpu::{Gpu, GpuSizes, draining_gpu, gpus, group_of};
use crate::gpu_settings::GpuSettings;
use crate::objects::{claim_digest, name, parse_claim_name};
use crate::observed::{ObservedClaim, ObservedGpu, ObservedIndex, ObservedPool};
use crate::pool_plan::PlanContext;

/// A GPU, and the epoch of its claim.
pub(crate) struct CurrentClaim {
    /// As it is in force: while a change waits, its claim says of what.
    pub gpu: Gpu,
    /// Of the claim that it has, or would have with a slot.
    pub epoch: Epoch,
}

/// All GPUs of `pool`, in the order of its groups, and those that it has no more and whose slots are not to be disturbed.
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
        let going = others.filter_map(|(gpu, own)| {
            let gone = draining_gpu(pool, group_of(pool_name, gpu)?, known(gpu), gpu);
            draining_claim(gone, own, known(gpu), given.observed, rule)
        });
        all.extend(going);
    }
    all
}

/// One that the pool has no more. It is made of what its claim was made of, whatever the pool says, and is there for as long as
/// that claim holds: it is made nowhere anew, so whoever is on it goes elsewhere once its node is lost or drained.
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

/// Device memory of GPUs as the pool's status tells it. Of another spec it tells nothing: that one may name other devices.
fn last_known_bytes(pool: &GpuPool) -> BTreeMap<&str, u64> {
    let of_spec = |status: &&GpuPoolStatus| status.observed_generation == pool.metadata.generation;
    let gpus = pool.status.as_ref().filter(of_spec).into_iter().flat_map(|status| &status.gpus);
    gpus.filter_map(|gpu| Some((gpu.name.as_str(), gpu.capacity.as_ref()?.bytes()))).collect()
}

/// What a claim was made of. One from before claims kept it tells the mode alone.
fn settings_in_force(claim: &ObservedClaim, written: &GpuSettings) -> GpuSettings {
    let mode = || claim.mode.map_or_else(|| written.clone(), |mode| written.clone().with_mode(mode));
    claim.settings.clone().unwrap_or_else(mode)
}

/// What its claim tells of a GPU.
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
