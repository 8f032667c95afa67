//! Tests the choice of moving layers, their number and their slots.

use proptest::prelude::*;
use sluice_policy::ids::LayerId;
use sluice_policy::reason::Reason;
use sluice_policy::remap::{Choice, Question, choose_layout, nested, uniform, uniform_widened};
use sluice_policy::step_model::{Layout, Times, stall_per_token_ns};

fn positions(moving: &[LayerId]) -> Vec<u16> {
    moving.iter().map(|layer| layer.0).collect()
}

fn ids(moving: &[u16]) -> Vec<LayerId> {
    moving.iter().map(|layer| LayerId(*layer)).collect()
}

/// Returns the gaps on the circle.
fn gaps(layers: u16, moving: &[LayerId]) -> Vec<u16> {
    let at = positions(moving);
    (0..at.len()).map(|i| if i + 1 < at.len() { at[i + 1] - at[i] } else { layers - at[i] + at[0] }).collect()
}

/// Returns the choice for identical layers of compute 10, starting from an all-resident model, without an allowance.
fn plain(n: u16, r_tenths: u64, wanted_alpha: u16) -> Choice {
    with_allowance(n, r_tenths, wanted_alpha, 0)
}

fn with_allowance(n: u16, r_tenths: u64, wanted_alpha: u16, allowance_ns: u64) -> Choice {
    let (compute, transfer) = (vec![10; n.into()], vec![r_tenths; n.into()]);
    let times = Times { compute_ns: &compute, transfer_ns: &transfer };
    let current = Layout::resident();
    let question = Question {
        times: &times,
        current: &current,
        wanted_alpha,
        cap_m: n,
        allowance_ns,
        horizon_tokens: 64,
    };
    choose_layout(&question)
}

#[test]
fn two_of_eight_are_layers_0_and_4() {
    assert_eq!(positions(&uniform(8, 2)), [0, 4]);
    assert_eq!(positions(&plain(8, 20, 1).layout.moving), [0, 4]);
}

#[test]
fn uniform_gaps_differ_by_at_most_one_and_the_last_is_a_large_one() {
    for n in 1..=48 {
        for m in 1..=n {
            let gaps = gaps(n, &uniform(n, m));
            let (least, most) = (gaps.iter().min().unwrap(), gaps.iter().max().unwrap());
            assert_eq!((gaps.len(), gaps.iter().sum::<u16>()), (m.into(), n));
            assert!(most - least <= 1 && gaps.last() == Some(most), "n = {n}, m = {m}: {gaps:?}");
        }
    }
}

#[test]
fn a_widened_set_adds_its_layers_to_the_gap_over_the_end() {
    assert_eq!(gaps(40, &uniform_widened(40, 13, 1)), [3; 12].into_iter().chain([4]).collect::<Vec<_>>());
    assert_eq!(gaps(41, &uniform_widened(41, 13, 2)), [3; 12].into_iter().chain([5]).collect::<Vec<_>>());
}

#[test]
fn nested_sets_grow_into_the_largest_gap_and_shrink_back_evenly() {
    assert_eq!(positions(&nested(8, &ids(&[0, 4]), 3)), [0, 2, 4]);
    assert_eq!(positions(&nested(8, &ids(&[0, 4]), 4)), [0, 2, 4, 6]);
    assert_eq!(positions(&nested(8, &ids(&[0, 1, 4]), 2)).len(), 2);
    assert_eq!(positions(&nested(9, &ids(&[0, 1, 5]), 2)), [1, 5]);
    assert_eq!(positions(&nested(5, &[], 5)), [0, 1, 2, 3, 4]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_nested_set_contains_the_current_one_or_is_contained_in_it(n in 2..60_u16, members in prop::collection::vec(any::<bool>(), 60), m in 0..60_u16) {
        let current: Vec<LayerId> = (0..n).filter(|l| members[usize::from(*l)]).map(LayerId).collect();
        let m = m.min(n);
        let set = nested(n, &current, m);
        prop_assert!(set.is_sorted_by(|a, b| a < b) && set.len() == usize::from(m));
        let (small, large) = if set.len() < current.len() { (&set, &current) } else { (&current, &set) };
        prop_assert!(small.iter().all(|layer| large.contains(layer)));
    }

    #[test]
    fn choice_is_valid_and_not_worse_than_fixed_slots(case in cases()) {
        let times = Times { compute_ns: &case.compute, transfer_ns: &case.transfer };
        let question = case.question(&times);
        let choice = choose_layout(&question);
        let m = choice.layout.moving.len() as u16;
        prop_assert!(choice.stall_ns <= case.allowance && m <= case.cap && m < case.layers());
        prop_assert_eq!(choice.stall_ns, stall_per_token_ns(&times, &choice.layout));
        prop_assert_eq!(choice.transition_ns, case.transition(&choice.layout));
        prop_assert_eq!(choice.declined.is_some(), choice.layout.alpha() < case.wanted);
        for beta in [1, 2] {
            if let Some(cost) = case.fixed_cost(choice.layout.alpha(), beta) {
                prop_assert!(choice.cost_ns(case.horizon) <= cost, "{choice:?} beta {beta} costs {cost}");
            }
        }
    }

    #[test]
    fn uniform_set_has_nearest_allowed_alpha(case in cases()) {
        let times = Times { compute_ns: &case.compute, transfer_ns: &case.transfer };
        let chosen = choose_layout(&case.question(&times)).layout.alpha();
        let nearer = if chosen >= case.wanted { case.wanted..chosen } else { chosen + 1..case.layers() };
        for alpha in nearer.filter(|alpha| *alpha > 0) {
            prop_assert!([1, 2].iter().all(|beta| case.fixed_cost(alpha, *beta).is_none()), "alpha = {alpha}");
        }
    }
}

#[derive(Clone, Debug)]
struct Case {
    compute: Vec<u64>,
    transfer: Vec<u64>,
    current: Layout,
    wanted: u16,
    cap: u16,
    allowance: u64,
    horizon: u64,
}

impl Case {
    fn layers(&self) -> u16 {
        self.compute.len() as u16
    }

    fn question<'a>(&'a self, times: &'a Times<'a>) -> Question<'a> {
        Question {
            times,
            current: &self.current,
            wanted_alpha: self.wanted,
            cap_m: self.cap,
            allowance_ns: self.allowance,
            horizon_tokens: self.horizon,
        }
    }

    fn transition(&self, to: &Layout) -> u64 {
        let back = self.current.moving.iter().filter(|layer| !to.moving.contains(layer));
        back.map(|layer| self.transfer[layer.index()]).sum()
    }

    /// Returns the cost of always taking alpha + beta uniform layers over the horizon, if that is allowed.
    fn fixed_cost(&self, alpha: u16, beta: u8) -> Option<u128> {
        let m = alpha + u16::from(beta);
        if alpha == 0 || m > self.cap || m >= self.layers() {
            return None;
        }
        let layout = Layout { moving: uniform(self.layers(), m), beta };
        let stall =
            stall_per_token_ns(&Times { compute_ns: &self.compute, transfer_ns: &self.transfer }, &layout);
        let cost = u128::from(stall) * u128::from(self.horizon) + u128::from(self.transition(&layout));
        (stall <= self.allowance).then_some(cost)
    }
}

/// Models of equal or unequal layers, from any uniform or irregular current layout.
fn cases() -> impl Strategy<Value = Case> {
    let times = prop::collection::vec((1..30_u64, 1..120_u64), 3..40);
    let current = (0..8_u16, 1..=2_u8, prop::collection::vec(any::<bool>(), 40), any::<bool>());
    let asked = (0..20_u16, 0..40_u16, prop_oneof![Just(0), 0..200_u64, Just(u64::MAX)], 1..200_u64);
    (times, any::<bool>(), current, asked).prop_map(|(times, equal, current, asked)| {
        let pick = |i: usize| if equal { times[0] } else { times[i] };
        let n = times.len() as u16;
        Case {
            compute: (0..times.len()).map(|i| pick(i).0).collect(),
            transfer: (0..times.len()).map(|i| pick(i).1).collect(),
            current: current_layout(n, &current),
            wanted: asked.0,
            cap: asked.1,
            allowance: asked.2,
            horizon: asked.3,
        }
    })
}

fn current_layout(n: u16, (alpha, beta, members, ragged): &(u16, u8, Vec<bool>, bool)) -> Layout {
    let m = alpha + u16::from(*beta);
    let moving = match ragged {
        true => (0..n).filter(|layer| members[usize::from(*layer)]).map(LayerId).collect(),
        false => uniform(n, m.min(n)),
    };
    if moving.len() <= usize::from(*beta) { Layout::resident() } else { Layout { moving, beta: *beta } }
}

#[test]
fn at_32_layers_alpha_4_r_5_3_two_slots_are_chosen() {
    let choice = plain(32, 53, 4);
    assert_eq!((choice.layout.beta, choice.layout.alpha(), choice.stall_ns), (2, 4, 0));
}

#[test]
fn one_slot_is_taken_on_a_tie() {
    let choice = plain(40, 75, 3);
    assert_eq!(
        (choice.layout.beta, choice.layout.alpha(), choice.stall_ns, choice.declined),
        (1, 3, 0, None)
    );
    // The same if both stall: with r = alpha + 1, three layers in one slot and four in two cost 3 T_c each.
    let (compute, transfer) = ([10; 9], [30; 9]);
    let times = Times { compute_ns: &compute, transfer_ns: &transfer };
    assert_eq!(stall_per_token_ns(&times, &Layout { moving: uniform(9, 4), beta: 2 }), 30);
    let choice = with_allowance(9, 30, 2, 30);
    assert_eq!((choice.layout.beta, choice.layout.alpha(), choice.stall_ns), (1, 2, 30));
}

#[test]
fn at_r_70_an_active_model_is_not_remapped_below_142_layers() {
    for n in 3..142 {
        let choice = plain(n, 700, 1);
        assert_eq!(
            (choice.layout, choice.declined),
            (Layout::resident(), Some(Reason::DeclinedStall)),
            "n = {n}"
        );
    }
    let choice = plain(142, 700, 1);
    assert_eq!(
        (positions(&choice.layout.moving), choice.layout.beta, choice.declined),
        (vec![0, 71], 1, None)
    );
}

#[test]
fn excess_demand_gets_free_memory_only() {
    let choice = plain(40, 75, 12);
    assert_eq!(
        (choice.layout.alpha(), choice.stall_ns, choice.declined),
        (3, 0, Some(Reason::DeclinedStall))
    );
}

#[test]
fn tenth_of_token_allows_fourth_layer_at_r_7_5() {
    let choice = with_allowance(40, 75, 4, 40);
    assert_eq!(
        (choice.layout.alpha(), choice.layout.beta, choice.stall_ns, choice.declined),
        (4, 1, 25, None)
    );
}

#[test]
fn an_odd_number_of_layers_in_two_slots_gets_a_wider_gap_over_the_end() {
    // alpha = 9: one slot stalls, the uniform set of 11 stalls at the end of the token, 11 with a wider end gap do not.
    let (compute, transfer) = ([10; 40], [35; 40]);
    let times = Times { compute_ns: &compute, transfer_ns: &transfer };
    assert!(stall_per_token_ns(&times, &Layout { moving: uniform(40, 10), beta: 1 }) > 0);
    assert!(stall_per_token_ns(&times, &Layout { moving: uniform(40, 11), beta: 2 }) > 0);
    let choice = plain(40, 35, 9);
    assert_eq!(
        (choice.layout.beta, choice.layout.alpha(), choice.stall_ns, choice.declined),
        (2, 9, 0, None)
    );
    assert!(gaps(40, &choice.layout.moving).last() > gaps(40, &choice.layout.moving).first());
}

#[test]
fn the_cap_is_kept_and_named() {
    let (compute, transfer) = ([10; 40], [1; 40]);
    let times = Times { compute_ns: &compute, transfer_ns: &transfer };
    let current = Layout::resident();
    let ask = |wanted_alpha, cap_m| {
        choose_layout(&Question {
            times: &times,
            current: &current,
            wanted_alpha,
            cap_m,
            allowance_ns: 0,
            horizon_tokens: 1,
        })
    };
    assert_eq!((ask(8, 9).layout.alpha(), ask(8, 9).declined), (8, None));
    assert_eq!((ask(9, 9).layout.alpha(), ask(9, 9).declined), (8, Some(Reason::DeclinedCap)));
    assert_eq!((ask(1, 1).layout.alpha(), ask(1, 1).declined), (0, Some(Reason::DeclinedCap)));
    assert_eq!((ask(1, 0).layout.alpha(), ask(1, 0).declined), (0, Some(Reason::DeclinedCap)));
}

#[test]
fn a_whole_model_never_moves() {
    for n in 1..20 {
        let choice = with_allowance(n, 1, n, u64::MAX);
        assert_eq!(choice.layout.moving.len(), if n < 3 { 0 } else { usize::from(n) - 1 }, "n = {n}");
        assert_eq!(choice.declined, Some(Reason::DeclinedCap));
    }
}

#[test]
fn no_demand_is_all_resident() {
    let (compute, transfer) = ([10; 8], [20; 8]);
    let times = Times { compute_ns: &compute, transfer_ns: &transfer };
    let current = Layout { moving: ids(&[0, 4]), beta: 1 };
    let question = Question {
        times: &times,
        current: &current,
        wanted_alpha: 0,
        cap_m: 8,
        allowance_ns: 0,
        horizon_tokens: 1,
    };
    let expected = Choice { layout: Layout::resident(), stall_ns: 0, transition_ns: 40, declined: None };
    assert_eq!(choose_layout(&question), expected);
}

#[test]
fn growth_keeps_moving_layers_unless_new_set_is_cheaper() {
    // From 3 of 12 (0 4 8) to 4: the nested set 0 2 4 8 stalls in its short gaps; the uniform set 0 3 6 9 loads 4 and 8
    // once.
    let (compute, transfer) = ([10; 12], [20; 12]);
    let times = Times { compute_ns: &compute, transfer_ns: &transfer };
    let current = Layout { moving: ids(&[0, 4, 8]), beta: 1 };
    let after = |horizon_tokens| {
        let question = Question {
            times: &times,
            current: &current,
            wanted_alpha: 3,
            cap_m: 4,
            allowance_ns: 1000,
            horizon_tokens,
        };
        choose_layout(&question)
    };
    let (soon, late) = (after(1), after(1000));
    assert_eq!(soon.transition_ns, 0);
    assert!(current.moving.iter().all(|layer| soon.layout.moving.contains(layer)));
    assert_eq!(
        (positions(&late.layout.moving), late.stall_ns, late.transition_ns),
        (vec![0, 3, 6, 9], 0, 40)
    );
}

/// Returns the least stall over every set of m layers.
fn exhaustive(times: &Times<'_>, m: u16, beta: u8) -> u64 {
    let n = times.layers();
    let sets = (0..1_u32 << n).filter(|bits| bits.count_ones() == u32::from(m));
    let layouts = sets
        .map(|bits| Layout { moving: (0..n).filter(|l| bits >> l & 1 == 1).map(LayerId).collect(), beta });
    layouts.map(|layout| stall_per_token_ns(times, &layout)).min().expect("there are sets")
}

#[test]
fn for_equal_layers_the_choice_is_the_best_of_all_sets() {
    for n in 3..=10_u16 {
        for r in [2, 7, 10, 13, 15, 20, 25, 30, 35, 53, 75, 90] {
            let (compute, transfer) = (vec![10; n.into()], vec![r; n.into()]);
            let times = Times { compute_ns: &compute, transfer_ns: &transfer };
            for alpha in 1..n - 1 {
                let choice = with_allowance(n, r, alpha, u64::MAX);
                let one = exhaustive(&times, alpha + 1, 1);
                let two = if alpha + 2 < n { exhaustive(&times, alpha + 2, 2) } else { u64::MAX };
                assert_eq!(choice.stall_ns, one.min(two), "n = {n}, r = {r}/10, alpha = {alpha}: {choice:?}");
            }
        }
    }
}
