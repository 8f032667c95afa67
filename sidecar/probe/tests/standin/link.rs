//! Tests of check 4. Its answer depends on time, which the stand-in does not model.

use sluice_probe::report::Answer;

use super::TestEnv;

#[test]
fn every_direction_and_size_is_measured_and_everything_released() {
    let world = TestEnv::new();
    let (row, status) = world.ask("link");
    assert!(!matches!(row.answer, Answer::Unknown { .. }) && status == 0, "{row:?}");
    world.assert_nothing_leaked();
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
fn measurements_before_refusal_are_kept_and_used() {
    let world = TestEnv::new().with("SLUICE_STANDIN_FAULTS", "cuMemHostAlloc=2");
    let report = world.report(&["--quick", "--only", "link"]);
    let row = &report.rows[0];
    let Answer::Unknown { reason } = &row.answer else { panic!("{row:?}") };
    assert!(reason.starts_with("cuMemHostAlloc: CUDA_ERROR_OUT_OF_MEMORY ("), "{reason}");
    assert!(row.figures.iter().any(|figure| figure.name == "to host, registered: peak"), "{row:?}");
    assert!(!report.fitness.models.is_empty(), "{report:?}");
}

#[test]
fn pages_that_cannot_be_registered_are_named() {
    let world = TestEnv::new().with("SLUICE_STANDIN_FAULTS", "cuMemHostRegister_v2=801");
    let (row, _) = world.ask("link");
    let Answer::Unknown { reason } = &row.answer else { panic!("{row:?}") };
    assert!(reason.starts_with("cuMemHostRegister_v2: CUDA_ERROR_NOT_SUPPORTED ("), "{reason}");
}
