//! Tests of check 1.

use sluice_probe::report::Answer;

use super::TestEnv;

#[test]
fn one_handle_is_seen_through_all_its_addresses() {
    let row = TestEnv::new().assert_yes("aliases");
    let reads = row.figures.iter().find(|figure| figure.name == "reads through another address");
    assert!(reads.expect("reads are counted").median >= 240.0);
}

#[test]
fn a_kernel_that_cannot_run_leaves_the_question_open() {
    let (row, _) = TestEnv::new().with("SLUICE_STANDIN_FAULTS", "cuLaunchKernel=700").ask("aliases");
    let Answer::Unknown { reason } = &row.answer else { panic!("{row:?}") };
    assert!(reason.starts_with("cuLaunchKernel: CUDA_ERROR_ILLEGAL_ADDRESS ("), "{reason}");
}

#[test]
fn a_device_that_loses_writes_answers_no() {
    let (row, status) = TestEnv::new().with("SLUICE_STANDIN_FAULTS", "cuMemsetD32Async=drop").ask("aliases");
    let Answer::No { reason } = &row.answer else { panic!("{row:?}") };
    assert!(reason.contains("reads were stale"), "{reason}");
    assert_eq!(status, 0, "no is an answer");
}

#[test]
fn a_refusal_is_reported_in_the_driver_s_words() {
    let (row, status) = TestEnv::new().with("SLUICE_STANDIN_FAULTS", "cuMemMap=801").ask("aliases");
    let Answer::Unknown { reason } = &row.answer else { panic!("{row:?}") };
    assert!(reason.starts_with("cuMemMap: CUDA_ERROR_NOT_SUPPORTED ("), "{reason}");
    assert_eq!(status, 1);
}
