//! Tests of check 5.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process};
use sluice_probe::report::{Answer, CheckResult};

use super::TestEnv;
use super::mps::{DAEMON, log, with_daemon};
use super::run::check_pid;

/// A fake daemon that starts and never replies.
const UNRESPONSIVE_DAEMON: &str = r#"#!/bin/sh
echo "$$" >> "$DAEMON_LOG"
exec sleep 300
"#;

/// Checks that the answer is yes or no. Which one depends on the load of this machine.
fn answered(row: &CheckResult) {
    assert!(!matches!(row.answer, Answer::Unknown { .. }), "{row:?}");
}

fn has(row: &CheckResult, name: &str) -> bool {
    row.figures.iter().any(|figure| figure.name == name)
}

fn notes<'a>(row: &'a CheckResult, start: &str) -> Vec<&'a String> {
    row.notes.iter().filter(|note| note.starts_with(start)).collect()
}

const ALL_CONTINUE: &str = "the other engine continues; the owner of the memory continues; a new engine next to \
                            them continues; an engine after both have ended continues ";

#[test]
fn concurrent_copies_and_compute_are_measured_and_crashes_survived() {
    // The probe must not find an MPS daemon of the machine that runs this test.
    let world = TestEnv::new().with("PATH", "/nowhere");
    let (row, status) = world.ask("sharing");
    answered(&row);
    assert_eq!(status, 0);
    for place in ["two processes", "one process"] {
        for load in ["read", "product"] {
            assert!(has(&row, &format!("{place}: copy next to {load}, keeps")), "{place}, {load}");
            assert!(has(&row, &format!("{place}: {load} next to copy, keeps")), "{place}, {load}");
        }
        let signalled = format!("{place}: signalled copy next to read");
        for what in ["keeps", "from word to word", "from word to word, 99 % within"] {
            assert!(has(&row, &format!("{signalled}, {what}")), "{signalled}, {what}");
        }
    }
    let deaths = notes(&row, "without MPS, after");
    assert_eq!(deaths.len(), 2, "{:?}", row.notes);
    assert!(
        deaths.iter().all(|note| note.contains(ALL_CONTINUE) && note.ends_with(" ms after its start")),
        "{deaths:?}"
    );
    assert!(deaths[1].contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{deaths:?}");
    assert_eq!(notes(&row, "MPS: "), ["MPS: the process 'nvidia-cuda-mps-control' is not installed"]);
    world.assert_nothing_leaked();
}

#[test]
fn mps_is_started_used_and_ended() {
    let world = with_daemon(DAEMON);
    let (row, _) = world.ask("sharing");
    answered(&row);
    assert!(has(&row, "both in MPS: copy next to read"), "{:?}", row.notes);
    assert!(has(&row, "both in MPS: signalled copy next to read, from word to word"), "{:?}", row.notes);
    assert!(has(&row, "copy outside MPS: product next to copy, keeps"), "{:?}", row.notes);
    assert_eq!(notes(&row, "in MPS, after").len(), 2, "{:?}", row.notes);
    assert_eq!(notes(&row, "MPS: "), [""; 0]);
    assert_eq!(log(&world)[1..], ["get_server_list", "quit"]);
    assert_eq!(fs::read_dir(world.path("tmp")).expect("a folder").count(), 0, "its folders are gone");
}

#[test]
fn an_mps_daemon_does_not_outlive_a_probe_that_is_killed() {
    let world = with_daemon(DAEMON);
    let mut probe = world
        .command(&["--quick", "--only", "sharing"])
        .stderr(Stdio::null())
        .spawn()
        .expect("the probe starts");
    let started =
        wait_until(|| fs::read_to_string(world.path("daemon")).is_ok_and(|log| log.ends_with("list\n")));
    probe.kill().expect("it runs");
    probe.wait().expect("it is ours");
    assert!(started, "the daemon was started");
    let daemon = log(&world)[0].clone();
    assert!(wait_until(|| ended(&daemon)), "{daemon} still runs");
}

/// A fake daemon with a server, like the real one.
const SERVING: &str = r#"#!/bin/sh
pipe="$CUDA_MPS_PIPE_DIRECTORY/control"
if [ "$1" = -f ]; then
    echo "$$" >> "$DAEMON_LOG"
    sleep 300 &
    echo "$!" >> "$DAEMON_LOG"
    mkfifo "$pipe"
    while :; do
        read -r line < "$pipe" || continue
        echo "$line" >> "$DAEMON_LOG"
    done
fi
[ -p "$pipe" ] || exit 1
cat > "$pipe"
"#;

#[test]
fn a_row_that_is_killed_leaves_neither_its_mps_server_nor_its_folder() {
    let world = with_daemon(SERVING);
    let mut command = world.command(&["--quick", "--only", "sharing"]);
    let mut probe = command.stderr(Stdio::null()).stdout(Stdio::null()).spawn().expect("the probe starts");
    let started =
        wait_until(|| fs::read_to_string(world.path("daemon")).is_ok_and(|log| log.ends_with("list\n")));
    kill_process(check_pid(&probe), Signal::KILL).expect("the row runs");
    probe.wait().expect("it is ours");
    assert!(started, "the daemon was started");
    for pid in &log(&world)[..2] {
        assert!(wait_until(|| ended(pid)), "{pid} still runs");
    }
    assert_eq!(fs::read_dir(world.path("tmp")).expect("a folder").count(), 0, "its folders are gone");
}

/// Whether a process has exited. A zombie counts as exited: it may not have been reaped yet.
fn ended(pid: &str) -> bool {
    let status = fs::read_to_string(Path::new("/proc").join(pid).join("stat"));
    status.map_or(true, |status| status.contains(") Z "))
}

/// Polls for at most 40 s: a process gets no notification about the exit of another process's child.
fn wait_until(done: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(40) {
        if done() {
            return true;
        }
        std::thread::yield_now();
    }
    false
}

#[test]
fn an_mps_daemon_that_never_answers_is_ended() {
    let world = with_daemon(UNRESPONSIVE_DAEMON);
    let (row, _) = world.ask("sharing");
    answered(&row);
    let said = notes(&row, "MPS: ");
    assert_eq!(said.len(), 1, "{:?}", row.notes);
    assert!(said[0].ends_with("did not answer get_server_list within 5s"), "{said:?}");
    for pid in log(&world) {
        let process = Path::new("/proc").join(&pid);
        assert!(!process.exists(), "{} still runs", process.display());
    }
}

#[test]
fn missing_memory_is_reported() {
    let bytes = (128_u64 << 20).to_string();
    let world = TestEnv::new().with("SLUICE_STANDIN_BYTES", &bytes);
    let (row, status) = world.ask("sharing");
    let reason = "needs 256 MiB of device memory, 96 MiB are free".to_owned();
    assert_eq!((row.answer, status), (Answer::Unknown { reason }, 1));
    world.assert_nothing_leaked();
}

#[test]
fn memory_exhausted_midway_is_reported_in_driver_words() {
    let (row, status) = TestEnv::new().with("SLUICE_STANDIN_FAULTS", "cuMemCreate=2").ask("sharing");
    let Answer::Unknown { reason } = &row.answer else { panic!("{row:?}") };
    assert!(reason.ends_with("cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY (out of memory)"), "{reason}");
    assert_eq!(status, 1);
}

#[test]
fn a_device_without_waits_for_words_is_asked_for_plain_copies() {
    let world = TestEnv::new().without("cuStreamWaitValue64_v2").with("PATH", "/nowhere");
    let (row, _) = world.ask("sharing");
    answered(&row);
    assert!(has(&row, "two processes: copy next to read, keeps"), "{row:?}");
    let said = notes(&row, "two processes: no signalled copies: ");
    assert_eq!(said.len(), 1, "{:?}", row.notes);
    assert!(said[0].ends_with("this CUDA driver lacks cuStreamWaitValue64_v2"), "{said:?}");
    assert!(!row.figures.iter().any(|figure| figure.name.contains("signalled")), "{row:?}");
}

#[test]
fn a_signalled_copy_that_does_not_wait_is_found() {
    let world =
        TestEnv::new().with("SLUICE_STANDIN_FAULTS", "cuStreamWaitValue64_v2=drop").with("PATH", "/nowhere");
    let (row, _) = world.ask("sharing");
    let said = notes(&row, "two processes: no signalled copies: ");
    assert!(
        said.iter().any(|note| note.ends_with("the device copied before the word was written")),
        "{row:?}"
    );
}
