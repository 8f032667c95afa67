//! Tests the CUDA kernels: every kernel runs from its committed PTX, by the interpreter, or by a driver in a process that
//! has `SLUICE_TEST_GPU` set.

mod attention;
mod device;
mod forward;
mod gemm;
mod invariance;
mod layout;
mod memory;
mod mutants;
mod paged;
mod rope;
mod rows;
mod sampling;
mod tolerances;
mod traffic;
mod values;

use std::process::Command;

use sluice_cuda_standin::library_folder::LibraryFolder;

/// The way to a GPU works, with a library in place of its driver.
#[test]
fn the_same_tests_pass_by_a_driver() {
    let folder = tempfile::tempdir().unwrap();
    let pool = folder.path().join("pool");
    std::fs::create_dir(&pool).unwrap();
    let library = LibraryFolder::new(folder.path()).unwrap();
    let report = folder.path().join("held");
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["cuda::memory::", "cuda::sampling::"]).env(device::gpu::GPU_VAR, "1");
    command.env("LD_LIBRARY_PATH", library.as_os_str());
    command.env("SLUICE_STANDIN_POOL", pool).env("SLUICE_STANDIN_REPORT", report);
    let output = command.output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{stdout}{}", String::from_utf8_lossy(&output.stderr));
    let passed = stdout.split(" passed").next().and_then(|text| text.rsplit(' ').next()).unwrap();
    assert!(passed.parse::<u32>().unwrap() >= 5, "{stdout}");
}
