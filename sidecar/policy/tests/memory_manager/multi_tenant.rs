//! Tests tenants that trade with delayed, lost, duplicated and reordered messages while some of them exit: no byte is
//! earmarked twice, no token changes, no tenant waits forever, and all loans are returned.

mod harness;
mod network;
mod shares;

use proptest::prelude::*;
use sluice_policy::memory_manager::MemoryManager;

use self::harness::{BOUND_NS, Case, SimGpu};

fn case() -> impl Strategy<Value = Case> {
    let slabs = prop_oneof![(3usize..8).prop_map(|n| vec![4; n]), proptest::collection::vec(1u64..6, 4..8)];
    let place = (2usize..=4, slabs, 0u32..8, any::<bool>(), any::<u64>());
    let fault_rates = (0u32..150, 0u32..150, (0u32..40, 0u32..=3), 0u32..10, 0u32..=3);
    let sleep = (prop_oneof![Just(0), 5u32..80], 0u64..4096);
    let share_changes = prop_oneof![Just(0), 1u32..40];
    (place, fault_rates, sleep, share_changes).prop_map(
        |((tenants, slabs, extra_kv, time_slices, seed), fault_rates, sleep, share_changes)| {
            let (loss, duplicates, (faults, unmade), kills, exits) = fault_rates;
            let (sleeps, host_kv_bytes) = sleep;
            let faults =
                Case { loss, duplicates, faults, unmade, kills, exits, ..fault_free_case(time_slices) };
            Case { tenants, slabs, extra_kv, seed, sleeps, host_kv_bytes, share_changes, ..faults }
        },
    )
}

/// Returns the number of simulated GPUs: set in the environment for a long search, otherwise small.
fn gpus() -> u32 {
    std::env::var("PROPTEST_CASES").map_or(40, |cases| cases.parse().expect("PROPTEST_CASES is a number"))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: gpus(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn lost_messages_lose_no_request_and_no_loan(case in case()) {
        let mut gpu = SimGpu::new(&case);
        gpu.run();
        gpu.settle();
        for slot in &gpu.slots {
            prop_assert_eq!(slot.finished(), &slot.expected, "the tokens of the tenant alone");
        }
    }
}

/// Returns a case without failures other than those the test adds.
fn fault_free_case(time_slices: bool) -> Case {
    Case {
        tenants: 3,
        slabs: vec![4; 6],
        extra_kv: 4,
        time_slices,
        seed: 13,
        loss: 0,
        duplicates: 0,
        faults: 0,
        unmade: 0,
        kills: 0,
        exits: 0,
        sleeps: 0,
        host_kv_bytes: 0,
        untaken: 0,
        loses_earmarks: 0,
        loses_revocations: 0,
        ignores_messages: None,
        ttl_ms: 300,
        blind: false,
        later_floor: 0,
        share_changes: 0,
    }
}

#[test]
fn short_tenants_borrow() {
    for time_slices in [false, true] {
        let mut gpu = SimGpu::new(&fault_free_case(time_slices));
        gpu.run();
        gpu.settle();
        assert!(gpu.loans > 0, "what is tested happens");
    }
}

#[test]
fn reassigned_shares_serve_every_tenant() {
    for time_slices in [false, true] {
        for share_changes in [5, 100] {
            let mut gpu = SimGpu::new(&Case { share_changes, ..fault_free_case(time_slices) });
            gpu.run();
            gpu.settle();
            assert!(gpu.released > 0, "what is tested happens");
            for slot in &gpu.slots {
                assert_eq!(slot.finished(), &slot.expected, "the tokens of the tenant alone");
            }
        }
    }
}

#[test]
fn unbacked_bytes_are_returned() {
    for time_slices in [false, true] {
        let mut gpu = SimGpu::new(&Case { unmade: 2, ..fault_free_case(time_slices) });
        gpu.run();
        gpu.settle();
        assert!(gpu.unbacked_chunks() < 3 * 2, "what is tested happens");
    }
}

/// Regression: a free chunk was returned for one that was never created, and the missing chunk was never created later.
#[test]
fn unbacked_bytes_return_before_chunks() {
    let fault_rates = Case {
        loss: 53,
        duplicates: 125,
        faults: 9,
        unmade: 1,
        kills: 4,
        exits: 1,
        ..fault_free_case(false)
    };
    let mut gpu =
        SimGpu::new(&Case { tenants: 4, extra_kv: 6, seed: 12_132_025_877_032_656_000, ..fault_rates });
    gpu.run();
    gpu.settle();
}

/// Regression: the lender's next instance had the bytes of a chunk that was never created, so there was nothing to
/// return.
#[test]
fn unbacked_bytes_are_not_owed_to_exited_peers() {
    let fault_rates = Case { loss: 6, faults: 25, unmade: 2, kills: 3, exits: 3, ..fault_free_case(true) };
    let slabs = vec![2, 1, 1, 2, 2, 2, 1];
    let mut gpu =
        SimGpu::new(&Case { tenants: 2, slabs, extra_kv: 2, seed: 3_796_915_990_984_269_167, ..fault_rates });
    gpu.run();
    gpu.settle();
}

/// Tenants that often sleep, and whose host tier is small, take long, but all of them make progress.
#[test]
fn tenants_that_sleep_often_make_progress() {
    let sleepy = Case { sleeps: 60, host_kv_bytes: 112, ..fault_free_case(true) };
    let small = Case { tenants: 4, slabs: vec![3, 2, 3, 1, 1, 1, 1], extra_kv: 1, ..sleepy };
    let mut gpu = SimGpu::new(&Case { seed: 85_855_058_534, ..small });
    gpu.run();
    gpu.settle();
}

/// Raises the floor of a later instance to its share.
const LATER_FLOOR: u32 = 20;

fn lender(gpu: &SimGpu) -> Option<usize> {
    (0..gpu.slots.len()).find(|at| gpu.manager(*at).is_some() && gpu.lent_by(*at) > 0)
}

/// Stops a lender without notice to its peers. Runs until it is loaded again.
fn lender_with_lent_floor(later_floor: u32) -> (SimGpu, usize) {
    let mut gpu = SimGpu::new(&Case { blind: true, later_floor, ..fault_free_case(true) });
    gpu.until(|gpu| lender(gpu).is_some());
    let at = lender(&gpu).expect("it was just there");
    gpu.stop_instance(at);
    gpu.until(|gpu| gpu.manager(at).is_some_and(|manager| manager.status().is_loaded()));
    (gpu, at)
}

#[test]
fn restarted_tenant_waits_for_lent_floor_and_claims_it() {
    let (mut gpu, at) = lender_with_lent_floor(LATER_FLOOR);
    assert!(gpu.claims > 0, "no message reported its death, so its peers got claims");
    gpu.run();
    let manager = gpu.manager(at).expect("it lives");
    assert_eq!((manager.loans().expected_chunks(), manager.status().failed()), (0, None));
}

#[test]
fn tenant_with_free_floor_starts_and_grows_to_share() {
    let (mut gpu, at) = lender_with_lent_floor(0);
    assert_eq!(gpu.claims, 0, "it has its floor");
    let created = |gpu: &SimGpu| gpu.manager(at).map_or(0, |manager| manager.figures().ledger().created());
    let (begun, share) = (created(&gpu), gpu.manager(at).map_or(0, |manager| manager.loans().share_chunks()));
    assert!(begun < share, "the rest is lent: {begun} of {share}");
    gpu.until(|gpu| created(gpu) >= share);
    assert!(gpu.claims > 0);
}

#[test]
#[should_panic(expected = "not everything goes home")]
fn lost_earmark_is_detected() {
    let mut gpu = SimGpu::new(&Case { loses_earmarks: 1, ..fault_free_case(true) });
    gpu.run();
    gpu.settle();
}

/// Checks that every tenant has generated the same tokens as alone.
fn served(case: &Case) -> SimGpu {
    let mut gpu = SimGpu::new(case);
    gpu.run();
    for slot in &gpu.slots {
        assert_eq!(slot.finished(), &slot.expected, "the tokens of the tenant alone");
    }
    gpu
}

#[test]
fn tenants_serve_with_all_earmarks_lost() {
    for time_slices in [false, true] {
        let gpu = served(&Case { loses_earmarks: u32::MAX, ..fault_free_case(time_slices) });
        let lost = (0..3).any(|at| gpu.manager(at).is_some_and(|manager| manager.loans().lent_chunks() > 0));
        assert!(lost, "what is tested happens");
    }
}

#[test]
fn tenants_serve_with_unacceptable_earmarks() {
    for time_slices in [false, true] {
        let mut gpu = served(&Case { untaken: u32::MAX, ..fault_free_case(time_slices) });
        assert_eq!(gpu.loans, 0);
        gpu.settle();
    }
}

/// Loans are revoked while their borrower still uses them, and no loan expires.
fn contested() -> Case {
    Case { extra_kv: 0, ttl_ms: 60_000, ..fault_free_case(true) }
}

#[test]
fn lost_revocation_is_resent() {
    let slowest_ns = |loses_revocations| {
        let mut gpu = served(&Case { loses_revocations, ..contested() });
        gpu.settle();
        gpu.slowest_ns
    };
    let (kept_ns, lost_ns) = (slowest_ns(0), slowest_ns(1));
    assert!(kept_ns > 0, "what is tested happens");
    assert!(lost_ns <= kept_ns + BOUND_NS, "{lost_ns} ns after one was lost, {kept_ns} ns else");
}

#[test]
fn overdue_lender_asks_other_peers() {
    let asked = |seed| served(&Case { ignores_messages: Some(0), seed, ..contested() }).asked_while_late;
    assert!((1..=3).map(asked).sum::<u32>() > 0);
}

/// Returns the chunks borrowed and lent, by the memory manager.
fn balance(manager: &MemoryManager) -> (u32, u32) {
    (manager.loans().borrowed_chunks(), manager.loans().lent_chunks())
}
