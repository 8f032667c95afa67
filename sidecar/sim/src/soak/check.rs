//! Checks on the simulated devices, and comparisons with tenants that run unshared. The policy is asked only
//! for its own state, never whether it is right.

use std::collections::BTreeMap;

use sluice_policy::action::Address;
use sluice_policy::chunk_table::Owner;
use sluice_policy::digest::Digest;
use sluice_policy::ids::{ChunkId, Nanos, RequestId};
use sluice_policy::memory_manager::{MemoryManager, SleepState};
use sluice_policy::params::Params;
use sluice_policy::reason::Reason;
use sluice_policy::reclaim::PolicyName;
use sluice_scheduler::{Finish, Request, TimeSharing, journal};

use super::faults::Fault;
use super::options::{Options, VOCAB};
use super::stats::SoakStats;
use crate::device::{SimDevice, SimFaults};
use crate::gpu::Gpu;
use crate::gpu::tenant::{Instance, RequestOutcome};
use crate::simulation::{Setup, Simulation};

/// One hour: no tenant needs as long alone.
const UNSHARED_LIMIT: Nanos = Nanos(3_600_000_000_000);

fn instances(gpu: &Gpu) -> impl Iterator<Item = &Instance> {
    gpu.tenants.iter().filter_map(|tenant| tenant.instance.as_ref())
}

fn manager(instance: &Instance) -> &MemoryManager {
    instance.driver.scheduler().manager()
}

/// Whether every tenant is loaded and idle.
pub(super) fn all_loaded(gpu: &Gpu) -> bool {
    gpu.tenants
        .iter()
        .all(|tenant| tenant.instance.as_ref().is_some_and(|instance| instance.driver.scheduler().is_idle()))
}

/// Returns the number of existing chunks in each tenant's device.
pub(super) fn chunks(gpu: &Gpu) -> Vec<u32> {
    instances(gpu).map(|instance| instance.device.borrow().memory.chunks.len() as u32).collect()
}

/// Returns the number of chunks on loan.
pub(super) fn borrowed(gpu: &Gpu) -> u32 {
    instances(gpu).map(|instance| manager(instance).loans().borrowed_chunks()).sum()
}

/// Returns how often the live instances made a decision for `reason`.
pub(super) fn counted(gpu: &Gpu, reason: Reason) -> u64 {
    instances(gpu).map(|instance| manager(instance).figures().counted(reason)).sum()
}

/// Checks that no byte is promised twice, every existing chunk is counted, no read has wrong contents, and the device's
/// mappings match the policy's state.
pub(super) fn bytes(gpu: &Gpu) -> Result<(), String> {
    let ledger = gpu.ledger.borrow();
    let existing: u32 = chunks(gpu).iter().sum();
    let (promised, capacity) = (ledger.pending_chunks(), ledger.capacity());
    if existing + promised > capacity {
        return Err(format!(
            "{existing} chunks exist and {promised} are promised, but the capacity is {capacity}"
        ));
    }
    for instance in instances(gpu) {
        let (device, held) = (instance.device.borrow(), ledger.held(instance.me.instance));
        if held as usize != device.memory.chunks.len() {
            return Err(format!(
                "{:?} holds {} chunks, but the ledger has {held}",
                instance.me,
                device.memory.chunks.len()
            ));
        }
        if device.wrong_reads > 0 {
            return Err(format!("{:?} read memory with other contents", instance.me));
        }
        mappings(&device, manager(instance)).map_err(|what| format!("{:?}: {what}", instance.me))?;
    }
    Ok(())
}

/// Kinds of owners by address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Global,
    Weights,
    Kv,
    Activation,
    Staging,
}

fn kind(address: Address) -> Kind {
    match address {
        Address::Global(_) => Kind::Global,
        Address::Layer(..) => Kind::Weights,
        Address::Kv(_) => Kind::Kv,
        Address::Activation(_) => Kind::Activation,
        Address::Staging(_) => Kind::Staging,
    }
}

fn kind_of(owner: Owner) -> Option<Kind> {
    match owner {
        Owner::WeightsGlobal => Some(Kind::Global),
        Owner::WeightsLayer(_) | Owner::Slot(_) => Some(Kind::Weights),
        Owner::Kv => Some(Kind::Kv),
        Owner::Activation => Some(Kind::Activation),
        Owner::Staging => Some(Kind::Staging),
        Owner::Free | Owner::Earmarked(_) => None,
    }
}

/// Checks that each chunk backs addresses of one kind. It may back more than one only as a slot of several layers, or
/// as KV with a stale activation address. While no operation is in flight, no step's activations reach such an address,
/// and the numbers of stale addresses and of chunks of each kind match the policy's counts.
fn mappings(device: &SimDevice, manager: &MemoryManager) -> Result<(), String> {
    let mut owners: BTreeMap<ChunkId, Kind> = BTreeMap::new();
    let (still, mut left) = (!manager.status().is_blocked() && manager.status().is_loaded(), 0);
    // KV is before activations in the order of addresses.
    for (address, chunk) in &device.memory.table {
        let kind = kind(*address);
        let other = owners.get(chunk).copied();
        let reached = matches!(address, Address::Activation(at) if still && *at < manager.figures().activation_chunks());
        match other {
            Some(Kind::Kv) if kind == Kind::Activation && !reached => left += 1,
            Some(other) if other != kind || kind != Kind::Weights => {
                return Err(format!("{chunk:?} backs {address:?} and another address"));
            }
            _ => drop(owners.insert(*chunk, kind)),
        }
        if !device.memory.chunks.contains_key(chunk) {
            return Err(format!("{chunk:?} backs {address:?} and does not exist"));
        }
    }
    if !still {
        return Ok(());
    }
    if left != manager.figures().stale_addresses() {
        return Err(format!(
            "{left} chunks of KV are deferred, but the policy has {}",
            manager.figures().stale_addresses()
        ));
    }
    for kind in [Kind::Global, Kind::Weights, Kind::Kv, Kind::Activation, Kind::Staging] {
        let mapped = owners.values().filter(|owner| **owner == kind).count() as u32;
        let counts = manager.figures().ledger().counts().filter(|(owner, _)| kind_of(*owner) == Some(kind));
        let believed: u32 = counts.map(|(_, count)| count).sum();
        if mapped != believed {
            return Err(format!("{mapped} chunks are mapped as {kind:?}, but the policy has {believed}"));
        }
    }
    Ok(())
}

/// Whether nothing is lent, promised or used, and every tenant has the chunks that it had before the load.
pub(super) fn is_at_baseline(gpu: &Gpu, baseline: &[u32]) -> bool {
    let idle = |instance: &Instance| {
        let manager = manager(instance);
        let even = manager.loans().borrowed_chunks() == 0
            && manager.loans().lent_chunks() == 0
            && !manager.loans().has_debt();
        let even = even && manager.figures().stale_addresses() == 0;
        even && manager.status().sleep_state() == SleepState::Awake
            && manager.status().is_whole()
            && manager.figures().kv_counts().used_kv_blocks == 0
    };
    let all = gpu.tenants.iter().all(|tenant| tenant.instance.as_ref().is_some_and(idle));
    // In exclusive mode, a tenant that woke creates the rest of its share only when a step needs it.
    let lazy =
        instances(gpu).all(|instance| instance.driver.scheduler().config().sharing == TimeSharing::Exclusive);
    let chunks = chunks(gpu);
    let back = chunks == baseline || lazy && chunks.iter().zip(baseline).all(|(now, before)| now <= before);
    all && gpu.ledger.borrow().pending_chunks() == 0 && back
}

/// Checks that every request ended as when its tenant is alone, or ended early for a cause in the seed with a prefix of
/// these tokens.
pub(super) fn tokens(
    gpu: &Gpu,
    options: &Options,
    loads: &[Vec<(u64, Request)>],
    tally: &mut SoakStats,
) -> Result<(), String> {
    for (at, (tenant, load)) in gpu.tenants.iter().zip(loads).enumerate() {
        let mut unshared = run_unshared(options, at, load)?;
        for (_, request) in load {
            let outcome =
                tenant.outcomes.get(&request.id).ok_or(format!("request {} never arrived", request.id.0))?;
            let expected = unshared.outcomes.remove(&request.id).unwrap_or_default().tokens;
            compare(outcome, &expected, AllowedDeviations::of(options, at, request.id), tally)
                .map_err(|what| format!("request {} of tenant {at}: {what}", request.id.0))?;
        }
    }
    Ok(())
}

/// Causes for which a request may end early.
#[derive(Clone, Copy, Debug)]
struct AllowedDeviations {
    /// The client disconnected.
    cancelled: bool,
    /// The device had faults.
    faults: bool,
}

impl AllowedDeviations {
    fn of(options: &Options, tenant: usize, request: RequestId) -> AllowedDeviations {
        let cancel = Fault::Cancel(tenant, request);
        AllowedDeviations {
            cancelled: options.fault_schedule.iter().any(|(_, fault)| *fault == cancel),
            faults: options.faults != SimFaults::default(),
        }
    }
}

fn compare(
    outcome: &RequestOutcome,
    expected: &[u32],
    excuses: AllowedDeviations,
    tally: &mut SoakStats,
) -> Result<(), String> {
    match (&outcome.finish, &outcome.refusal) {
        (Some(Finish::Length), _) if outcome.tokens == expected => tally.answered += 1,
        (Some(Finish::Cancelled), _) if excuses.cancelled && expected.starts_with(&outcome.tokens) => {
            tally.cut_short += 1
        }
        (None, None) if outcome.is_disconnected && expected.starts_with(&outcome.tokens) => {
            tally.cut_short += 1
        }
        (Some(Finish::Failed(_)), _) if excuses.faults && expected.starts_with(&outcome.tokens) => {
            tally.failed += 1
        }
        (finish, refusal) => {
            return Err(format!("{finish:?} {refusal:?} with {:?} instead of {expected:?}", outcome.tokens));
        }
    }
    Ok(())
}

/// Runs the same requests on a tenant with a GPU of its own and space for all of them.
fn run_unshared(options: &Options, at: usize, load: &[(u64, Request)]) -> Result<Simulation, String> {
    let tenant = options.tenant(at);
    let mut geometry = tenant.geometry;
    geometry.capacity_chunks += geometry.kv_chunks_for(400);
    let params =
        Params { policy: PolicyName::Recompute, share_chunks: u32::MAX, host_kv_bytes: 0, ..tenant.params };
    let setup = Setup {
        config: options.config(),
        params,
        geometry,
        profile: options.profile(),
        vocab: VOCAB,
        seed: 0,
    };
    let mut world = Simulation::new(setup, None)
        .map_err(|refused| format!("without other tenants it is refused: {refused}"))?;
    world.checked = false;
    load.iter().for_each(|(_, request)| world.submit(request.clone()));
    if world.run_until_idle(UNSHARED_LIMIT) {
        Ok(world)
    } else {
        Err("without other tenants it does not end".to_owned())
    }
}

/// Replays the journals, which must give the recorded outputs. Returns the number of events and a digest of all
/// commands and notices.
pub(super) fn journals(gpu: &Gpu) -> Result<(u64, u64), String> {
    let (mut events, mut decisions) = (0, Digest::new(0));
    for instance in instances(gpu) {
        let Some(text) = instance.recorded_journal() else { continue };
        let report = journal::replay(text.as_slice())
            .map_err(|error| format!("{:?}'s journal: {error}", instance.me))?;
        events += report.events;
        decisions.word(report.outputs);
    }
    Ok((events, decisions.value()))
}

/// Describes the state of all tenants, for debugging.
pub(super) fn state(gpu: &Gpu) -> String {
    let tenant = |instance: &Instance| {
        let (manager, snapshot) = (manager(instance), instance.driver.scheduler().snapshot());
        format!(
            "{:?}: {} waiting, {} running, {:?}, serving {}, borrowed {}, lent {}, owes {}, whole {}, failed {:?}, \
             {} KV blocks, {} chunks",
            instance.me,
            snapshot.waiting,
            snapshot.running,
            snapshot.sleep_state,
            snapshot.serving,
            manager.loans().borrowed_chunks(),
            manager.loans().lent_chunks(),
            manager.loans().has_debt(),
            manager.status().is_whole(),
            manager.status().failed(),
            manager.figures().kv_counts().used_kv_blocks,
            instance.device.borrow().memory.chunks.len(),
        )
    };
    let tenants: Vec<_> = instances(gpu).map(tenant).collect();
    format!("{} promised; {}", gpu.ledger.borrow().pending_chunks(), tenants.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compare_ended(finish: Finish, excuses: AllowedDeviations) -> (bool, SoakStats) {
        let outcome =
            RequestOutcome { tokens: vec![1, 2], finish: Some(finish), ..RequestOutcome::default() };
        let mut tally = SoakStats::default();
        (compare(&outcome, &[1, 2, 3], excuses, &mut tally).is_ok(), tally)
    }

    #[test]
    fn failure_or_cancellation_without_cause_fails_seed() {
        let (none, all) = (
            AllowedDeviations { cancelled: false, faults: false },
            AllowedDeviations { cancelled: true, faults: true },
        );
        let failed = || Finish::Failed("no memory".into());
        for (finish, excuses, holds) in [
            (Finish::Cancelled, none, false),
            (Finish::Cancelled, AllowedDeviations { cancelled: false, ..all }, false),
            (Finish::Cancelled, all, true),
            (failed(), none, false),
            (failed(), AllowedDeviations { faults: false, ..all }, false),
            (failed(), all, true),
            (Finish::Length, all, false),
        ] {
            let case = format!("{finish:?} {excuses:?}");
            let (held, tally) = compare_ended(finish, excuses);
            assert_eq!((held, tally.cut_short + tally.failed), (holds, u64::from(holds)), "{case}");
        }
    }
}
