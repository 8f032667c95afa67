//! Tests of check 8.

use sluice_probe::report::Answer;

use super::TestEnv;

#[test]
fn attempted_feature_failure_is_noted_in_driver_words() {
    let row = TestEnv::new().assert_yes("limits");
    for words in [
        "not supported: part of a handle can be mapped: cuMemMap: CUDA_ERROR_",
        "not supported: fabric handles can be made: ",
    ] {
        assert!(row.notes.iter().any(|note| note.starts_with(words)), "{words} in {:?}", row.notes);
    }
}

#[test]
fn missing_required_feature_answers_no() {
    let world = TestEnv::new()
        .with("SLUICE_STANDIN_ATTRIBUTES", "102=0")
        .with("SLUICE_STANDIN_FAULTS", "cuStreamWaitValue64_v2=801");
    let (row, status) = world.ask("limits");
    let Answer::No { reason } = &row.answer else { panic!("{row:?}") };
    assert!(reason.starts_with("no mapping of handles: reported by the driver; no 64-bit wait"), "{reason}");
    assert!(reason.contains("cuStreamWaitValue64_v2: CUDA_ERROR_NOT_SUPPORTED ("), "{reason}");
    assert_eq!(status, 0);
}

#[test]
fn a_write_that_never_arrives_ends_the_wait_for_it() {
    let world = TestEnv::new().with("SLUICE_STANDIN_FAULTS", "cuStreamWriteValue64_v2=drop");
    let (row, _) = world.ask("limits");
    let Answer::No { reason } = &row.answer else { panic!("{row:?}") };
    assert!(reason.contains("work on a stream took more than 2s"), "{reason}");
}

#[test]
fn a_device_for_one_process_at_a_time_is_noted() {
    let (row, _) = TestEnv::new().with("SLUICE_STANDIN_ATTRIBUTES", "20=3").ask("limits");
    assert!(row.notes.iter().any(|note| note.starts_with("compute mode: exclusive")), "{:?}", row.notes);
    let (row, _) = TestEnv::new().ask("limits");
    assert!(!row.notes.iter().any(|note| note.starts_with("compute mode")), "{:?}", row.notes);
}
