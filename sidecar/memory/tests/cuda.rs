//! Memory of a GPU, through a stand-in for the driver. The process of a test does not have it on its library path, so
//! each case runs in a process that the test starts.

mod copies;
mod failures;
mod sequence;

use std::process::{Command, Output};

use sluice_cuda_standin::test_machine::{TestMachine, folder_in_memory};
use sluice_memory::cuda::{Driver, Error};
use tempfile::TempDir;

use super::engine_mapping::{GPU_VAR, on_gpu};
use super::engine_process::FAULTS_VAR;

/// The smallest chunk of a GPU.
pub const CHUNK_BYTES: u64 = 2 << 20;

/// A machine with one stand-in for a GPU.
pub struct GpuMachine {
    machine: TestMachine,
    _folder: TempDir,
}

impl GpuMachine {
    pub fn new() -> GpuMachine {
        let folder = TempDir::new_in(folder_in_memory()).unwrap();
        GpuMachine { machine: TestMachine::new(folder.path()).unwrap(), _folder: folder }
    }

    /// Adds a variable of the stand-in.
    pub fn with(mut self, name: &'static str, value: &str) -> GpuMachine {
        self.machine = self.machine.with(name, value);
        self
    }

    /// Runs tests of this program in another process, on the GPU.
    pub fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(arguments).env(GPU_VAR, "1").envs(self.machine.variables());
        command.output().unwrap()
    }

    /// Runs one ignored test, which must pass. Returns what it prints.
    pub fn run_case(&self, name: &str) -> String {
        let output = self.run(&["--ignored", "--exact", "--nocapture", name]);
        let (stdout, stderr) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{name}: {stdout}{stderr}");
        assert!(stdout.contains("1 passed"), "{name} ran: {stdout}");
        self.assert_nothing_held();
        stdout.into_owned()
    }

    /// Returns the number of processes that ended by themselves.
    pub fn assert_nothing_held(&self) -> usize {
        self.machine.assert_nothing_held()
    }
}

/// Whether this process is a case that a test started. Otherwise says that it is skipped.
fn is_case() -> bool {
    if !on_gpu() {
        println!("skipped: only other tests start this one");
    }
    on_gpu()
}

#[test]
fn the_conformance_suite_passes_on_a_gpu() {
    let gpu = GpuMachine::new();
    let output = gpu.run(&["conformance::", "--test-threads=8"]);
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{stdout}{}", String::from_utf8_lossy(&output.stderr));
    assert!(stdout.contains("35 passed"), "{stdout}");
    let processes = gpu.assert_nothing_held();
    assert!(processes > 35, "the suite and the engine of each rule are processes: {processes}");
}

/// Negative control of the assertion above.
#[test]
#[should_panic(expected = "a process ended with")]
fn an_engine_that_keeps_chunks_is_found() {
    let gpu = GpuMachine::new().with(FAULTS_VAR, "cuMemRelease=drop");
    let output = gpu.run(&["conformance::a_chunk_backs_many_addresses", "--exact"]);
    println!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    gpu.assert_nothing_held();
}

/// A driver whose streams cannot wait for words and write them.
#[test]
fn the_conformance_suite_passes_on_a_gpu_that_sets_no_words() {
    // CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS
    let gpu = GpuMachine::new().with("SLUICE_STANDIN_ATTRIBUTES", "122=0");
    let output = gpu.run(&["conformance::fill", "conformance::ready", "--test-threads=8"]);
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{stdout}{}", String::from_utf8_lossy(&output.stderr));
    assert!(stdout.contains("4 passed"), "{stdout}");
    gpu.assert_nothing_held();
}

#[test]
fn without_a_driver_the_error_names_the_library() {
    match Driver::open() {
        Err(error @ Error::NoDriver) => {
            assert_eq!(error.to_string(), "no CUDA driver: libcuda.so.1 is not on the library path");
        }
        other => println!("skipped: this machine has a CUDA driver: {other:?}"),
    }
}
