//! Tests of check 2.

use sluice_probe::report::Answer;

use super::TestEnv;

#[test]
fn shared_handle_is_freed_when_all_references_are_dropped() {
    let row = TestEnv::new().assert_yes("share");
    let names: Vec<_> = row.figures.iter().map(|figure| figure.name.as_str()).collect();
    assert!(names.contains(&"importer: set access, 64 MiB"), "{names:?}");
    assert_eq!(names.iter().filter(|name| name.starts_with("free again after the last")).count(), 4);
}

#[test]
fn unreleased_memory_is_detected() {
    let (row, _) = TestEnv::new().with("SLUICE_STANDIN_FAULTS", "cuMemRelease=drop").ask("share");
    let Answer::No { reason } = &row.answer else { panic!("{row:?}") };
    assert!(reason.contains("not free within 3s after the last of: "), "{reason}");
}

#[test]
fn a_second_process_that_cannot_import_is_named() {
    let world = TestEnv::new().with("SLUICE_STANDIN_FAULTS", "cuMemImportFromShareableHandle=801");
    let (row, status) = world.ask("share");
    let Answer::Unknown { reason } = &row.answer else { panic!("{row:?}") };
    let words = "the process 'importer' failed: cuMemImportFromShareableHandle: CUDA_ERROR_NOT_SUPPORTED (";
    assert!(reason.starts_with(words), "{reason}");
    assert_eq!(status, 1);
}
