//! Row 2.

use sluice_probe::report::Answer;

use super::World;

#[test]
fn a_handle_crosses_to_another_process_and_is_free_when_all_let_go() {
    let row = World::new().yes("share");
    let names: Vec<_> = row.figures.iter().map(|figure| figure.name.as_str()).collect();
    assert!(names.contains(&"importer: set access, 64 MiB"), "{names:?}");
    assert_eq!(names.iter().filter(|name| name.starts_with("free again after the last")).count(), 4);
}

#[test]
fn memory_that_never_comes_back_is_noticed() {
    let (row, _) = World::new().with("SLUICE_STANDIN_FAULTS", "cuMemRelease=drop").ask("share");
    let Answer::No { reason } = &row.answer else { panic!("{row:?}") };
    assert!(reason.contains("not free within 3s after the last of: "), "{reason}");
}

#[test]
fn a_second_process_that_cannot_import_is_named() {
    let world = World::new().with("SLUICE_STANDIN_FAULTS", "cuMemImportFromShareableHandle=801");
    let (row, status) = world.ask("share");
    let Answer::Unknown { reason } = &row.answer else { panic!("{row:?}") };
    let words = "the process 'importer' failed: cuMemImportFromShareableHandle: CUDA_ERROR_NOT_SUPPORTED (";
    assert!(reason.starts_with(words), "{reason}");
    assert_eq!(status, 1);
}
