//! Tests of the kills by an engine's supervisor: a sidecar that hangs, and a worker that does not notice its sidecar's
//! exit.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, getpid, getppid, kill_process, pidfd_open};
use sluice_link::message::Faults;
use sluice_link::model::Dtype;
use sluice_link::process_exit::PeerProcess;
use sluice_link::watch::SIDECAR_HANG_TIMEOUT;
use sluice_wire::sidecar_hangs::SidecarHangs;

use super::harness::*;
use crate::specs::llama;

/// Environment variable with the process id of the test that starts [`sidecar`].
const PARENT_VAR: &str = "SLUICE_TEST_PARENT";
/// Longer than any test of this module.
const TEST_TIMEOUT: Duration = Duration::from_secs(120);
const SOCKET: &str = "socket: ";
const WORKER: &str = "worker: ";

/// A sidecar in its own process, and the engine that serves it.
struct SidecarAndEngine {
    sidecar: Child,
    engine: Engine,
    worker: Pid,
    /// Folder of the sidecar's files.
    folder: PathBuf,
}

impl SidecarAndEngine {
    /// Starts both. `folder` is for the sidecar's files, which remain after it is killed.
    fn start(folder: &Path) -> SidecarAndEngine {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "engine_process::hangs::sidecar", "--ignored", "--nocapture"]);
        command.env("TMPDIR", folder).env(PARENT_VAR, getpid().to_string());
        let mut sidecar = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(sidecar.stdout.take().unwrap()).lines().map_while(Result::ok);
        let mut next_value =
            |what| lines.find_map(|line| line.strip_prefix(what).map(str::to_owned)).unwrap();
        let socket = PathBuf::from(next_value(SOCKET));
        let engine = Engine::start(&socket, &[]);
        let worker = Pid::from_raw(next_value(WORKER).parse().unwrap()).unwrap();
        let folder = socket.parent().unwrap().to_owned();
        SidecarAndEngine { sidecar, engine, worker, folder }
    }
}

impl Drop for SidecarAndEngine {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.sidecar.kill();
        let _ = self.sidecar.wait();
    }
}

fn exits_within(pid: Pid, limit: Duration) -> bool {
    // A reaped process has no pidfd.
    pidfd_open(pid, PidfdFlags::empty()).map_or(true, |fd| PeerProcess::new(fd).wait_exit(limit).unwrap())
}

#[test]
#[ignore = "the tests of this module start it as a process"]
fn sidecar() {
    let Ok(parent) = std::env::var(PARENT_VAR) else {
        println!("skipped: only other tests start this one");
        return;
    };
    let begun = Instant::now();
    let sidecar = MiniSidecar::new(&llama(Dtype::F32), Faults::default());
    println!("\n{SOCKET}{}", sidecar.socket().display());
    let link = sidecar.attach(&sidecar.resident());
    sidecar.control.heartbeat();
    println!("{WORKER}{}", link.hello.pid);
    // Beats like a scheduler, which runs at least once per second. The loop also ends if the test is killed.
    while getppid().is_some_and(|pid| pid.to_string() == parent) && begun.elapsed() < TEST_TIMEOUT {
        std::thread::sleep(Duration::from_millis(100));
        sidecar.control.heartbeat();
    }
}

#[test]
fn a_sidecar_that_is_stopped_is_killed_and_one_that_runs_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let pair = SidecarAndEngine::start(folder.path());
    let sidecar = Pid::from_child(&pair.sidecar);
    assert!(!exits_within(sidecar, SIDECAR_HANG_TIMEOUT + Duration::from_secs(2)), "it runs");
    kill_process(sidecar, Signal::STOP).unwrap();
    assert!(!exits_within(sidecar, SIDECAR_HANG_TIMEOUT / 2), "it is given its time");
    assert_eq!(SidecarHangs::read(&pair.folder).unwrap(), None, "there was no hang so far");
    // Even on a slow node, at least a quarter of the time counts.
    assert!(exits_within(sidecar, 4 * SIDECAR_HANG_TIMEOUT), "it is stopped");
    let hangs = SidecarHangs::read(&pair.folder).unwrap().expect("the next sidecar reports it");
    assert_eq!(hangs.total, 1, "{hangs:?}");
    assert!(Duration::from_millis(hangs.waited_ms) >= SIDECAR_HANG_TIMEOUT, "{hangs:?}");
}

#[test]
fn a_worker_that_is_stopped_does_not_outlive_its_sidecar() {
    let folder = tempfile::tempdir().unwrap();
    let mut pair = SidecarAndEngine::start(folder.path());
    kill_process(pair.worker, Signal::STOP).unwrap();
    pair.sidecar.kill().unwrap();
    pair.sidecar.wait().unwrap();
    assert!(exits_within(pair.worker, TEST_TIMEOUT), "it cannot end itself");
    assert!(pair.engine.exited_within(Duration::ZERO).is_none(), "its supervisor waits for the next sidecar");
}
