//! Several tenants on one GPU: tokens, bytes, time slices, the link.

use sluice_policy::ids::Nanos;
use sluice_policy::loan_negotiator::{NegotiationPolicy, PeerEvent};
use sluice_policy::memory_manager::MemoryManager;
use sluice_policy::peers::time_slice::{Quantum, SliceOrder};
use sluice_policy::reason::Reason;
use sluice_policy::reclaim::PolicyName;
use sluice_ports::peers::PeerPortEvent;
use sluice_scheduler::{Event, Request};
use sluice_sim::Detail;
use sluice_sim::gpu::network::LinkDelays;
use sluice_sim::gpu::tenant::TenantSetup;
use sluice_sim::gpu::{Gpu, GpuSetup, GpuSharing};

use crate::support::{LIMIT, VOCAB, expected, load, setup};

pub const MS: u64 = 1_000_000;
pub const LAYERS: u16 = 6;

pub fn temporal() -> GpuSharing {
    GpuSharing::Temporal { quantum: Quantum::new(MS, 8 * MS), order: SliceOrder::RoundRobin }
}

pub fn tenants(policy: PolicyName, count: u32, kv_blocks: u32) -> (u32, Vec<TenantSetup>) {
    let tenant = |at: u32| {
        let mut base = setup(policy, LAYERS, kv_blocks, u64::from(at));
        let share = base.geometry.capacity_chunks;
        base.params.share_chunks = share;
        base.geometry.capacity_chunks = share * count;
        let terms =
            NegotiationPolicy { min_residence_ns: 5 * MS, retry_ns: 20 * MS, ..NegotiationPolicy::default() };
        TenantSetup {
            name: format!("tenant-{at}"),
            config: base.config,
            params: base.params,
            geometry: base.geometry,
            profile: base.profile,
            vocab: VOCAB,
            terms,
        }
    };
    let tenants: Vec<_> = (0..count).map(tenant).collect();
    (tenants[0].geometry.capacity_chunks, tenants)
}

fn gpu(sharing: GpuSharing, policy: PolicyName, count: u32, kv_blocks: u32) -> Gpu {
    recording(false, sharing, policy, count, kv_blocks)
}

/// Returns the journals of two tenants that run in time slices and lend each other memory.
pub fn record_peers(requests: u64) -> Vec<String> {
    let mut gpu = recording(true, temporal(), PolicyName::Oneiros, 2, 14);
    for (at, requests) in [requests, requests / 4].into_iter().enumerate() {
        let load = load(requests, 3 + at as u64);
        load.into_iter().for_each(|(when, request)| gpu.submit_at(at, Nanos(50 * MS + when), request));
    }
    gpu.run_until(Nanos(60 * MS));
    let terms = PeerPortEvent::Peer(PeerEvent::Terms(NegotiationPolicy {
        retry_ns: 10 * MS,
        ..NegotiationPolicy::default()
    }));
    gpu.tenants[0].instance.as_mut().unwrap().driver.push(Event::Peer(terms));
    assert!(gpu.run_until_done(LIMIT), "each request is served");
    let journals =
        gpu.tenants.iter().map(|tenant| tenant.instance.as_ref().unwrap().recorded_journal().unwrap());
    journals.map(|text| String::from_utf8(text).unwrap()).collect()
}

fn recording(recorded: bool, sharing: GpuSharing, policy: PolicyName, count: u32, kv_blocks: u32) -> Gpu {
    shared(recorded, sharing, tenants(policy, count, kv_blocks))
}

/// Returns a GPU with this capacity, in chunks, and these tenants.
pub fn shared(
    recorded: bool,
    sharing: GpuSharing,
    (capacity_chunks, tenants): (u32, Vec<TenantSetup>),
) -> Gpu {
    let setup = GpuSetup {
        sharing,
        capacity_chunks,
        link_delays: LinkDelays::default(),
        detail: Detail::Fingerprints,
        restart_ns: 50 * MS,
        recorded,
        seed: 7,
    };
    Gpu::new(setup, tenants).unwrap_or_else(|(name, why)| panic!("{name}: {why}"))
}

/// Gives the first tenant a large load and the others a small one.
fn uneven_load(gpu: &mut Gpu, seed: u64) -> Vec<Vec<(u64, Request)>> {
    let loads: Vec<_> =
        (0..gpu.tenants.len()).map(|at| load(if at == 0 { 24 } else { 3 }, seed + at as u64)).collect();
    for (at, load) in loads.iter().enumerate() {
        load.iter().for_each(|(when, request)| gpu.submit_at(at, Nanos(50 * MS + when), request.clone()));
    }
    loads
}

/// Panics if a token differs from those of the tenant alone.
pub fn assert_same_as_unshared(gpu: &Gpu, loads: &[Vec<(u64, Request)>], what: &str) {
    for (tenant, load) in gpu.tenants.iter().zip(loads) {
        for (outcome, expected) in tenant.outcomes.values().zip(expected(load, LAYERS)) {
            assert_eq!(outcome.tokens, expected.tokens, "{what}: {}", tenant.setup.name);
            assert_eq!(outcome.finish, expected.finish, "{what}: {}", tenant.setup.name);
        }
    }
}

/// Returns the memory manager of a live tenant.
fn manager(gpu: &Gpu, at: usize) -> &MemoryManager {
    gpu.tenants[at].instance.as_ref().unwrap().driver.scheduler().manager()
}

/// Returns the number of existing chunks on all devices, plus the promised ones.
fn existing(gpu: &Gpu) -> u32 {
    let chunks = |tenant: &sluice_sim::gpu::tenant::SimTenant| {
        tenant.instance.as_ref().map_or(0, |instance| instance.device.borrow().memory.chunks.len() as u32)
    };
    gpu.tenants.iter().map(chunks).sum::<u32>() + gpu.ledger.borrow().pending_chunks()
}

#[test]
fn time_sliced_peers_lend_memory_and_change_no_token() {
    let mut gpu = gpu(temporal(), PolicyName::Oneiros, 3, 14);
    let loads = uneven_load(&mut gpu, 3);
    let mut borrowed = 0;
    while !gpu.is_done() {
        assert!(gpu.tick(LIMIT), "each request is served: {} open", gpu.open());
        assert!(existing(&gpu) <= gpu.ledger.borrow().capacity(), "no byte is promised twice");
        borrowed = borrowed.max(manager(&gpu, 0).loans().borrowed_chunks());
    }
    assert!(borrowed > 0, "the tenant with much to do borrows");
    assert!(gpu.granted_slices() > 10, "{} slices", gpu.granted_slices());
    assert_same_as_unshared(&gpu, &loads, "temporal");
}

#[test]
fn run_is_deterministic() {
    let run = || {
        let mut gpu = gpu(temporal(), PolicyName::Oneiros, 3, 14);
        uneven_load(&mut gpu, 3);
        assert!(gpu.run_until_done(LIMIT));
        let outcomes: Vec<_> = gpu.tenants.iter().map(|tenant| tenant.outcomes.clone()).collect();
        (gpu.now(), gpu.granted_slices(), outcomes)
    };
    assert_eq!(run(), run());
}

#[test]
fn tokens_are_the_same_however_the_gpu_is_shared() {
    for sharing in [GpuSharing::Spatial, GpuSharing::Isolated] {
        for policy in [PolicyName::Recompute, PolicyName::Oneiros] {
            let mut gpu = gpu(sharing, policy, 2, 14);
            let loads = uneven_load(&mut gpu, 5);
            assert!(gpu.run_until_done(LIMIT), "{sharing:?} {policy:?}: {} open", gpu.open());
            assert_same_as_unshared(&gpu, &loads, &format!("{sharing:?} {policy:?}"));
        }
    }
}

/// Returns the time when the last request ends, with the same requests for each tenant.
fn ends(sharing: GpuSharing, count: u32) -> u64 {
    let mut gpu = gpu(sharing, PolicyName::Recompute, count, 100);
    for at in 0..count as usize {
        let load = load(8, 9);
        load.into_iter().for_each(|(_, request)| gpu.submit_at(at, Nanos(100 * MS), request));
    }
    assert!(gpu.run_until_done(LIMIT));
    gpu.now().0 - 100 * MS
}

#[test]
fn tenants_that_compute_at_once_share_the_processors() {
    let (unshared, isolated) = (ends(GpuSharing::Isolated, 1), ends(GpuSharing::Isolated, 2));
    assert_eq!(unshared, isolated, "a tenant with its own part of the GPU is not slowed");
    let together = ends(GpuSharing::Spatial, 2) as f64 / unshared as f64;
    assert!((1.95..2.05).contains(&together), "{together}");
}

#[test]
fn peer_copies_share_one_link() {
    let loaded = |count: u32| {
        let (capacity_chunks, mut tenants) = tenants(PolicyName::Recompute, count, 20);
        // A slab takes a millisecond, so loading time is copy time.
        tenants.iter_mut().for_each(|tenant| tenant.profile.link_bytes_per_second = 262_137_000);
        let setup = GpuSetup {
            sharing: GpuSharing::Isolated,
            capacity_chunks,
            link_delays: LinkDelays::default(),
            detail: Detail::Times,
            restart_ns: 0,
            recorded: false,
            seed: 1,
        };
        let mut gpu = Gpu::new(setup, tenants).unwrap();
        let loaded = |gpu: &Gpu| {
            gpu.tenants
                .iter()
                .all(|s| s.instance.as_ref().unwrap().driver.scheduler().manager().status().is_loaded())
        };
        while !loaded(&gpu) {
            assert!(gpu.tick(LIMIT));
        }
        (gpu.now().0, gpu.machine.borrow().transferred_bytes().0)
    };
    let ((one, bytes), (both, both_bytes)) = (loaded(1), loaded(2));
    assert_eq!(both_bytes, 2 * bytes);
    let ratio = both as f64 / one as f64;
    assert!((1.9..2.05).contains(&ratio), "{ratio}");
}

#[test]
fn killed_tenant_releases_memory_and_time_slice_and_restarts() {
    let mut gpu = gpu(temporal(), PolicyName::Oneiros, 2, 14);
    let loads = uneven_load(&mut gpu, 11);
    gpu.run_until(Nanos(90 * MS));
    gpu.stop_instance(0);
    assert_eq!(
        existing(&gpu),
        gpu.tenants[1].instance.as_ref().unwrap().device.borrow().memory.chunks.len() as u32
    );
    let broken = gpu.tenants[0].outcomes.values().filter(|outcome| outcome.is_disconnected).count();
    assert!(broken > 0, "its clients see closed streams");
    assert!(gpu.run_until_done(LIMIT), "{} open", gpu.open());
    assert!(gpu.tenants[0].instance.is_some());
    let baseline = expected(&loads[0], LAYERS);
    for (outcome, expected) in gpu.tenants[0].outcomes.values().zip(&baseline) {
        assert!(
            expected.tokens.starts_with(&outcome.tokens)
                && (outcome.is_disconnected || outcome.tokens == expected.tokens)
        );
    }
}

/// A tenant is stopped before its first poll of the ledger. During the stop a peer asks it for memory and exits.
#[test]
fn loan_to_peer_that_died_before_first_survey_is_recovered() {
    let mut gpu = gpu(GpuSharing::Spatial, PolicyName::Oneiros, 2, 14);
    while !manager(&gpu, 0).status().is_loaded() {
        assert!(gpu.tick(Nanos(20 * MS)), "it looks at the ledger after 25 ms");
    }
    gpu.stop(0, 1000 * MS);
    let begun = gpu.now();
    let load = load(24, 5);
    load.into_iter().for_each(|(when, request)| gpu.submit_at(1, begun.plus(when), request));
    while manager(&gpu, 1).loans().borrow_request().is_none() {
        assert!(gpu.tick(Nanos(900 * MS)), "it needs memory while its peer is stopped");
    }
    // The survey and the ask take up to 0.7 ms each, and the reply timeout is 20 ms.
    gpu.run_until(gpu.now().plus(2 * MS));
    gpu.stop_instance(1);
    let lent = |gpu: &Gpu| manager(gpu, 0).loans().lent_chunks();
    assert!(gpu.now() < begun.plus(1000 * MS) && lent(&gpu) == 0, "it is stopped");
    gpu.run_until(Nanos(30_000 * MS));
    // A lender that misses the exit would never get the loan back.
    assert_eq!((manager(&gpu, 0).figures().counted(Reason::Lend), lent(&gpu)), (1, 0));
}
