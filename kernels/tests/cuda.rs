//! Tests the CUDA kernels: every kernel runs from its committed PTX, by the interpreter, or by a driver in a process that
//! has `SLUICE_TEST_GPU` set.

mod attention;
mod cases;
mod device;
mod forward;
mod gemm;
mod invariance;
mod layout;
mod long_context;
mod memory;
mod mutants;
mod paged;
mod products;
mod rope;
mod rows;
mod sampling;
mod smollm2;
mod split_steps;
mod tolerances;
mod traffic;
mod values;

use std::io;
use std::process::Command;

use sluice_cuda_standin::library_folder::LibraryFolder;
use sluice_cuda_standin::test_machine::TestMachine;

/// The way to a GPU works, with a library in place of its driver.
#[test]
fn the_same_tests_pass_by_a_driver() {
    let stdout = by_driver(&["cuda::memory::", "cuda::sampling::"], Ok);
    let passed = stdout.split(" passed").next().and_then(|text| text.rsplit(' ').next()).unwrap();
    assert!(passed.parse::<u32>().unwrap() >= 5, "{stdout}");
}

/// Runs tests of this program in a process whose kernels run by a driver: by that of the machine if this process has
/// `SLUICE_TEST_GPU` set, else by the stand-in for a driver, with `libraries` next to it. They must pass. Returns what
/// the process said.
fn by_driver(
    arguments: &[&str],
    libraries: impl FnOnce(LibraryFolder) -> io::Result<LibraryFolder>,
) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(arguments);
    if device::gpu::on_gpu() {
        return passed(command);
    }
    let folder = tempfile::tempdir().unwrap();
    let machine =
        TestMachine::new(folder.path()).and_then(|machine| machine.with_library(libraries)).unwrap();
    command.env(device::gpu::GPU_VAR, "1").envs(machine.variables());
    passed(command)
}

/// Runs a program that must pass. Returns what it said.
fn passed(mut command: Command) -> String {
    let output = command.output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{stdout}{}", String::from_utf8_lossy(&output.stderr));
    stdout
}
