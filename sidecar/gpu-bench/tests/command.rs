//! The binary without a driver, and with wrong arguments.

use std::process::{Command, Output};

fn bench(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice-gpu-bench"));
    command.args(arguments).env_remove("LD_LIBRARY_PATH").output().expect("the benchmark starts")
}

#[test]
fn a_missing_driver_is_reported_in_one_line_with_status_3() {
    if sluice_memory::cuda::driver::is_present() {
        eprintln!("SKIPPED: this machine has a CUDA driver, so nothing here shows what happens without one");
        return;
    }
    let output = bench(&["--quick", "--json", "-"]);
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(3), &b""[..]));
    let line = "sluice-gpu-bench: no CUDA driver: libcuda.so.1 is not on the library path\n";
    assert_eq!(String::from_utf8_lossy(&output.stderr), line);
}

#[test]
fn measurements_are_listed_without_a_driver() {
    let output = bench(&["--list"]);
    let listed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!((output.status.code(), listed.lines().count()), (Some(0), SUITE_LENGTH), "{listed}");
    assert!(listed.starts_with("1 link"), "{listed}");
}

const SUITE_LENGTH: usize = sluice_gpu_bench::measurements::SUITE.checks.len();

#[test]
fn an_unknown_measurement_ends_with_2_and_the_known_ones() {
    let output = bench(&["--only", "speed"]);
    assert_eq!(output.status.code(), Some(2));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("the measurements are: 1 link, 2 memory"), "{stderr}");
}
