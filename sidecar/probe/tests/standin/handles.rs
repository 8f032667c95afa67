//! Tests of check 3.

use sluice_probe::report::Answer;

use super::TestEnv;

#[test]
fn every_call_is_timed_and_everything_released() {
    let row = TestEnv::new().assert_yes("handles");
    for name in [
        "create, 2 MiB",
        "release, 64 MiB",
        "grow by 100 x 2 MiB, access set once",
        "peer: 100 x 2 MiB handed over as fds",
        "device memory of a process with a context",
    ] {
        assert!(row.figures.iter().any(|figure| figure.name == name), "{name} in {row:?}");
    }
    let missing =
        "the memory of cuBLASLt was not measured: no cuBLASLt: libcublasLt.so.12 is not on the library path";
    assert!(row.notes.iter().any(|note| note.starts_with(missing)), "{:?}", row.notes);
}

/// The library of CUDA 13 has a name that programs for CUDA 12 do not look for.
#[test]
fn the_memory_of_the_library_of_a_driver_of_cuda_13_is_measured() {
    let world = TestEnv::new().with("SLUICE_STANDIN_DRIVER", "13.0").with_cublas(13);
    let row = world.assert_yes("handles");
    let name = "the same, with cuBLASLt after one product";
    assert!(row.figures.iter().any(|figure| figure.name == name), "{row:?}");
}

#[test]
fn a_device_with_too_little_memory_is_refused_politely() {
    let (row, status) = TestEnv::new().with("SLUICE_STANDIN_BYTES", "268435456").ask("handles");
    let Answer::Unknown { reason } = &row.answer else { panic!("{row:?}") };
    // The stand-in's context takes 32 MiB of 256.
    assert_eq!(reason, "needs 448 MiB of device memory, 224 MiB are free");
    assert_eq!(status, 1);
}
