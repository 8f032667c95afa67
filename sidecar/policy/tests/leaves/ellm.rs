//! Tests eLLM's algorithms case by case.

use sluice_policy::ellm::{
    self, Admission, Balloon, BufferController, Need, PREMAP_LIMIT_BYTES, Phase, Supply, Violations, admit,
    balloon,
};

const NO_BUFFER: Supply = Supply { free: 100, threshold: 10, buffer: 0 };

fn needs(list: &[(u32, u32)]) -> Vec<Need> {
    list.iter().map(|&(kv, activation)| Need { kv, activation }).collect()
}

#[test]
fn a_request_is_admitted_while_the_threshold_stays_free() {
    let queue = needs(&[(40, 10), (30, 10), (1, 0)]);
    let batch = admit(Phase::Prefill, NO_BUFFER, &queue);
    assert_eq!(batch, Admission { offloaded: vec![false, false], kv: 70, activation: 20, buffer_left: 0 });
}

#[test]
fn one_chunk_below_the_threshold_is_refused() {
    assert_eq!(admit(Phase::Prefill, NO_BUFFER, &needs(&[(80, 10)])).offloaded.len(), 1);
    assert_eq!(admit(Phase::Prefill, NO_BUFFER, &needs(&[(81, 10)])).offloaded.len(), 0);
    assert_eq!(admit(Phase::Decode, NO_BUFFER, &needs(&[(80, 10)])).offloaded.len(), 1);
    assert_eq!(admit(Phase::Decode, NO_BUFFER, &needs(&[(80, 11)])).offloaded.len(), 0);
}

#[test]
fn admission_stops_at_the_first_that_does_not_fit() {
    for phase in [Phase::Prefill, Phase::Decode] {
        assert_eq!(admit(phase, NO_BUFFER, &needs(&[(50, 0), (60, 0), (1, 0)])).offloaded, [false]);
    }
}

#[test]
fn without_a_buffer_nothing_is_admitted_by_offload() {
    let queue = needs(&[(90, 0), (1, 0)]);
    assert_eq!(admit(Phase::Prefill, NO_BUFFER, &queue).offloaded, [false]);
}

#[test]
fn with_a_buffer_prefill_goes_on_by_offload_and_uses_it_up() {
    let supply = Supply { buffer: 50, ..NO_BUFFER };
    let batch = admit(Phase::Prefill, supply, &needs(&[(60, 10), (30, 5), (25, 5), (10, 1)]));
    assert_eq!(batch, Admission { offloaded: vec![false, true], kv: 60, activation: 15, buffer_left: 20 });
}

#[test]
fn offload_still_needs_room_for_activations() {
    let supply = Supply { buffer: 1000, ..NO_BUFFER };
    assert_eq!(admit(Phase::Prefill, supply, &needs(&[(60, 10), (30, 21)])).offloaded, [false]);
    assert_eq!(admit(Phase::Prefill, supply, &needs(&[(60, 10), (30, 20)])).offloaded, [false, true]);
}

#[test]
fn decoding_never_offloads() {
    let supply = Supply { buffer: 1000, ..NO_BUFFER };
    assert_eq!(admit(Phase::Decode, supply, &needs(&[(60, 10), (30, 5)])).offloaded, [false]);
}

#[test]
fn a_threshold_above_what_is_free_admits_nothing() {
    let supply = Supply { free: 5, threshold: 6, buffer: 9 };
    assert_eq!(
        admit(Phase::Prefill, supply, &needs(&[(0, 0)])),
        Admission { buffer_left: 9, ..Admission::default() }
    );
}

#[test]
fn the_balloon_inflates_with_a_positive_and_deflates_with_a_negative_sign() {
    assert_eq!(balloon(10, 20, 15, 5), Balloon::Inflate(5));
    assert_eq!(balloon(20, 10, 5, 15), Balloon::Deflate(5));
    assert_eq!(balloon(10, 20, 15, 5).inflation(), 5);
    assert_eq!(balloon(20, 10, 5, 15).inflation(), -5);
    assert_eq!(balloon(10, 10, 10, 10), Balloon::Level);
    assert_eq!(balloon(10, 10, 10, 10).inflation(), 0);
}

#[test]
fn both_pools_short_moves_nothing() {
    assert_eq!(balloon(10, 10, 11, 12), Balloon::Short { missing: 3 });
    assert_eq!(balloon(10, 10, 11, 12).inflation(), 0);
}

#[test]
fn a_surplus_smaller_than_the_need_moves_nothing() {
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
fn an_event_is_spent_once() {
    assert_eq!(run(&mut BufferController::new(64), &[TTFT; 7]), [1, 1, 2, 2, 2, 4, 4]);
}

#[test]
fn tpot_goes_before_ttft() {
    let mut controller = BufferController::new(64);
    assert_eq!(run(&mut controller, &[TTFT; 9]).last(), Some(&8));
    assert_eq!(run(&mut controller, &[BOTH; 3]), [8, 8, 4]);
}

#[test]
fn the_buffer_never_falls_below_1_nor_rises_above_the_physical_one() {
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
