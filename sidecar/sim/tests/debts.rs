//! Memory owed to a peer without space for the KV in it. A policy that compares the cost of reclaim options keeps
//! requests waiting with their KV in the host tier if that costs less than recomputation.

use sluice_policy::ids::Nanos;
use sluice_policy::params::Slo;
use sluice_policy::reason::Reason;
use sluice_policy::reclaim::PolicyName;
use sluice_scheduler::Request;

use crate::gpu::{LAYERS, MS, assert_same_as_unshared, shared, temporal, tenants};
use crate::support::{LIMIT, load};

/// Outcomes of requests, and debts that changed ownership.
#[derive(Debug)]
struct Counts {
    pauses: u64,
    preemptions: u64,
    repaid: u64,
}

/// Serves two tenants. First one is busy, then both are, so that borrowed memory is revoked while it is used.
fn served(by_loss: bool, host_kv_blocks: u64, seed: u64) -> Counts {
    let (capacity_chunks, mut tenants) = tenants(PolicyName::Unified, 2, 14);
    for tenant in &mut tenants {
        tenant.params.host_kv_bytes = host_kv_blocks * u64::from(LAYERS) * tenant.geometry.layer_block_bytes;
        tenant.params.ablations.reclaim_by_cost = by_loss;
        tenant.params.slo = Slo { ttft_ns: 1000 * MS, tbt_ns: 20 * MS, allowed_miss_permille: 10 };
    }
    let mut gpu = shared(false, temporal(), (capacity_chunks, tenants));
    let loads: Vec<Vec<(u64, Request)>> = vec![load(40, seed), load(20, seed + 1)];
    for (at, load) in loads.iter().enumerate() {
        let first = 50 * MS * (1 + at as u64);
        load.iter().for_each(|(when, request)| gpu.submit_at(at, Nanos(first + when), request.clone()));
    }
    assert!(gpu.run_until_done(LIMIT), "{} open", gpu.open());
    assert_same_as_unshared(
        &gpu,
        &loads,
        &format!("by loss {by_loss}, {host_kv_blocks} places, seed {seed}"),
    );
    let cores = || gpu.tenants.iter().map(|tenant| tenant.instance.as_ref().unwrap().driver.scheduler());
    let counters = || cores().map(|core| core.snapshot().counters.clone());
    Counts {
        pauses: counters().map(|counters| counters.pauses).sum(),
        preemptions: counters().map(|counters| counters.preemptions).sum(),
        repaid: cores().map(|core| core.manager().figures().counted(Reason::Repay)).sum(),
    }
}

#[test]
fn paused_requests_keep_kv_and_change_no_token() {
    let sum = |by_loss| {
        (0..8).map(|seed| served(by_loss, 200, seed)).fold((0, 0), |(pauses, preemptions), one| {
            assert!(one.repaid > 0, "what is tested happens");
            (pauses + one.pauses, preemptions + one.preemptions)
        })
    };
    let (by_loss, by_order) = (sum(true), sum(false));
    assert!(by_loss.0 > by_order.0, "pauses and preemptions: {by_loss:?} and {by_order:?}");
    assert!(4 * by_loss.1 < by_order.1, "pauses and preemptions: {by_loss:?} and {by_order:?}");
}

#[test]
fn request_without_host_space_is_recomputed() {
    let (none, few) = (served(true, 0, 1), served(true, 3, 1));
    assert!(none.pauses == 0 && none.preemptions > 0, "{none:?}");
    assert!(few.pauses > 0 && few.preemptions > 0, "{few:?}");
}
