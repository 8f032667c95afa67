//! Tests that the scheduler's clock includes the time in which the machine is suspended.

use std::process::Command;
use std::time::Duration;

use sluice_memory::since_boot;

/// Seconds of simulated suspension: one day that only the clock since boot includes.
const SUSPENDED: &str = "86400";
const SLEPT_VAR: &str = "SLUICE_TEST_SLEPT";

#[test]
#[ignore = "a process of the next test, which starts it"]
fn clock() {
    if std::env::var_os(SLEPT_VAR).is_some() {
        println!("\n@{}", since_boot().as_secs());
    }
}

#[test]
fn clock_counts_suspend_time() {
    let exe = std::env::current_exe().unwrap();
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--time", "--boottime", SUSPENDED, "--fork"]);
    command.arg(exe).args(["--exact", "peers::clock::clock", "--ignored", "--nocapture"]);
    let before = since_boot();
    let output = command.env(SLEPT_VAR, "1").output().map(|output| String::from_utf8(output.stdout).unwrap());
    let output = output.unwrap_or_default();
    let Some(seconds) = output.lines().find_map(|line| line.strip_prefix('@')) else {
        println!("skipped: this machine lets no process make user and time namespaces (unshare)");
        return;
    };
    let seen = Duration::from_secs(seconds.parse().unwrap());
    let slept = Duration::from_secs(SUSPENDED.parse().unwrap());
    assert!(seen + Duration::from_secs(1) >= before + slept, "{seen:?}, {before:?} without the suspension");
}
