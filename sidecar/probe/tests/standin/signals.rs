//! Tests of check 6.

use std::fs;
use std::time::{Duration, Instant};

use sluice_probe::report::{Answer, CheckResult};

use super::TestEnv;
use super::mps::{DAEMON, log, with_daemon};

fn assert_latencies(row: &CheckResult, ways: impl IntoIterator<Item = String>) {
    for way in ways {
        for writer in ["the CPU", "a stream"] {
            let name = format!("{way}: write by {writer} to kernel");
            assert!(row.figures.iter().any(|figure| figure.name == name), "{name} in {row:?}");
        }
    }
}

/// Whether a figure was measured in MPS.
fn has_mps_figures(row: &CheckResult) -> bool {
    row.figures.iter().any(|figure| figure.name.contains("MPS"))
}

#[test]
fn stream_and_graphs_wait_for_other_process_and_survive_its_exit() {
    // The probe must not find an MPS daemon of the machine that runs this test.
    let row = TestEnv::new().with("PATH", "/nowhere").assert_yes("signals");
    assert_eq!(
        row.notes,
        [
            "a stream's wait for a word can be captured into a graph",
            "MPS: the process 'nvidia-cuda-mps-control' is not installed"
        ]
    );
    let ways = ["stream", "graph by parameters", "graph by counter", "graph by flags"];
    assert_latencies(&row, ways.map(str::to_owned));
    for work in ["computes", "copies"] {
        let next_to = |way| format!("{way}, next to a process that {work}");
        assert_latencies(&row, ["stream", "graph by counter"].map(next_to));
    }
    assert!(!has_mps_figures(&row), "{row:?}");
}

#[test]
fn signals_are_measured_in_mps_too() {
    let world = with_daemon(DAEMON);
    let row = world.assert_yes("signals");
    assert_eq!(row.notes, ["a stream's wait for a word can be captured into a graph"]);
    let ways = ["stream", "graph by counter"];
    assert_latencies(&row, ways.map(|way| format!("in MPS, {way}, next to a process that computes")));
    assert_eq!(log(&world)[1..], ["get_server_list", "quit"]);
    assert_eq!(fs::read_dir(world.path("tmp")).expect("a folder").count(), 0, "its folders are gone");
}

#[test]
fn a_wait_that_does_not_wait_in_mps_is_found() {
    let fault = "cuStreamWaitValue64_v2=drop";
    // Only the processes in MPS have the fault, so the answer, which is about the others, stays.
    let row = with_daemon(DAEMON).with("SLUICE_STANDIN_MPS_FAULTS", fault).assert_yes("signals");
    assert!(row.notes.contains(&"MPS: the device did not wait for the word".to_owned()), "{:?}", row.notes);
    assert!(!has_mps_figures(&row), "{row:?}");
}

#[test]
fn a_third_process_that_does_not_work_is_found() {
    // Only the third process needs events for its work.
    let failure = "the process 'worker' says: cuEventRecord: CUDA_ERROR_ILLEGAL_ADDRESS";
    let found = |row: &CheckResult, start: &str| {
        row.notes.iter().any(|note| note.starts_with(&format!("{start}: {failure}")))
    };
    let world = with_daemon(DAEMON).with("SLUICE_STANDIN_MPS_FAULTS", "cuEventRecord=700");
    let row = world.assert_yes("signals");
    assert!(found(&row, "MPS") && !has_mps_figures(&row), "{row:?}");
    let world = TestEnv::new().with("SLUICE_STANDIN_FAULTS", "cuEventRecord=700").with("PATH", "/nowhere");
    let (row, _) = world.ask("signals");
    for work in ["computes", "copies"] {
        let name = format!("next to a process that {work}");
        assert!(found(&row, &name), "{name} in {:?}", row.notes);
        assert!(!row.figures.iter().any(|figure| figure.name.contains(&name)), "{row:?}");
    }
}

#[test]
fn a_driver_without_waits_for_words_leaves_the_question_open() {
    let (row, status) = TestEnv::new().without("cuStreamWaitValue64_v2").ask("signals");
    let Answer::Unknown { reason } = &row.answer else { panic!("{row:?}") };
    assert!(reason.ends_with("this CUDA driver lacks cuStreamWaitValue64_v2"), "{reason}");
    assert_eq!(status, 1);
}

#[test]
fn missing_signal_times_out_wait_and_probe_continues() {
    let start = Instant::now();
    let world = TestEnv::new().with("SLUICE_STANDIN_FAULTS", "cuStreamWriteValue64_v2=drop");
    let (row, _) = world.ask("signals");
    let Answer::Unknown { reason } = &row.answer else { panic!("{row:?}") };
    assert!(reason.contains("a word that the device writes took more than 2s"), "{reason}");
    // Several waits of 2 s, and time for a busy machine; the check's own limit is 75 s.
    assert!(start.elapsed() < Duration::from_secs(45), "{:?}", start.elapsed());
}

#[test]
fn a_wait_that_does_not_wait_is_found() {
    let (row, _) = TestEnv::new().with("SLUICE_STANDIN_FAULTS", "cuStreamWaitValue64_v2=drop").ask("signals");
    // Without a wait, either the kernel or the copy is seen too early.
    let Answer::No { reason } = &row.answer else { panic!("{row:?}") };
    let words = ["the device did not wait for the word", "the device copied before the word was written"];
    assert!(words.contains(&reason.as_str()), "{reason}");
}

#[test]
fn a_driver_that_refuses_graphs_is_a_no_in_its_own_words() {
    let (row, status) =
        TestEnv::new().with("SLUICE_STANDIN_FAULTS", "cuGraphAddKernelNode_v2=801").ask("signals");
    assert_eq!(row.answer, Answer::No { reason: "a stream can wait, but a graph cannot".into() });
    let words = "cuGraphAddKernelNode_v2: CUDA_ERROR_NOT_SUPPORTED (operation not supported)";
    assert_eq!(row.notes.iter().filter(|note| note.contains(words)).count(), 3, "{:?}", row.notes);
    assert_eq!(status, 0, "no is an answer");
}
