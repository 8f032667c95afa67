//! Tests the closed form of one slot against its continuous bound.

use sluice_policy::closed_form::Alike;

use super::oneiros::one_slot_at_least_ns;

#[test]
fn one_slot_deviates_from_its_bound_by_at_most_r_m_minus_r_over_m_and_by_nothing_for_whole_r() {
    for (n, r) in [24_u16, 32, 40, 80].into_iter().flat_map(|n| (1..=12_000).step_by(7).map(move |r| (n, r)))
    {
        let model = Alike { layers: n, compute_ns: 1000, transfer_ns: r };
        for m in 2..=n {
            let added = model.one_slot_ns(m - 1) - one_slot_at_least_ns(model, m - 1);
            let rest = u64::from(n % m);
            assert!(added * u64::from(m) <= rest * (u64::from(m) - rest) * 1000, "n = {n}, r = {r}, m = {m}");
        }
    }
    for (n, r, m) in [(40, 1000, 7), (40, 3000, 9), (32, 5000, 6), (80, 12_000, 6)] {
        let model = Alike { layers: n, compute_ns: 1000, transfer_ns: r };
        assert_eq!(model.one_slot_ns(m - 1), one_slot_at_least_ns(model, m - 1));
    }
}

#[test]
fn at_40_layers_the_deviation_is_6_9_near_r_0_then_2_7_from_r_2_and_0_7_from_r_7() {
    let worst = |from_r: u64| {
        let added = |r: u64| {
            let model = Alike { layers: 40, compute_ns: 1000, transfer_ns: r };
            (1..40).map(move |alpha| model.one_slot_ns(alpha) - one_slot_at_least_ns(model, alpha)).max()
        };
        (from_r..40_000).filter_map(added).max().expect("there are layouts")
    };
    assert_eq!([worst(1), worst(2000), worst(7000)].map(|ns| (ns + 50) / 100), [69, 27, 7], "tenths of T_c");
}
