//! The peer that a tenant asks for memory: the one whose predicted next use is the latest, not the most recently used
//! one.

use sluice_policy::ids::Nanos;
use sluice_policy::reclaim::PolicyName;
use sluice_scheduler::Request;
use sluice_sim::gpu::GpuSharing;
use sluice_sim::gpu::tenant::TenantStats;

use crate::gpu::{MS, assert_same_as_unshared, shared, tenants};
use crate::support::{LIMIT, load};

/// Returns `count` bursts, one every `period_ms`; requests within a burst are spread as by `load`. The start of the
/// bursts is also the seed.
fn bursts(count: u64, size: u64, first_ms: u64, period_ms: u64) -> Vec<(u64, Request)> {
    let requests = load(count * size, first_ms);
    let chunks = requests.chunks(size as usize).enumerate();
    let moved = chunks.flat_map(|(at, burst)| {
        let (began, begins) = (burst[0].0, (first_ms + at as u64 * period_ms) * MS);
        burst.iter().map(move |(when, request)| (begins + when - began, request.clone()))
    });
    moved.collect()
}

/// One tenant needs memory ten times, each time just after the use of a frequently used peer. Another peer is used
/// rarely.
fn served(policy: PolicyName, by_arrivals: bool) -> [TenantStats; 2] {
    let (capacity_chunks, mut tenants) = tenants(policy, 3, 14);
    for tenant in &mut tenants {
        tenant.params.ablations.next_use_by_arrivals = by_arrivals;
        tenant.params.revert_patience_steps = 4;
    }
    let mut gpu = shared(false, GpuSharing::Spatial, (capacity_chunks, tenants));
    let loads = [bursts(10, 16, 9060, 1000), bursts(95, 1, 50, 200), bursts(7, 1, 40, 3000)];
    for (at, load) in loads.iter().enumerate() {
        load.iter().for_each(|(when, request)| gpu.submit_at(at, Nanos(*when), request.clone()));
    }
    assert!(gpu.run_until_done(LIMIT), "{} open", gpu.open());
    assert_same_as_unshared(&gpu, &loads, &format!("{policy:?}, by arrivals {by_arrivals}"));
    [gpu.tenants[1].stats, gpu.tenants[2].stats]
}

#[test]
fn rarely_used_tenant_lends_before_recently_used_one() {
    let ([often, seldom], [often_by_use, seldom_by_use]) =
        (served(PolicyName::Unified, true), served(PolicyName::Unified, false));
    let text = format!("{often:?}\n{seldom:?}\n{often_by_use:?}\n{seldom_by_use:?}");
    assert!(often_by_use.remapped_layers > seldom_by_use.remapped_layers, "{text}");
    assert!(often.remapped_layers < seldom.remapped_layers, "{text}");
    let waited_ns = |tally: &TenantStats| tally.revoke_ns + tally.wake_ns;
    assert!(2 * waited_ns(&often) < waited_ns(&often_by_use), "it waits less for its own: {text}");
}

#[test]
fn the_papers_order_is_by_last_use_whatever_is_set() {
    let [often, seldom] = served(PolicyName::Oneiros, true);
    assert_eq!([often, seldom], served(PolicyName::Oneiros, false));
    assert!(often.remapped_layers > seldom.remapped_layers, "{often:?}\n{seldom:?}");
}
