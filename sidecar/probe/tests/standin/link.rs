//! Row 4. Its verdict depends on time, which the stand-in says nothing about.

use sluice_probe::report::Answer;

use super::World;

#[test]
fn every_way_and_size_is_measured_and_everything_given_back() {
    let world = World::new();
    let (row, status) = world.ask("link");
    assert!(!matches!(row.answer, Answer::Unknown { .. }) && status == 0, "{row:?}");
    world.nothing_is_held();
    for name in [
        "device memory, read by a kernel",
        "to device, registered: peak",
        "to host, cuMemHostAlloc: 65536 KiB",
        "to device, what the other way leaves",
        "to host, registered: size of 95 %",
    ] {
        let figure = row.figures.iter().find(|figure| figure.name == name);
        assert!(figure.is_some_and(|figure| figure.median > 0.0), "{name} in {row:?}");
    }
}

#[test]
fn what_was_measured_before_a_refusal_is_kept_and_says_what_to_expect() {
    let world = World::new().with("SLUICE_STANDIN_FAULTS", "cuMemHostAlloc=2");
    let report = world.report(&["--quick", "--only", "link"]);
    let row = &report.rows[0];
    let Answer::Unknown { reason } = &row.answer else { panic!("{row:?}") };
    assert!(reason.starts_with("cuMemHostAlloc: CUDA_ERROR_OUT_OF_MEMORY ("), "{reason}");
    assert!(row.figures.iter().any(|figure| figure.name == "to host, registered: peak"), "{row:?}");
    assert!(!report.fitness.models.is_empty(), "{report:?}");
}

#[test]
fn pages_that_cannot_be_registered_are_named() {
    let world = World::new().with("SLUICE_STANDIN_FAULTS", "cuMemHostRegister_v2=801");
    let (row, _) = world.ask("link");
    let Answer::Unknown { reason } = &row.answer else { panic!("{row:?}") };
    assert!(reason.starts_with("cuMemHostRegister_v2: CUDA_ERROR_NOT_SUPPORTED ("), "{reason}");
}
