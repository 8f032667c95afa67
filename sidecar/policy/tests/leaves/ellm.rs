//! Tests eLLM's algorithms case by case.

use sluice_policy::ellm::{
    self, Balloon, BufferController, Need, PREMAP_LIMIT_BYTES, Supply, Violations, balloon,
};

#[test]
fn prompt_is_offloaded_if_theta_and_buffer_allow() {
    let supply = Supply { free: 40, threshold: 10, buffer: 50 };
    assert!(supply.fits_by_offload(Need { kv: 50, activation: 30 }));
    assert!(!supply.fits_by_offload(Need { kv: 51, activation: 30 }), "the buffer is too small");
    assert!(!supply.fits_by_offload(Need { kv: 50, activation: 31 }), "less than theta stays free");
    assert!(!Supply { buffer: 0, ..supply }.fits_by_offload(Need { kv: 1, activation: 0 }), "no buffer");
}

#[test]
fn short_pool_takes_from_other_pool() {
    assert_eq!(balloon(10, 20, 15, 5), Balloon::Inflate(5));
    assert_eq!(balloon(20, 10, 5, 15), Balloon::Deflate(5));
    assert_eq!(balloon(10, 10, 10, 10), Balloon::Level);
}

#[test]
fn both_pools_short_moves_nothing() {
    assert_eq!(balloon(10, 10, 11, 12), Balloon::Short { missing: 3 });
}

#[test]
fn surplus_below_need_moves_nothing() {
    assert_eq!(balloon(10, 12, 15, 10), Balloon::Short { missing: 3 });
    assert_eq!(balloon(12, 10, 10, 15), Balloon::Short { missing: 3 });
    assert_eq!(balloon(10, 15, 15, 10), Balloon::Inflate(5), "exactly enough");
}

const QUIET: Violations = Violations { ttft: false, tpot: false };
const TTFT: Violations = Violations { ttft: true, tpot: false };
const TPOT: Violations = Violations { ttft: false, tpot: true };
const BOTH: Violations = Violations { ttft: true, tpot: true };

fn run(controller: &mut BufferController, seen: &[Violations]) -> Vec<u64> {
    seen.iter().map(|violations| controller.iteration(*violations)).collect()
}

#[test]
fn three_violations_within_five_iterations_are_an_event() {
    assert_eq!(run(&mut BufferController::new(64), &[TTFT, QUIET, TTFT, QUIET, TTFT]), [1, 1, 1, 1, 2]);
}

#[test]
fn two_of_five_are_no_event() {
    let seen = [TTFT, QUIET, QUIET, QUIET, TTFT, QUIET, QUIET, QUIET, TTFT];
    assert_eq!(run(&mut BufferController::new(64), &seen), [1; 9]);
}

#[test]
fn three_spread_over_six_are_no_event() {
    assert_eq!(run(&mut BufferController::new(64), &[TTFT, QUIET, TTFT, QUIET, QUIET, TTFT]), [1; 6]);
}

#[test]
fn violations_of_different_kinds_do_not_add_up() {
    assert_eq!(run(&mut BufferController::new(64), &[TTFT, TPOT, TTFT, TPOT]), [1; 4]);
}

#[test]
fn event_is_counted_once() {
    assert_eq!(run(&mut BufferController::new(64), &[TTFT; 7]), [1, 1, 2, 2, 2, 4, 4]);
}

#[test]
fn tpot_goes_before_ttft() {
    let mut controller = BufferController::new(64);
    assert_eq!(run(&mut controller, &[TTFT; 9]).last(), Some(&8));
    assert_eq!(run(&mut controller, &[BOTH; 3]), [8, 8, 4]);
}

#[test]
fn buffer_stays_between_one_and_physical() {
    let mut controller = BufferController::new(5);
    assert_eq!(run(&mut controller, &[TPOT; 3]).last(), Some(&1));
    assert_eq!(run(&mut controller, &[TTFT; 12]).last(), Some(&5));
    assert_eq!(run(&mut controller, &[TPOT; 3]).last(), Some(&2));
    let mut none = BufferController::new(0);
    assert_eq!(
        (none.logical(), run(&mut none, &[TPOT; 3]).last(), run(&mut none, &[TTFT; 3]).last()),
        (0, Some(&0), Some(&0))
    );
}

#[test]
fn at_most_23_chunks_of_2_mib_are_mapped_ahead() {
    let premap_chunks = |wanted, chunk_bytes| ellm::premap_chunks(wanted, PREMAP_LIMIT_BYTES, chunk_bytes);
    assert_eq!(premap_chunks(100, 2 << 20), 23);
    assert_eq!(premap_chunks(7, 2 << 20), 7);
    assert_eq!(premap_chunks(100, 10_000_000), 4, "50 MB exactly is not below 50 MB");
    assert_eq!(premap_chunks(100, 60_000_000), 0);
    assert_eq!([0, 1, 3].map(|limit| ellm::premap_chunks(100, limit, 1)), [0, 0, 2], "0 switches it off");
}
