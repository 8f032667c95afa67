//! Tests Pie's worked example and the longest queues without a stall.

use sluice_sim::paper::pie::closed_form::{
    device_slots, expansion_permille, longest_queue, longest_queue_at_layer_starts, settled_queue,
};
use sluice_sim::paper::pie::mapping::Side;

use super::clock::{Clock, Issue, UNIT, settled_stall};

#[test]
fn figure_4_starts_as_in_the_paper() {
    let mut clock = Clock::new(9, 4, 20, Issue::AtLayerStarts);
    let on_host = |clock: &Clock| -> Vec<u16> {
        let entries = (1..).zip(clock.mapping.entries());
        entries.filter(|(_, entry)| entry.resides == Side::Host).map(|(layer, _)| layer).collect()
    };
    assert_eq!(on_host(&clock), [8, 9]);
    clock.token();
    let first = &clock.begun[..3];
    assert_eq!(first, [(1, Side::Host, 2), (3, Side::Host, 4), (8, Side::Device, 4)]);
}

#[test]
fn figure_4_settles_to_a_queue_in_which_a_layer_stays_for_eight_layer_times() {
    let mut clock = Clock::new(9, 4, 20, Issue::AtLayerStarts);
    (0..10).for_each(|_| {
        clock.token();
    });
    clock.begun.clear();
    clock.stays.clear();
    let stall: u64 = (0..10).map(|_| clock.token()).sum();
    assert_eq!(stall, 0);
    assert!(clock.stays.iter().all(|&stay| stay == 8 * UNIT), "{:?}", clock.stays);
    let way = |side: Side| clock.begun.iter().filter(move |(_, to, _)| *to == side).map(|(layer, ..)| *layer);
    let out: Vec<u16> = way(Side::Host).collect();
    let back: Vec<u16> = way(Side::Device).collect();
    let first = back.iter().position(|layer| *layer == out[0]).expect("what went out comes back");
    assert!(back.len() - first > 30);
    assert_eq!(back[first..], out[..back.len() - first], "what went out first comes back first");
    assert_eq!(expansion_permille(9, 4), 1285);
}

/// Three of four tokens wait for the closed form, F r + 1 - n = 2. The fourth waits one layer time longer: 5.5 swaps
/// per token are not an integer, so the queue's phase shifts against the token's.
#[test]
fn a_queue_of_five_stalls_two_layer_times_a_token_and_at_times_three() {
    for issue in [Issue::AtLayerStarts, Issue::AsSoonAsPossible] {
        let mut clock = Clock::new(9, 5, 20, issue);
        (0..8).for_each(|_| {
            clock.token();
        });
        let stalls: Vec<u64> = (0..80).map(|_| clock.token()).collect();
        let of = |layer_times: u64| stalls.iter().filter(|&&stall| stall == layer_times * UNIT).count();
        assert_eq!((of(2), of(3)), (60, 20), "{issue:?}: {stalls:?}");
    }
}

/// (layers, r in tenths, longest queue with swaps as soon as possible, at layer starts).
const LONGEST: [(u16, u64, u16, u16); 6] =
    [(9, 20, 4, 4), (40, 20, 19, 19), (40, 25, 15, 13), (48, 17, 27, 23), (48, 25, 18, 15), (32, 65, 4, 4)];

#[test]
fn closed_forms_give_the_longest_queues() {
    for (layers, r_tenths, soon, starts) in LONGEST {
        assert_eq!(longest_queue(layers, r_tenths * 100), soon, "{layers}, {r_tenths}");
        assert_eq!(longest_queue_at_layer_starts(layers, r_tenths * 100), starts, "{layers}, {r_tenths}");
    }
    assert_eq!(expansion_permille(40, 19), 1739);
    assert_eq!(device_slots(9, 4), 7);
    assert_eq!(device_slots(9, 1), 9, "never more slots than layers");
}

#[test]
fn the_swapping_has_no_stall_at_the_longest_queue_and_one_beyond_it() {
    for (layers, r_tenths, soon, starts) in LONGEST {
        for (queue, issue) in [(soon, Issue::AsSoonAsPossible), (starts, Issue::AtLayerStarts)] {
            let case = format!("{layers} layers, r {r_tenths}/10, {issue:?}, queue {queue}");
            assert_eq!(settled_stall(layers, queue, r_tenths, issue), 0, "{case}");
            assert!(settled_stall(layers, queue + 1, r_tenths, issue) > 0, "{case}: one more");
        }
    }
}

#[test]
fn beyond_a_third_of_the_layers_r_gains_nothing() {
    for layers in 4..100_u16 {
        for r in (1000..40_000).step_by(250) {
            let gains = expansion_permille(layers, longest_queue(layers, r)) > 1000;
            assert_eq!(gains, r * 3 <= u64::from(layers - 1) * 1000, "{layers} layers, r {r}");
        }
    }
}

#[test]
fn the_settled_queue_is_the_longest_that_its_own_expansion_allows() {
    for (layers, r) in [(40, 1500), (40, 2000), (48, 1700), (80, 3000), (32, 6500)] {
        let queue = settled_queue(layers, r);
        let grown = |queue: u16| r * expansion_permille(layers, queue) / 1000;
        assert!(queue <= longest_queue(layers, grown(queue)), "{layers}, {r}: {queue} holds");
        assert!(queue + 1 > longest_queue(layers, grown(queue + 1)), "{layers}, {r}: {queue} is the last");
        assert!(queue < longest_queue(layers, r) || r > 6000, "{layers}, {r}: growth costs something");
    }
}
