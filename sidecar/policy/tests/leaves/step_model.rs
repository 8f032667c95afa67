//! Tests the step model against the tick simulator and its closed forms, and at constant addresses.

use proptest::prelude::*;
use sluice_policy::closed_form::Alike;
use sluice_policy::ids::{LayerId, SlotId};
use sluice_policy::remap::{uniform, uniform_widened};
use sluice_policy::step_model::{Layout, MAX_LAYER_NS, SlotRule, Times, stall_per_token_ns, stall_under_ns};

use super::oneiros::{one_slot_at_least_ns, one_slot_unlike_ns};
use super::ticks;

fn ids(moving: &[u16]) -> Vec<LayerId> {
    moving.iter().map(|layer| LayerId(*layer)).collect()
}

/// Checks that both simulators return the same stall per token.
fn agree(compute: &[u64], transfer: &[u64], moving: &[u16], beta: u8, rule: SlotRule) {
    let alternating = rule == SlotRule::Alternating;
    let (ticks, tokens) =
        ticks::stall(&ticks::Case { compute, transfer, moving, beta: beta.into(), alternating });
    let layout = Layout { moving: ids(moving), beta };
    let stall_ns = stall_under_ns(&Times { compute_ns: compute, transfer_ns: transfer }, &layout, rule);
    assert_eq!(
        stall_ns * tokens,
        ticks,
        "step model {stall_ns}, ticks {ticks}/{tokens}: {compute:?} {transfer:?} {moving:?} beta {beta} {rule:?}"
    );
}

#[test]
fn every_uniform_layout_of_small_models_agrees_with_the_tick_simulator() {
    for n in 2..=12_u16 {
        for (c, t) in [(1, 1), (1, 2), (2, 1), (2, 3), (2, 7), (3, 10), (1, 9)] {
            for (beta, m) in [(1, 2..=n), (2, 3..=n)].into_iter().flat_map(|(b, ms)| ms.map(move |m| (b, m)))
            {
                let moving: Vec<u16> = uniform(n, m).iter().map(|layer| layer.0).collect();
                for rule in [SlotRule::Constant, SlotRule::Alternating] {
                    agree(&vec![c; n.into()], &vec![t; n.into()], &moving, beta, rule);
                }
            }
        }
    }
}

/// Compute and transfer of each layer, and whether it moves.
fn layers() -> impl Strategy<Value = Vec<(u64, u64, bool)>> {
    prop::collection::vec((1..9_u64, 1..40_u64, any::<bool>()), 4..14)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn unlike_layers_anywhere_agree_with_the_tick_simulator(layers in layers(), beta in 1..=2_u8, alternating: bool) {
        let moving: Vec<u16> = (0..layers.len() as u16).filter(|l| layers[usize::from(*l)].2).collect();
        prop_assume!(moving.len() > usize::from(beta));
        let compute: Vec<u64> = layers.iter().map(|l| l.0).collect();
        let transfer: Vec<u64> = layers.iter().map(|l| l.1).collect();
        let rule = if alternating { SlotRule::Alternating } else { SlotRule::Constant };
        agree(&compute, &transfer, &moving, beta, rule);
    }

    #[test]
    fn one_slot_is_the_sum_over_its_gaps(layers in layers()) {
        let moving: Vec<usize> = (0..layers.len()).filter(|l| layers[*l].2).collect();
        prop_assume!(moving.len() > 1);
        let gaps: Vec<(u64, u64)> = (0..moving.len()).map(|i| {
            let (before, here) = (moving[(i + moving.len() - 1) % moving.len()], moving[i]);
            let distance = (here + layers.len() - before - 1) % layers.len();
            (layers[here].1, (1..=distance).map(|d| layers[(before + d) % layers.len()].0).sum())
        }).collect();
        let compute: Vec<u64> = layers.iter().map(|l| l.0).collect();
        let transfer: Vec<u64> = layers.iter().map(|l| l.1).collect();
        let layout = Layout { moving: moving.iter().map(|l| LayerId(*l as u16)).collect(), beta: 1 };
        let times = Times { compute_ns: &compute, transfer_ns: &transfer };
        prop_assert_eq!(stall_per_token_ns(&times, &layout), one_slot_unlike_ns(&gaps));
    }
}

#[test]
fn the_continuous_forms_bound_the_step_model_from_below_and_the_integer_form_is_exact() {
    for n in [5, 12, 24, 32, 40] {
        for (c, t) in [(10, 3), (10, 10), (10, 15), (10, 53), (10, 75), (10, 700)] {
            let model = Alike { layers: n, compute_ns: c, transfer_ns: t };
            for alpha in 1..=n - 2 {
                let one = uniform_stall(n, c, t, alpha, 1, SlotRule::Constant);
                assert_eq!(one, model.one_slot_ns(alpha), "n = {n}, r = {t}/{c}, alpha = {alpha}");
                assert!(one >= one_slot_at_least_ns(model, alpha));
                let two = uniform_stall(n, c, t, alpha, 2, SlotRule::Constant);
                assert!(two >= model.two_slots_at_least_ns(alpha));
            }
        }
    }
}

fn uniform_stall(n: u16, c: u64, t: u64, alpha: u16, beta: u8, rule: SlotRule) -> u64 {
    let (compute, transfer) = (vec![c; n.into()], vec![t; n.into()]);
    let layout = Layout { moving: uniform(n, alpha + u16::from(beta)), beta };
    stall_under_ns(&Times { compute_ns: &compute, transfer_ns: &transfer }, &layout, rule)
}

/// n, r in tenths, and m with n / m >= 2.
fn grid() -> impl Iterator<Item = (u16, u64, u16)> {
    let rs = (1..120).chain([160, 200, 350, 700]);
    rs.flat_map(|r| {
        [24, 32, 40, 48, 64, 80].into_iter().flat_map(move |n| (3..=n / 2).map(move |m| (n, r, m)))
    })
}

#[test]
fn two_alternating_slots_follow_their_closed_form_exactly() {
    for (n, r, m) in grid() {
        let model = Alike { layers: n, compute_ns: 10, transfer_ns: r };
        let stall = uniform_stall(n, 10, r, m - 2, 2, SlotRule::Alternating);
        assert_eq!(stall, model.two_slots_at_least_ns(m - 2), "n = {n}, r = {r}/10, m = {m}");
    }
}

#[test]
fn two_constant_slots_are_exact_for_even_m_and_add_at_most_1_9_for_odd_m() {
    let mut worst = 0;
    for (n, r, m) in grid() {
        let model = Alike { layers: n, compute_ns: 10, transfer_ns: r };
        let closed = model.two_slots_at_least_ns(m - 2);
        let added = uniform_stall(n, 10, r, m - 2, 2, SlotRule::Constant) - closed;
        assert!(added == 0 || m % 2 == 1, "n = {n}, r = {r}/10, m = {m} adds {added}");
        worst = worst.max(added);
    }
    assert_eq!(worst, 18, "r in tenths");
    // The maximum over all r in thousandths and all n up to 80: 27 of 80 layers at r = 2.96.
    let model = Alike { layers: 80, compute_ns: 1000, transfer_ns: 2960 };
    let stall = uniform_stall(80, 1000, 2960, 25, 2, SlotRule::Constant);
    assert_eq!(stall - model.two_slots_at_least_ns(25), 1920);
}

#[test]
fn a_gap_wider_by_at_most_two_at_the_tokens_end_frees_odd_m_of_stalls_from_a_slack_of_1_5() {
    // Slack = n - m r. With at least 1.5 T_c none stalls; between 1 and 1.5 some do, by at most 0.4 T_c.
    let mut worst_below = 0;
    for (n, r, m) in grid().filter(|(_, r, m)| m % 2 == 1 && *r >= 10) {
        let Some(slack) = (u64::from(n) * 10).checked_sub(u64::from(m) * r) else { continue };
        let (compute, transfer) = (vec![10; n.into()], vec![r; n.into()]);
        let times = Times { compute_ns: &compute, transfer_ns: &transfer };
        let stall =
            |extra| stall_per_token_ns(&times, &Layout { moving: uniform_widened(n, m, extra), beta: 2 });
        let least = [0, 1, 2].map(stall).into_iter().min().unwrap();
        assert!(least == 0 || slack < 15, "n = {n}, r = {r}/10, m = {m}: {least}");
        worst_below = worst_below.max(if slack >= 10 { least } else { 0 });
    }
    assert_eq!(worst_below, 4);
}

#[test]
fn the_papers_bad_example_layers_1_and_8_of_8_stalls_where_1_and_5_do_not() {
    let (compute, transfer) = ([10; 8], [30; 8]);
    let times = Times { compute_ns: &compute, transfer_ns: &transfer };
    assert_eq!(stall_per_token_ns(&times, &Layout { moving: ids(&[0, 4]), beta: 1 }), 0);
    assert_eq!(stall_per_token_ns(&times, &Layout { moving: ids(&[0, 7]), beta: 1 }), 30);
}

#[test]
fn clumped_gaps_cost_more_than_interleaved_ones() {
    // 40 layers, 17 moving: gaps of 2 and 3. Compares all short gaps first with interleaved gaps.
    let clumped: Vec<u16> = (0..11).map(|i| 2 * i).chain((0..6).map(|i| 22 + 3 * i)).collect();
    let interleaved: Vec<u16> = uniform(40, 17).iter().map(|layer| layer.0).collect();
    let (compute, transfer) = ([10; 40], [23; 40]);
    let times = Times { compute_ns: &compute, transfer_ns: &transfer };
    let stall = |moving: &[u16]| {
        agree(&compute, &transfer, moving, 2, SlotRule::Constant);
        stall_per_token_ns(&times, &Layout { moving: ids(moving), beta: 2 })
    };
    assert_eq!((stall(&interleaved), stall(&clumped)), (9, 36), "the tick simulator agrees");
}

#[test]
fn a_link_slower_by_one_nanosecond_than_compute_is_exact_at_once() {
    let compute = [1_000_000; 40];
    let mut transfer = [5_000_000; 40];
    let layout = Layout { moving: uniform(40, 8), beta: 2 };
    assert_eq!(stall_per_token_ns(&Times { compute_ns: &compute, transfer_ns: &transfer }, &layout), 0);
    transfer[layout.moving[3].index()] += 1;
    assert_eq!(stall_per_token_ns(&Times { compute_ns: &compute, transfer_ns: &transfer }, &layout), 1);
}

#[test]
fn extreme_measurements_are_bounded() {
    let (compute, transfer) = (vec![u64::MAX; 65_535], vec![u64::MAX; 65_535]);
    let times = Times { compute_ns: &compute, transfer_ns: &transfer };
    let layout = Layout { moving: uniform(65_535, 65_535), beta: 2 };
    // Copies hide behind compute, but for the first layer, which shares its slot with the last one.
    assert_eq!(stall_per_token_ns(&times, &layout), MAX_LAYER_NS);
}

#[test]
fn layout_has_alpha_and_constant_slots() {
    let layout = Layout { moving: ids(&[0, 3, 5, 9]), beta: 2 };
    assert_eq!(layout.alpha(), 2);
    let slots: Vec<_> = [0, 3, 5, 9, 4].iter().map(|l| layout.slot_of(LayerId(*l))).collect();
    assert_eq!(slots, [Some(SlotId(0)), Some(SlotId(1)), Some(SlotId(0)), Some(SlotId(1)), None]);
    assert_eq!(Layout::resident().alpha(), 0);
}

#[test]
#[should_panic(expected = "moving layers are ascending")]
fn unordered_layout_panics() {
    let times = Times { compute_ns: &[1; 4], transfer_ns: &[1; 4] };
    stall_per_token_ns(&times, &Layout { moving: ids(&[2, 1]), beta: 1 });
}

#[test]
#[should_panic(expected = "share fewer slots than they are")]
fn layout_freeing_nothing_panics() {
    let times = Times { compute_ns: &[1; 4], transfer_ns: &[1; 4] };
    stall_per_token_ns(&times, &Layout { moving: ids(&[2]), beta: 1 });
}
