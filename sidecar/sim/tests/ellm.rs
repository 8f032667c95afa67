//! Tests eLLM's Algorithm 1 case by case.

use sluice_policy::ellm::{Balloon, Need, Supply};
use sluice_sim::paper::ellm::{Admission, Phase, admit, inflation};

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
fn offload_still_needs_free_activation_memory() {
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
fn an_inflation_is_positive_and_a_deflation_negative() {
    assert_eq!(inflation(Balloon::Inflate(5)), 5);
    assert_eq!(inflation(Balloon::Deflate(5)), -5);
    assert_eq!([Balloon::Level, Balloon::Short { missing: 3 }].map(inflation), [0, 0]);
}
