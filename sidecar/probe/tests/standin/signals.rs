//! Tests of check 6.

use std::time::{Duration, Instant};

use sluice_probe::report::Answer;

use super::TestEnv;

#[test]
fn stream_and_graphs_wait_for_other_process_and_survive_its_exit() {
    let row = TestEnv::new().assert_yes("signals");
    assert_eq!(row.notes, ["a stream's wait for a word can be captured into a graph"]);
    let beside = ["stream", "graph by counter"].map(|way| format!("{way}, next to a process that computes"));
    let ways = ["stream", "graph by parameters", "graph by counter", "graph by flags"].map(str::to_owned);
    for way in ways.iter().chain(&beside) {
        for writer in ["the CPU", "a stream"] {
            let name = format!("{way}: write by {writer} to kernel");
            assert!(row.figures.iter().any(|figure| figure.name == name), "{name}");
        }
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
