//! Tests the integer average.

use proptest::prelude::*;
use sluice_policy::ewma::Ewma;

#[test]
fn ewma_starts_with_first_sample() {
    let mut average = Ewma::default();
    assert_eq!(average.value(), None);
    average.observe(1_234_567);
    assert_eq!(average.value(), Some(1_234_567));
}

#[test]
fn a_halved_bandwidth_is_followed_to_within_a_percent_in_35_samples() {
    let mut average = Ewma::new(125);
    average.observe(1_000_000);
    let steps = (1..).find(|_| {
        average.observe(500_000);
        average.value().is_some_and(|value| value < 505_000)
    });
    assert_eq!(steps, Some(35), "ln(100) / -ln(1 - 1/8), rounded up");
}

#[test]
fn small_values_keep_their_fraction() {
    let mut average = Ewma::new(1);
    average.observe(0);
    let samples = (1..2_000).find(|_| {
        average.observe(1);
        average.value() == Some(1)
    });
    assert_eq!(samples, Some(693), "ln(2) / -ln(1 - 1/1000), rounded up");
}

#[test]
fn the_largest_sample_does_not_overflow() {
    let mut average = Ewma::default();
    for _ in 0..100 {
        average.observe(u64::MAX);
    }
    assert_eq!(average.value(), Some(u64::MAX));
}

#[test]
#[should_panic(expected = "a weight is 1 to 1000 permille")]
fn a_weight_above_one_is_refused() {
    let _ = Ewma::new(1001);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn ewma_is_within_one_of_floating_point(samples in prop::collection::vec(0..1_u64 << 40, 1..200), weight in 1..=1000_u32) {
        let (mut average, share) = (Ewma::new(weight), f64::from(weight) / 1000.0);
        let mut float = samples[0] as f64;
        for sample in &samples {
            average.observe(*sample);
            float = float * (1.0 - share) + *sample as f64 * share;
        }
        prop_assert!((average.value().unwrap() as f64 - float).abs() <= 1.0);
    }
}
