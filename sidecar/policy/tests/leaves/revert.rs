//! Tests Dynamic Reversion with hysteresis.

use sluice_policy::revert::{Hysteresis, Pressure};

/// Capacity for 3 layers of 100 after a reserve of 12.5 % of 800.
const ROOMY: Pressure = Pressure { spare_bytes: 400, used_bytes: 800, layer_bytes: 100, alpha: 8 };

fn run(hysteresis: &mut Hysteresis, boundaries: &[Pressure]) -> Vec<u16> {
    boundaries.iter().map(|pressure| hysteresis.observe(pressure)).collect()
}

#[test]
fn layers_are_restored_after_steady_boundaries() {
    assert_eq!(run(&mut Hysteresis::new(4, 125), &[ROOMY; 9]), [0, 0, 0, 3, 0, 0, 0, 3, 0]);
}

#[test]
fn tight_boundary_resets_count() {
    let tight = Pressure { spare_bytes: 199, ..ROOMY };
    let just = Pressure { spare_bytes: 200, ..ROOMY };
    assert_eq!(run(&mut Hysteresis::new(2, 125), &[ROOMY, tight, ROOMY, just]), [0, 0, 0, 1]);
}

#[test]
fn restored_layers_fitted_at_every_steady_boundary() {
    let two = Pressure { spare_bytes: 300, ..ROOMY };
    assert_eq!(
        run(&mut Hysteresis::new(3, 125), &[ROOMY, two, ROOMY, ROOMY, ROOMY, ROOMY]),
        [0, 0, 2, 0, 0, 3]
    );
}

#[test]
fn restored_layers_do_not_exceed_absent() {
    assert_eq!(
        run(&mut Hysteresis::new(1, 0), &[Pressure { alpha: 2, ..ROOMY }, Pressure { alpha: 0, ..ROOMY }]),
        [2, 0]
    );
}

#[test]
fn the_reserve_is_rounded_up() {
    let pressure = Pressure { spare_bytes: 101, used_bytes: 1, layer_bytes: 100, alpha: 1 };
    assert_eq!(Hysteresis::new(1, 125).observe(&pressure), 1);
    assert_eq!(Hysteresis::new(1, 125).observe(&Pressure { spare_bytes: 100, ..pressure }), 0);
}

#[test]
fn fast_load_changes_revert_nothing() {
    let tight = Pressure { spare_bytes: 0, ..ROOMY };
    let mut hysteresis = Hysteresis::new(64, 125);
    let swings = (0..10_000).map(|step| if step % 64 == 63 { tight } else { ROOMY });
    assert_eq!(swings.map(|pressure| hysteresis.observe(&pressure)).max(), Some(0));
}

#[test]
fn shorter_patience_counts_past_boundaries() {
    let mut hysteresis = Hysteresis::new(64, 125);
    assert_eq!(run(&mut hysteresis, &[ROOMY; 3]), [0; 3]);
    assert_eq!(hysteresis.observe_within(4, &ROOMY), 3);
    assert_eq!(hysteresis.observe_within(0, &ROOMY), 3, "the boundary itself");
}

#[test]
fn reset_clears_steady_boundaries() {
    let mut hysteresis = Hysteresis::new(3, 125);
    assert_eq!(run(&mut hysteresis, &[ROOMY; 2]), [0, 0]);
    hysteresis.reset();
    assert_eq!(run(&mut hysteresis, &[ROOMY; 3]), [0, 0, 3]);
}
