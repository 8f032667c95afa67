//! Waits of supervisors.

use std::time::Duration;

#[test]
fn backoff_doubles_up_to_max_and_resets_after_long_run() {
    let mut back_off = sluice_wire::restart::BackOff::default();
    let waits: Vec<_> =
        (0..9).map(|_| back_off.next_delay(Duration::from_millis(9999)).as_millis()).collect();
    assert_eq!(waits, [50, 100, 200, 400, 800, 1600, 3200, 5000, 5000]);
    assert_eq!(back_off.next_delay(Duration::from_secs(10)), Duration::from_millis(50));
    assert_eq!(back_off.next_delay(Duration::ZERO), Duration::from_millis(100));
}
