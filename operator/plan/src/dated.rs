//! The GPUs of a pool as they are in force, each with the claim that it has or would have.

use std::collections::{BTreeMap, BTreeSet};

use sluice_types::GpuPool;
use sluice_types::pool::{GpuPoolStatus, UpdatePolicy};

use crate::epoch::{Epoch, Rule, Wanted, epoch};
use crate::gpu::{Gpu, Known, gone, gpus, group_of};
use crate::objects::{claim_digest, name, of_claim_name};
use crate::seen::{ClaimSeen, Index, OfGpu, Seen};
use crate::settings::Settings;
use crate::unit::Given;

/// A GPU, and the epoch of its claim.
pub(crate) struct Dated {
    /// As it is in force: while a change waits, its claim says of what.
    pub gpu: Gpu,
    /// Of the claim that it has, or would have with a slot.
    pub epoch: Epoch,
}

/// All GPUs of `pool`, in the order of its groups, and those that it has no more and whose slots are not to be disturbed.
pub(crate) fn dated(pool: &GpuPool, index: &Index<'_>, given: &Given<'_>) -> Vec<Dated> {
    let rule = Rule {
        update: pool.spec.update_policy,
        grace_seconds: given.grace_seconds,
        outage: given.outage,
        now: given.now,
    };
    let date = |gpu: Gpu| {
        let own = index.gpu(&gpu.name);
        let digest = claim_digest(pool, &gpu);
        let wanted = Wanted { digest: &digest, settings: &gpu.settings };
        let epoch = epoch(own, wanted, given.seen, rule);
        let standing = own.and_then(|own| own.claim()).filter(|_| epoch.waits);
        let gpu = match standing.map(|claim| in_force(claim, &gpu.settings)) {
            Some(settings) => Gpu::with(gpu.clone(), settings, known(index, given.seen, &gpu.name)),
            None => gpu,
        };
        Dated { gpu, epoch }
    };
    let last = last_bytes(pool);
    let known = |name: &str| Known { last_bytes: last.get(name).copied(), ..known(index, given.seen, name) };
    let mut all: Vec<Dated> = gpus(pool, &known).into_iter().map(date).collect();
    if rule.update == UpdatePolicy::WhenEmpty {
        let pool_name = name(pool);
        let there: BTreeSet<String> = all.iter().map(|dated| dated.gpu.name.clone()).collect();
        let others = index.taken().filter(|(gpu, _)| !there.contains(*gpu));
        let going = others.filter_map(|(gpu, own)| {
            let gone = gone(pool, group_of(pool_name, gpu)?, known(gpu), gpu);
            going(gone, own, known(gpu), given.seen, rule)
        });
        all.extend(going);
    }
    all
}

/// One that the pool has no more. It is made of what its claim was made of, whatever the pool says, and is there for as long as
/// that claim holds: it is made nowhere anew, so whoever is on it goes elsewhere once its node is lost or drained.
fn going(gpu: Gpu, own: &OfGpu<'_>, known: Known, seen: &Seen, rule: Rule) -> Option<Dated> {
    let claim = own.claim()?;
    let settings = in_force(claim, &gpu.settings);
    let gpu = gpu.with(settings, known);
    let wanted = Wanted { digest: &claim.digest, settings: &gpu.settings };
    let epoch = epoch(Some(own), wanted, seen, rule);
    let (_, number) = of_claim_name(&claim.name)?;
    (number == epoch.number).then_some(Dated { epoch: Epoch { waits: true, ..epoch }, gpu })
}

/// Device memory of GPUs as the pool's status tells it. Of another spec it tells nothing: that one may name other devices.
fn last_bytes(pool: &GpuPool) -> BTreeMap<&str, u64> {
    let of_spec = |status: &&GpuPoolStatus| status.observed_generation == pool.metadata.generation;
    let gpus = pool.status.as_ref().filter(of_spec).into_iter().flat_map(|status| &status.gpus);
    gpus.filter_map(|gpu| Some((gpu.name.as_str(), gpu.capacity.as_ref()?.bytes()))).collect()
}

/// What a claim was made of. One from before claims kept it tells the mode alone.
fn in_force(claim: &ClaimSeen, written: &Settings) -> Settings {
    let mode = || claim.mode.map_or_else(|| written.clone(), |mode| written.clone().in_mode(mode));
    claim.settings.clone().unwrap_or_else(mode)
}

/// What its claim tells of a GPU.
fn known(index: &Index<'_>, seen: &Seen, gpu: &str) -> Known {
    let Some(own) = index.gpu(gpu) else { return Known::default() };
    let Some(claim) = own.claim() else { return Known::default() };
    let device = claim.device.as_ref();
    let node = device.and_then(|device| seen.nodes.get(device.node.as_ref()?));
    Known {
        capacity_bytes: device.and_then(|device| device.capacity_bytes),
        last_bytes: None,
        node_bytes: node.map(|node| node.left_bytes(own.requested_bytes(device))),
    }
}
