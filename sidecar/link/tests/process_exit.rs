//! Tests of the confirmation of an exit by pidfd.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use sluice_link::process_exit::PeerProcess;

fn sleeper() -> (Child, PeerProcess) {
    let child = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap();
    let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
    (child, PeerProcess::new(pidfd))
}

#[test]
fn running_engine_is_killed_and_exit_confirmed() {
    let (mut child, process) = sleeper();
    assert!(!process.wait_exit(Duration::from_millis(20)).unwrap());
    let begun = Instant::now();
    process.kill_and_wait(Duration::from_millis(50), Duration::from_secs(5)).unwrap();
    assert!(begun.elapsed() >= Duration::from_millis(50), "it had its grace");
    assert!(!child.wait().unwrap().success());
}

#[test]
fn exited_engine_is_detected_before_reaping() {
    let (mut child, process) = sleeper();
    child.kill().unwrap();
    let begun = Instant::now();
    process.kill_and_wait(Duration::from_secs(5), Duration::from_secs(5)).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(2));
    child.wait().unwrap();
}
