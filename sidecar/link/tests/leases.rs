//! Tests of the leases on the control page, with two mappings and two threads.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use sluice_link::control::*;
use sluice_link::vocabulary::{Generation, LayerId};

static NEVER: AtomicBool = AtomicBool::new(false);
const SOON: WaitLimit<'_> = WaitLimit { abort: &NEVER, limit: Some(Duration::from_millis(20)) };
const LONG: WaitLimit<'_> = WaitLimit { abort: &NEVER, limit: Some(Duration::from_secs(20)) };

fn pages(layers: u16) -> (ControlPage, ControlPage) {
    let sidecar = ControlPage::create_with_passes(layers).unwrap();
    let worker = ControlPage::open_with_passes(sidecar.fd().try_clone_to_owned().unwrap(), layers).unwrap();
    (sidecar, worker)
}

#[test]
fn pass_learns_which_generation_each_layer_must_show() {
    let (sidecar, worker) = pages(3);
    assert_eq!(worker.wait_lease(LayerId(1), 1, SOON).unwrap(), Lease::Ended(WaitResult::TimedOut));
    sidecar.publish_lease(LayerId(1), 1, Some(Generation(40))).unwrap();
    sidecar.publish_lease(LayerId(2), 1, None).unwrap();
    assert_eq!(worker.wait_lease(LayerId(1), 1, SOON).unwrap(), Lease::Moving(Generation(40)));
    assert_eq!(worker.wait_lease(LayerId(2), 1, SOON).unwrap(), Lease::Resident);
    assert_eq!(worker.wait_lease(LayerId(1), 2, SOON).unwrap(), Lease::Ended(WaitResult::TimedOut));
    assert!(worker.wait_lease(LayerId(3), 1, SOON).is_err(), "the model has three layers");
}

#[test]
fn earlier_pass_does_not_take_a_later_lease() {
    let (sidecar, worker) = pages(1);
    sidecar.publish_lease(LayerId(0), 7, Some(Generation(3))).unwrap();
    assert_eq!(worker.wait_lease(LayerId(0), 6, SOON).unwrap(), Lease::Ended(WaitResult::Overtaken));
}

#[test]
fn leases_touch_neither_records_nor_generations() {
    let (sidecar, worker) = pages(2);
    let record = |pass| PassRecord { pass, total_ns: 5, stall_ns: 1, tokens: 2, sequences: 3 };
    (1..=2 * PASS_RECORDS).for_each(|_| worker.end_pass(record(worker.begin_pass())));
    for layer in [0, 1].map(LayerId) {
        sidecar.publish_ready(layer, Generation(8)).unwrap();
        sidecar.publish_lease(layer, 129, Some(Generation(9))).unwrap();
    }
    let (mut cursor, mut records) = (PassCursor::default(), Vec::new());
    assert_eq!(sidecar.read_passes(&mut cursor, &mut records), PASS_RECORDS, "the older half is overwritten");
    assert_eq!(records, (PASS_RECORDS + 1..=2 * PASS_RECORDS).map(record).collect::<Vec<_>>());
    assert_eq!([0, 1].map(|layer| worker.ready(LayerId(layer)).unwrap()), [Generation(8); 2]);
}

/// The sidecar answers each pass as soon as it has begun; neither side sleeps longer than a futex needs.
#[test]
fn passes_and_leases_wake_each_other() {
    let (sidecar, worker) = pages(1);
    let passes = 2_000;
    let leasing = std::thread::spawn(move || {
        for pass in 1..=passes {
            assert_eq!(sidecar.wait_pass_begun(pass, LONG), WaitResult::Reached);
            sidecar.publish_lease(LayerId(0), pass, Some(Generation(pass + 100))).unwrap();
        }
    });
    for _ in 0..passes {
        let pass = worker.begin_pass();
        assert_eq!(worker.wait_lease(LayerId(0), pass, LONG).unwrap(), Lease::Moving(Generation(pass + 100)));
        worker.end_pass(PassRecord { pass, ..PassRecord::default() });
    }
    leasing.join().unwrap();
}
