//! Tests of a device that grants no memory and of failing copies: reclaim continues, nothing leaks, no token changes.

use std::time::Duration;

use sluice_agent::scheduler_handle::Status;

use crate::golden::{check, reference, requests, short};
use crate::support::{Tenant, config, event_count, poisoned};

#[test]
fn partial_allocation_failure_still_serves() {
    let Some(folder) = reference() else { return };
    let mut faults = poisoned();
    // All at once, a half and a quarter are refused; later requests succeed.
    faults.memory.fail_creates = 3;
    let tenant = Tenant::start_with(config(&folder, 16 << 20, "Oneiros"), faults);
    check(&tenant.serve_concurrently(&requests(&folder)), &folder, "some refused");
    let state = tenant.assert_nothing_leaks("some refused");
    assert_eq!(event_count(&state, "backend_failed"), 3);
}

#[test]
fn total_allocation_failure_reports_numbers() {
    let Some(folder) = reference() else { return };
    let mut faults = poisoned();
    faults.memory.fail_creates = u32::MAX;
    let mut tenant = Tenant::begin(config(&folder, 16 << 20, "Oneiros"), faults).unwrap();
    let status = tenant.wait_until(|status| matches!(status, Status::Failed(_)));
    let Status::Failed(why) = status else { unreachable!("just waited for") };
    assert!(why.starts_with("the device provided 0 bytes, but the floor is "), "{why}");
    assert!(tenant.failure().to_string().ends_with(&why), "the sidecar ends for the same reason");
}

#[test]
fn failed_or_slow_copies_change_no_token() {
    let Some(folder) = reference() else { return };
    for number in [2, 9, 40] {
        let mut faults = poisoned();
        faults.memory.fail_copy = Some(number);
        let mut config = config(&folder, 16 << 20, "Oneiros");
        config.debug.force_remap = Some((2, 1));
        let tenant = Tenant::start_with(config, faults);
        let what = format!("copy {number} failed");
        check(&tenant.serve_concurrently(&requests(&folder)), &folder, &what);
        assert!(event_count(&tenant.assert_nothing_leaks(&what), "backend_failed") > 0, "{what}");
    }
    let mut faults = poisoned();
    faults.memory.chunk_delay = Duration::from_micros(300);
    let tenant = Tenant::start_with(short(&folder, "Oneiros"), faults);
    check(&tenant.serve_concurrently(&requests(&folder)), &folder, "slow copies");
    tenant.assert_nothing_leaks("slow copies");
}
