//! Which layers leave, and what it costs to come back.

use proptest::prelude::*;
use sluice_policy::closed_form::prefill::{Waking, most_hidden};
use sluice_policy::neighbours::wake::{Lendable, Wake, leaving, lend_layers, lent_chunks};
use sluice_policy::step_model::prefill::layer_by_layer_ns;

fn lendable(slab_chunks: &[u32], cap: u16, absent: u16) -> Lendable<'_> {
    Lendable { slab_chunks, cap, absent }
}

#[test]
fn the_fewest_last_layers_that_cover_the_need_leave() {
    let slabs = [4, 4, 4, 4, 4, 4];
    assert_eq!([0, 1, 4, 5, 8, 9].map(|need| lend_layers(&lendable(&slabs, 6, 0), need)), [0, 1, 1, 2, 2, 3]);
    assert_eq!(leaving(&lendable(&slabs, 6, 0), 2), 4..6);
    assert_eq!(leaving(&lendable(&slabs, 6, 1), 2), 3..5, "behind the absent one");
}

#[test]
fn unlike_layers_are_counted_as_they_are() {
    let slabs = [9, 9, 3, 2, 1];
    assert_eq!([1, 2, 3, 4, 6, 7].map(|need| lend_layers(&lendable(&slabs, 5, 0), need)), [1, 2, 2, 3, 3, 4]);
    assert_eq!(lend_layers(&lendable(&slabs, 5, 2), 4), 2);
    assert_eq!(lent_chunks(&lendable(&slabs, 5, 2), 2), 12);
}

#[test]
fn no_more_leave_than_the_cap_and_never_a_whole_model() {
    let slabs = [4; 6];
    assert_eq!(lend_layers(&lendable(&slabs, 3, 0), 1000), 3);
    assert_eq!(lend_layers(&lendable(&slabs, 3, 2), 1000), 1);
    assert_eq!(lend_layers(&lendable(&slabs, 3, 4), 1000), 0, "the cap was lowered");
    assert_eq!(lend_layers(&lendable(&slabs, 6, 0), 1000), 5);
    assert_eq!(lend_layers(&lendable(&[4], 1, 0), 1000), 0);
    assert_eq!(lend_layers(&lendable(&[], 1, 0), 1000), 0);
}

/// Oneiros' example: two OPT-13B (26 GB, 40 layers) on 80 GB; two thirds of the inactive one turn 28 GB of KV into 1.62
/// times as much (17.3 GB; whole layers make it 17.6 GB and 1.63).
#[test]
fn two_thirds_of_an_inactive_opt_13b_make_kv_1_6_times_as_large() {
    let slabs = [650; 40]; // MB
    let opt = lendable(&slabs, 27, 0);
    let count = lend_layers(&opt, 26_000 * 2 / 3);
    assert_eq!((count, leaving(&opt, count)), (27, 13..40));
    let kv = 28_000 + lent_chunks(&opt, count);
    assert_eq!(kv * 100 / 28_000, 162);
}

/// 40 layers that all have to come, T_T = 4, four chunks of a prompt with T_p = 1 each: layer by layer it takes 164.
#[test]
fn forty_missing_layers_behind_four_chunks_take_164() {
    let wake = Wake { global_load_ns: 0, loads_ns: &[4; 40], computes_ns: &[4; 40] };
    assert_eq!((wake.ttft_ns(), wake.added_ns()), (164, 4));
}

#[test]
fn the_last_layers_wake_sooner_than_the_first_ones() {
    let (computes, mut last) = ([2; 40], [0; 40]);
    last[30..].fill(6);
    let mut first = last;
    first.reverse();
    let added =
        |loads: &[u64]| Wake { global_load_ns: 0, loads_ns: loads, computes_ns: &computes }.added_ns();
    assert_eq!(most_hidden(40, 6, 2), 13, "ten are hidden");
    assert_eq!((added(&last), added(&first)), (0, 42), "max(6 + 80, 60 + 62) - 80");
}

#[test]
fn missing_global_weights_come_first_and_delay_everything() {
    let wake = Wake { global_load_ns: 11, loads_ns: &[0, 0, 3, 3], computes_ns: &[5; 4] };
    assert_eq!((wake.ttft_ns(), wake.added_ns()), (31, 11), "hidden but for the global weights");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn waking_takes_as_long_as_its_simulation(
        stages in proptest::collection::vec((0_u64..50, 0_u64..50), 1..40),
        global_load_ns in 0_u64..200,
    ) {
        let (loads_ns, computes_ns): (Vec<u64>, Vec<u64>) = stages.into_iter().unzip();
        let wake = Wake { global_load_ns, loads_ns: &loads_ns, computes_ns: &computes_ns };
        // The global weights as a stage of their own, which takes no time.
        let loads: Vec<u64> = [global_load_ns].into_iter().chain(loads_ns.iter().copied()).collect();
        let computes: Vec<u64> = [0].into_iter().chain(computes_ns.iter().copied()).collect();
        prop_assert_eq!(wake.ttft_ns(), layer_by_layer_ns(&loads, &computes));
    }

    #[test]
    fn the_last_layers_wake_as_the_closed_form_of_like_layers_says(
        (layers, missing) in (1_u16..60).prop_flat_map(|n| (Just(n), 0..=n)),
        transfer_ns in 1_u64..90,
        compute_ns in 1_u64..30,
        global_load_ns in 0_u64..200,
    ) {
        let slabs = vec![1; layers.into()];
        let absent = leaving(&lendable(&slabs, layers, 0), missing);
        let loads_ns: Vec<u64> =
            (0..layers).map(|layer| if absent.contains(&layer) { transfer_ns } else { 0 }).collect();
        let computes_ns = vec![compute_ns; layers.into()];
        let wake = Wake { global_load_ns, loads_ns: &loads_ns, computes_ns: &computes_ns };
        let alike = Waking { layers, present: layers - missing, transfer_ns, compute_ns };
        prop_assert_eq!(wake.ttft_ns(), global_load_ns + alike.ttft_ns());
        prop_assert_eq!(global_load_ns == 0 && alike.hidden(), wake.added_ns() == 0);
    }

    #[test]
    fn lent_layers_cover_the_need_or_are_all_that_may_leave(
        slabs in proptest::collection::vec(1_u32..20, 1..30),
        cap in 0_u16..32,
        absent in 0_u16..30,
        need in 0_u32..300,
    ) {
        let layers = slabs.len() as u16;
        let lendable = lendable(&slabs, cap, absent.min(layers));
        let count = lend_layers(&lendable, need);
        let covered = lent_chunks(&lendable, count);
        let most = cap.min(layers - 1).saturating_sub(lendable.absent);
        prop_assert!(count <= most);
        prop_assert!(covered >= u64::from(need) || count == most);
        prop_assert!(count == 0 || lent_chunks(&lendable, count - 1) < u64::from(need), "one less does");
    }
}
