//! Tests of whole runs: the effect of a failed check, and the destination of the report.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use sluice_probe::report::{Answer, ProbeReport};

use super::TestEnv;

/// Waits until the probe has a child process that runs a check, and returns its id.
pub fn check_pid(probe: &Child) -> Pid {
    let (pid, deadline) = (probe.id(), Instant::now() + Duration::from_secs(20));
    while Instant::now() < deadline {
        let children =
            std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        let child = children.split_whitespace().next().and_then(|child| child.parse().ok());
        if let Some(child) = child.and_then(Pid::from_raw) {
            return child;
        }
        std::thread::yield_now();
    }
    panic!("the probe asks in a process of its own");
}

#[test]
fn crashed_check_is_unknown_and_next_one_runs() {
    // Work on streams never ends, so the process still runs when it is killed.
    let world = TestEnv::new().with("SLUICE_STANDIN_FAULTS", "cuStreamQuery=600");
    let mut command = world.command(&["--quick", "--only", "aliases,limits", "--json", "-"]);
    let probe = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("the probe starts");
    kill_process(check_pid(&probe), Signal::KILL).expect("the process is there");
    let output = probe.wait_with_output().expect("the probe ends");
    let report: ProbeReport = serde_json::from_slice(&output.stdout).expect("a report");
    let Answer::Unknown { reason } = &report.rows[0].answer else { panic!("{report:?}") };
    assert_eq!(reason, "the process 'row/1' ended with signal: 9 (SIGKILL)");
    assert!(matches!(report.rows[1].answer, Answer::No { .. }), "{report:?}");
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn crashed_check_keeps_reported_results() {
    let world = TestEnv::new();
    let mut command = world.command(&["--quick", "--only", "link", "--json", "-"]);
    let mut probe = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the probe starts");
    let mut progress = BufReader::new(probe.stderr.take().expect("piped")).lines();
    let later = progress.any(|line| line.expect("text").ends_with("host memory: cuMemHostAlloc"));
    assert!(later, "the row comes to its second part");
    kill_process(check_pid(&probe), Signal::KILL).expect("the process is there");
    let output = probe.wait_with_output().expect("the probe ends");
    let report: ProbeReport = serde_json::from_slice(&output.stdout).expect("a report");
    assert!(matches!(report.rows[0].answer, Answer::Unknown { .. }), "{report:?}");
    let kept = report.rows[0].figures.iter().any(|figure| figure.name == "to device, registered: peak");
    assert!(kept, "{report:?}");
}

#[test]
fn the_report_goes_to_a_file_as_json_and_to_stdout_as_text() {
    let world = TestEnv::new();
    let file = world.folder.path().join("report.json");
    let output = world.probe(&["--quick", "--only", "limits", "--json", &file.display().to_string()]);
    assert_eq!(output.status.code(), Some(0));
    let report: ProbeReport =
        serde_json::from_slice(&std::fs::read(file).expect("the file")).expect("a report");
    assert_eq!(String::from_utf8_lossy(&output.stdout), report.to_string());
    assert_eq!((report.device.name.as_str(), report.quick), ("Sluice stand-in", true));
    assert_eq!(report.command[1..4], ["--quick", "--only", "limits"]);
}

#[test]
fn a_file_that_cannot_be_written_costs_no_answer() {
    let output = TestEnv::new().probe(&["--quick", "--only", "limits", "--json", "/proc/no-file"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stdout).contains("-> yes"));
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("sluice-gpu-probe: /proc/no-file: No such file")
    );
}
