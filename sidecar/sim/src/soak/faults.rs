//! Faults, and bugs that can be planted.

use sluice_common::random::Rng;
use sluice_policy::ids::RequestId;
use sluice_policy::memory_manager::MemoryManager;
use sluice_policy::params::{Bounds, Params};
use sluice_policy::reclaim::PolicyName;
use sluice_scheduler::{Event, Sleep};

use super::policies;
use crate::device::SimFaults;
use crate::gpu::Gpu;
use crate::gpu::network::LinkDelays;

const MS: u64 = 1_000_000;

/// Bandwidth of the slow link to the host.
pub(super) const SLOW_BYTES_PER_SECOND: u64 = 1 << 10;

/// A fault at one point in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A tenant's engine is killed.
    KillEngine(usize),
    /// A tenant's process and engine exit, and restart later.
    KillTenant(usize),
    /// A tenant's process stops for this time, nanoseconds.
    Stop(usize, u64),
    /// All processes stop for this time, nanoseconds, and their clocks jump: the machine was suspended.
    ClockJump(u64),
    /// The link changes to this share of its bandwidth, permille.
    LinkBandwidth(u64),
    /// A client disconnects.
    Cancel(usize, RequestId),
    /// A tenant gets the command to sleep or to wake.
    Sleep(usize, Sleep),
    /// A directive changes a tenant's policy.
    Policy(usize, PolicyName),
    /// Directives assign new shares: random ones from this seed, or the initial ones.
    ChangeShares(Option<u64>),
    /// Copies to the host are limited to 1 KiB/s for all tenants.
    SlowHostLink,
}

/// A bug in the backend that the checks must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlantedBug {
    /// Slots are filled before their reader is done.
    SlotTooEarly,
    /// A slab is published as ready when its copy begins.
    ReadyTooEarly,
    /// One copy of a slab has wrong contents.
    FlippedByte,
    /// Addresses that should stay unmapped remain mapped.
    KeptMapping,
    /// An earmark is not written to the ledger although its chunks are released.
    LostEarmark,
}

impl PlantedBug {
    /// All planted bugs.
    pub const ALL: [PlantedBug; 5] = [
        PlantedBug::SlotTooEarly,
        PlantedBug::ReadyTooEarly,
        PlantedBug::FlippedByte,
        PlantedBug::KeptMapping,
        PlantedBug::LostEarmark,
    ];

    /// Returns the name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            PlantedBug::SlotTooEarly => "slot-too-early",
            PlantedBug::ReadyTooEarly => "ready-too-early",
            PlantedBug::FlippedByte => "flipped-byte",
            PlantedBug::KeptMapping => "kept-mapping",
            PlantedBug::LostEarmark => "lost-earmark",
        }
    }
}

/// Draws up to eight faults within the span, in time order.
pub(super) fn draw(rng: &mut Rng, tenants: usize, span_ns: u64) -> Vec<(u64, Fault)> {
    let count = rng.below(9);
    let mut faults: Vec<_> = (0..count).map(|_| (rng.below(span_ns), draw_one(rng, tenants))).collect();
    faults.sort_by_key(|(at, _)| *at);
    faults
}

fn draw_one(rng: &mut Rng, tenants: usize) -> Fault {
    let at = rng.below(tenants as u64) as usize;
    match rng.below(15) {
        0..=2 => Fault::KillEngine(at),
        3 => Fault::KillTenant(at),
        4 | 5 => Fault::Stop(at, rng.between(1, 400) * MS),
        6 => Fault::ClockJump(rng.between(1, 15_000) * MS),
        7 => Fault::LinkBandwidth(rng.between(20, 1500)),
        8 | 9 => Fault::Cancel(at, RequestId(rng.between(1, 12))),
        10 | 11 => Fault::Policy(at, policies::draw(rng)),
        12 => Fault::SlowHostLink,
        _ => {
            let orders = [Sleep::Idle, Sleep::Ordered, Sleep::Discard, Sleep::WakeUp];
            Fault::Sleep(at, orders[rng.below(4) as usize])
        }
    }
}

/// Injects a fault now.
pub(super) fn inject(gpu: &mut Gpu, fault: &Fault) {
    match *fault {
        Fault::KillEngine(at) => gpu.kill_engine(at),
        Fault::KillTenant(at) => gpu.stop_instance(at),
        Fault::Stop(at, ns) => gpu.stop(at, ns),
        Fault::ClockJump(ns) => (0..gpu.tenants.len()).for_each(|at| gpu.stop(at, ns)),
        Fault::LinkBandwidth(permille) => scale_link_bandwidth(gpu, permille),
        Fault::Cancel(at, request) => gpu.cancel(at, request),
        Fault::Sleep(at, order) => gpu.push(at, Event::Sleep(order)),
        Fault::Policy(at, policy) => gpu.push(at, Event::Policy(policy)),
        Fault::SlowHostLink => slow_host_link(gpu),
        Fault::ChangeShares(seed) => change_shares(gpu, seed),
    }
}

/// Draws changes of shares within the span: none for half of the seeds.
pub(super) fn draw_share_changes(seed: u64, span_ns: u64) -> Vec<(u64, Fault)> {
    let mut rng = Rng::new(seed);
    let count = if rng.chance(500) { rng.between(1, 8) } else { 0 };
    (0..count).map(|_| (rng.below(span_ns), Fault::ChangeShares(Some(rng.next_u64())))).collect()
}

fn change_shares(gpu: &mut Gpu, seed: Option<u64>) {
    let first = |tenant: &crate::gpu::tenant::SimTenant| {
        let Params { share_chunks, remap_cap_permille, .. } = tenant.setup.params;
        Bounds { share_chunks, remap_cap_permille }
    };
    let mut bounds: Vec<_> = gpu.tenants.iter().map(first).collect();
    if let Some(seed) = seed {
        assign_shares(&mut bounds, &floors(gpu), &mut Rng::new(seed));
    }
    gpu.set_shares(bounds);
}

/// Returns the minimum memory of each tenant as configured, chunks.
fn floors(gpu: &Gpu) -> Vec<u32> {
    let manager = |tenant: &crate::gpu::tenant::SimTenant| {
        MemoryManager::new(tenant.setup.params.clone(), tenant.setup.geometry.clone())
            .expect("what was accepted once is accepted again")
    };
    gpu.tenants.iter().map(|tenant| manager(tenant).loans().floor_chunks()).collect()
}

/// Distributes the chunks above the minimums at random, and draws remap caps.
fn assign_shares(bounds: &mut [Bounds], floors: &[u32], rng: &mut Rng) {
    let shares: u32 = bounds.iter().map(|bounds| bounds.share_chunks).sum();
    let mut left = shares - floors.iter().sum::<u32>();
    for (bounds, floor) in bounds.iter_mut().zip(floors) {
        let more = rng.below(u64::from(left) + 1) as u32;
        left -= more;
        bounds.share_chunks = floor + more;
        bounds.remap_cap_permille = [0, 300, bounds.remap_cap_permille, 1000][rng.below(4) as usize];
    }
}

fn scale_link_bandwidth(gpu: &mut Gpu, permille: u64) {
    for tenant in &mut gpu.tenants {
        let rate = tenant.setup.profile.link_bytes_per_second;
        if let Some(instance) = &tenant.instance {
            let profile = &mut instance.device.borrow_mut().profile;
            profile.link_bytes_per_second = (rate * permille / 1000).max(1);
            profile.out_bytes_per_second = profile.link_bytes_per_second;
        }
    }
}

fn slow_host_link(gpu: &mut Gpu) {
    for instance in gpu.tenants.iter().filter_map(|tenant| tenant.instance.as_ref()) {
        instance.device.borrow_mut().profile.out_bytes_per_second = SLOW_BYTES_PER_SECOND;
    }
}

/// Activates `faults` of the devices, and the planted bug.
pub(super) fn begin(gpu: &mut Gpu, faults: SimFaults, plant: Option<PlantedBug>) {
    let faults = SimFaults {
        ignore_after: plant == Some(PlantedBug::SlotTooEarly),
        publish_early: plant == Some(PlantedBug::ReadyTooEarly),
        flip_next_fill: plant == Some(PlantedBug::FlippedByte),
        keep_unmapped: plant == Some(PlantedBug::KeptMapping),
        ..faults
    };
    gpu.ledger.borrow_mut().earmarks_to_lose = u32::from(plant == Some(PlantedBug::LostEarmark));
    gpu.faults = faults;
    set_faults(gpu, faults);
}

/// Ends the faults, those of `link_delays` too; planted bugs remain.
pub(super) fn end(gpu: &mut Gpu, link_delays: LinkDelays) {
    let SimFaults { ignore_after, publish_early, keep_unmapped, .. } = gpu.faults;
    let faults = SimFaults { ignore_after, publish_early, keep_unmapped, ..SimFaults::default() };
    gpu.faults = faults;
    gpu.network.delays = LinkDelays { lost_permille: 0, duplicate_permille: 0, ..link_delays };
    set_faults(gpu, faults);
    scale_link_bandwidth(gpu, 1000);
    change_shares(gpu, None);
    for at in 0..gpu.tenants.len() {
        let failed = |tenant: &crate::gpu::tenant::SimTenant| {
            tenant
                .instance
                .as_ref()
                .is_some_and(|instance| instance.driver.scheduler().manager().status().failed().is_some())
        };
        if failed(&gpu.tenants[at]) {
            gpu.stop_instance(at);
        }
    }
}

fn set_faults(gpu: &Gpu, faults: SimFaults) {
    for instance in gpu.tenants.iter().filter_map(|tenant| tenant.instance.as_ref()) {
        let device = &mut instance.device.borrow_mut();
        let flips = device.faults.flip_next_fill;
        device.faults = SimFaults { flip_next_fill: faults.flip_next_fill || flips, ..faults };
    }
}
