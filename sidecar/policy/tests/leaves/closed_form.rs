//! Tests the closed forms of a prefill during waking against the simulation, and r.

use proptest::prelude::*;
use sluice_policy::closed_form::Alike;
use sluice_policy::closed_form::prefill::{Waking, most_hidden, ttft_ns};
use sluice_policy::step_model::prefill::{chunk_by_chunk_ns, layer_by_layer_ns};

fn loads(waking: Waking) -> Vec<u64> {
    (0..waking.layers).map(|layer| if layer < waking.present { 0 } else { waking.transfer_ns }).collect()
}

fn simulated(waking: Waking) -> u64 {
    layer_by_layer_ns(&loads(waking), &vec![waking.compute_ns; waking.layers.into()])
}

/// Returns every number of resident layers for every small model and ratio.
fn cases() -> impl Iterator<Item = Waking> {
    (1..=24_u16).flat_map(|layers| {
        (0..=layers).flat_map(move |present| {
            let times = (1..=12).flat_map(|t| (1..=7).map(move |c| (t, c)));
            times.map(move |(transfer_ns, compute_ns)| Waking { layers, present, transfer_ns, compute_ns })
        })
    })
}

#[test]
fn the_three_terms_are_exactly_the_simulated_time_to_first_token() {
    for waking in cases() {
        assert_eq!(waking.ttft_ns(), simulated(waking), "{waking:?}");
    }
}

#[test]
fn loads_are_hidden_exactly_when_the_condition_says_so() {
    for waking in cases() {
        let compute_alone = u64::from(waking.layers) * waking.compute_ns;
        assert_eq!(waking.hidden(), simulated(waking) == compute_alone, "{waking:?}");
    }
}

#[test]
fn the_most_hidden_layers_are_the_most_that_the_simulation_hides() {
    for all in cases().filter(|waking| waking.present == 0) {
        let hidden = |missing: u16| {
            let waking = Waking { present: all.layers - missing, ..all };
            simulated(waking) == u64::from(all.layers) * all.compute_ns
        };
        let most = (0..=all.layers).rev().find(|missing| hidden(*missing)).expect("none missing is hidden");
        assert_eq!(most_hidden(all.layers, all.transfer_ns, all.compute_ns), most, "{all:?}");
    }
}

#[test]
fn four_chunks_one_after_another_take_281_where_layer_by_layer_takes_164() {
    let loads = [4; 40];
    assert_eq!(chunk_by_chunk_ns(&loads, &[&[1; 40][..]; 4]), 281);
    assert_eq!(layer_by_layer_ns(&loads, &[4; 40]), 164);
    assert_eq!(Waking { layers: 40, present: 0, transfer_ns: 4, compute_ns: 4 }.ttft_ns(), 164);
}

#[test]
fn a_missing_global_slab_adds_its_load_first() {
    // The embeddings are not loaded (load 50, compute 1), nor is the last of three layers; the head is resident.
    let (loads, computes) = ([50, 0, 0, 20, 0], [1, 10, 10, 10, 5]);
    assert_eq!(ttft_ns(&loads, &computes), 86);
    assert_eq!(layer_by_layer_ns(&loads, &computes), 86);
    assert_eq!(ttft_ns(&[], &[]), 0);
}

/// Loads (0: resident) and computes of differing stages.
fn stages() -> impl Strategy<Value = Vec<(u64, u64)>> {
    let load = prop_oneof![Just(0), 1..100_u64];
    prop::collection::vec((load, 0..60_u64), 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_general_form_is_exactly_the_simulated_time_over_unlike_stages(stages in stages()) {
        let (loads, computes): (Vec<u64>, Vec<u64>) = stages.into_iter().unzip();
        prop_assert_eq!(ttft_ns(&loads, &computes), layer_by_layer_ns(&loads, &computes));
    }
}

#[test]
fn one_slot_deviates_from_its_bound_by_at_most_r_m_minus_r_over_m_and_by_nothing_for_whole_r() {
    for (n, r) in [24_u16, 32, 40, 80].into_iter().flat_map(|n| (1..=12_000).step_by(7).map(move |r| (n, r)))
    {
        let model = Alike { layers: n, compute_ns: 1000, transfer_ns: r };
        for m in 2..=n {
            let added = model.one_slot_ns(m - 1) - model.one_slot_at_least_ns(m - 1);
            let rest = u64::from(n % m);
            assert!(added * u64::from(m) <= rest * (u64::from(m) - rest) * 1000, "n = {n}, r = {r}, m = {m}");
        }
    }
    for (n, r, m) in [(40, 1000, 7), (40, 3000, 9), (32, 5000, 6), (80, 12_000, 6)] {
        let model = Alike { layers: n, compute_ns: 1000, transfer_ns: r };
        assert_eq!(model.one_slot_ns(m - 1), model.one_slot_at_least_ns(m - 1));
    }
}

#[test]
fn at_40_layers_the_deviation_is_6_9_near_r_0_then_2_7_from_r_2_and_0_7_from_r_7() {
    let worst = |from_r: u64| {
        let added = |r: u64| {
            let model = Alike { layers: 40, compute_ns: 1000, transfer_ns: r };
            (1..40).map(move |alpha| model.one_slot_ns(alpha) - model.one_slot_at_least_ns(alpha)).max()
        };
        (from_r..40_000).filter_map(added).max().expect("there are layouts")
    };
    assert_eq!([worst(1), worst(2000), worst(7000)].map(|ns| (ns + 50) / 100), [69, 27, 7], "tenths of T_c");
}

#[test]
fn r_is_rounded_up_in_permille() {
    assert_eq!(Alike { layers: 40, compute_ns: 3, transfer_ns: 10 }.r_permille(), 3334);
}
