//! The golden table of remapping: the largest number of layers that can be freed without a stall, by simulation (step
//! model and tick simulator) and by closed form, and further individual values.

use sluice_policy::closed_form::Alike;
use sluice_policy::remap::uniform;
use sluice_policy::step_model::{Layout, SlotRule, Times, stall_under_ns};

use super::{oneiros, ticks};

/// Ticks of T_c, so that r is in tenths.
const T_C: u64 = 10;

fn alike(n: u16, r_tenths: u64) -> Alike {
    Alike { layers: n, compute_ns: T_C, transfer_ns: r_tenths }
}

/// Returns the stall per token by the step model, in tenths of T_c.
fn stall(n: u16, r_tenths: u64, alpha: u16, beta: u8) -> u64 {
    let (compute, transfer) = (vec![T_C; n.into()], vec![r_tenths; n.into()]);
    let times = Times { compute_ns: &compute, transfer_ns: &transfer };
    let layout = match alpha {
        0 => Layout::resident(),
        _ => Layout { moving: uniform(n, alpha + u16::from(beta)), beta },
    };
    stall_under_ns(&times, &layout, SlotRule::Alternating)
}

/// Returns the stall per token by the tick simulator, in tenths of T_c.
fn ticked(n: u16, r_tenths: u64, alpha: u16, beta: u8) -> u64 {
    let moving: Vec<u16> = uniform(n, alpha + u16::from(beta)).iter().map(|layer| layer.0).collect();
    let (compute, transfer) = (vec![T_C; n.into()], vec![r_tenths; n.into()]);
    let case = ticks::Case {
        compute: &compute,
        transfer: &transfer,
        moving: &moving,
        beta: beta.into(),
        alternating: true,
    };
    let (ticks, tokens) = ticks::stall(&case);
    assert_eq!(ticks % tokens, 0);
    ticks / tokens
}

/// Returns the largest stall-free alpha by trying all of them, including the whole model.
fn largest(n: u16, r_tenths: u64, beta: u8) -> u16 {
    (0..=n - u16::from(beta)).rev().find(|&a| stall(n, r_tenths, a, beta) == 0).expect("0 never stalls")
}

const RS: [u64; 9] = [10, 20, 30, 40, 50, 60, 80, 120, 160];
const TABLE: [(u16, [(u16, u16); 9]); 6] = [
    (24, [(11, 22), (7, 10), (5, 6), (3, 4), (3, 2), (2, 2), (1, 1), (0, 0), (0, 0)]),
    (32, [(15, 30), (9, 14), (7, 8), (5, 6), (4, 4), (3, 3), (2, 2), (1, 0), (0, 0)]),
    (40, [(19, 38), (12, 18), (9, 11), (7, 8), (5, 6), (4, 4), (3, 3), (2, 1), (1, 0)]),
    (48, [(23, 46), (15, 22), (11, 14), (8, 10), (7, 7), (5, 6), (4, 4), (2, 2), (1, 1)]),
    (64, [(31, 62), (20, 30), (15, 19), (11, 14), (9, 10), (8, 8), (6, 6), (3, 3), (2, 2)]),
    (80, [(39, 78), (25, 38), (19, 24), (15, 18), (12, 14), (10, 11), (7, 8), (5, 4), (3, 3)]),
];

/// (n, r in tenths, one slot, two alternating slots).
const MORE: [(u16, u64, u16, u16); 15] = [
    (32, 35, 5, 7),
    (40, 35, 7, 9),
    (80, 35, 15, 20),
    (32, 75, 2, 2),
    (40, 75, 3, 3),
    (80, 75, 7, 8),
    (32, 100, 1, 1),
    (40, 100, 2, 2),
    (80, 100, 6, 6),
    (32, 200, 0, 0),
    (40, 200, 0, 0),
    (80, 200, 2, 2),
    (80, 350, 1, 0),
    (40, 350, 0, 0),
    (32, 350, 0, 0),
];

fn every_row() -> impl Iterator<Item = (u16, u64, u16, u16)> {
    let table =
        TABLE.iter().flat_map(|(n, row)| RS.iter().zip(row).map(|(r, cell)| (*n, *r, cell.0, cell.1)));
    let seventy = [24, 32, 40, 48, 64, 80].map(|n| (n, 700, 0, 0));
    table.chain(MORE).chain(seventy)
}

#[test]
fn the_step_model_frees_as_many_layers_as_the_table_says() {
    for (n, r, one, two) in every_row() {
        assert_eq!((largest(n, r, 1), largest(n, r, 2)), (one, two), "n = {n}, r = {r}/10");
    }
}

#[test]
fn the_tick_simulator_agrees_at_the_edge_of_every_cell() {
    for (n, r, one, two) in every_row() {
        for (alpha, beta) in [(one, 1), (two, 2)] {
            let edge = format!("n = {n}, r = {r}/10, alpha = {alpha}, beta = {beta}");
            assert!(alpha == 0 || ticked(n, r, alpha, beta) == 0, "{edge} stalls");
            assert!(
                alpha + 1 + u16::from(beta) > n || ticked(n, r, alpha + 1, beta) > 0,
                "{edge}: one more is free"
            );
        }
    }
}

#[test]
fn closed_forms_give_the_table_with_at_least_one_layer_resident() {
    for (n, r, one, two) in every_row() {
        let two = two.min(n - 3); // never a whole model: m = alpha + 2 <= n - 1
        let model = alike(n, r);
        assert_eq!(
            (model.one_slot_largest_alpha(), model.two_slots_largest_alpha()),
            (one, two),
            "n = {n}, r = {r}/10"
        );
    }
}

#[test]
fn two_slots_at_r_1_free_one_less_when_a_whole_model_never_moves() {
    let most: Vec<u16> = TABLE.iter().map(|(n, _)| alike(*n, 10).two_slots_largest_alpha()).collect();
    assert_eq!(most, [21, 29, 37, 45, 61, 77]);
}

#[test]
fn at_the_papers_r_3_and_40_layers_eq_4_gives_9_and_eq_5_gives_11() {
    let model = alike(40, 30);
    let largest = [oneiros::eq4_holds, oneiros::eq5_holds].map(|holds| oneiros::largest(model, holds));
    assert_eq!(largest, [9, 11]);
    assert_eq!([model.one_slot_largest_alpha(), model.two_slots_largest_alpha()], [9, 11]);
}

#[test]
fn eq_4_is_one_too_high_at_exactly_three_cells() {
    let by_eq4 = |n, r| oneiros::largest(alike(n, r), oneiros::eq4_holds);
    let differing = every_row().filter(|&(n, r, one, _)| by_eq4(n, r) != one);
    let differing: Vec<_> = differing.map(|(n, r, one, _)| (n, r, by_eq4(n, r) - one)).collect();
    assert_eq!(differing, [(32, 35, 1), (80, 35, 1), (80, 75, 1)]);
}

#[test]
fn the_continuous_rule_errs_at_32_layers_alpha_4_r_5_3() {
    // r < alpha + 1 is false, so the rule chooses one slot, which stalls 0.9 T_c; two slots do not stall.
    assert_eq!((stall(32, 53, 4, 1), stall(32, 53, 4, 2)), (9, 0));
    assert_eq!((ticked(32, 53, 4, 1), ticked(32, 53, 4, 2)), (9, 0));
    assert_eq!(alike(32, 53).one_slot_ns(4), 9);
}

#[test]
fn at_40_layers_and_r_7_5_three_layers_are_free_and_the_fourth_costs_six_percent() {
    assert_eq!(stall(40, 75, 3, 1), 0);
    assert_eq!(stall(40, 75, 4, 1), 25);
    assert!(stall(40, 75, 4, 2) > 25);
    assert_eq!(25 * 1000 / (40 * T_C), 62, "permille of a token");
}

#[test]
fn link_condition_alone_accepts_stalling_layers() {
    let model = alike(40, 75);
    assert!(oneiros::link_keeps_up(model, 5));
    assert_eq!(model.one_slot_ns(4), 25);
    assert_eq!(stall(40, 75, 4, 1), 25);
}

#[test]
fn at_r_70_nothing_is_freed_below_142_layers() {
    for n in 3..142 {
        assert_eq!((largest(n, 700, 1), largest(n, 700, 2)), (0, 0), "n = {n}");
        assert_eq!((alike(n, 700).one_slot_largest_alpha(), alike(n, 700).two_slots_largest_alpha()), (0, 0));
    }
    assert_eq!((largest(142, 700, 1), alike(142, 700).one_slot_largest_alpha()), (1, 1));
}

#[test]
fn at_r_70_one_freed_layer_of_forty_makes_a_token_3_6_times_as_long() {
    let token = 40 * T_C + stall(40, 700, 1, 1);
    assert_eq!(token, 1420);
    assert_eq!((token * 10 + 20 * T_C) / (40 * T_C), 36, "tenths, rounded");
}
