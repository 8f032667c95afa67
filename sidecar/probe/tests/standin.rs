//! Tests of the probe with a stand-in for the driver: everything is released, and device errors are detected. They do
//! not test times.

mod aliases;
mod full_report;
mod handles;
mod limits;
mod link;
mod mps;
mod remap;
mod run;
mod share;
mod sharing;
mod signals;

use std::path::PathBuf;
use std::process::{Command, Output};

use sluice_cuda_standin::test_machine::{TestMachine, folder_in_memory};
use sluice_probe::report::{Answer, CheckResult, ProbeReport};
use tempfile::TempDir;

/// A machine with one fake device.
pub struct TestEnv {
    machine: TestMachine,
    folder: TempDir,
}

impl TestEnv {
    pub fn new() -> TestEnv {
        let folder = TempDir::new_in(folder_in_memory()).expect("a folder for tests");
        let machine = TestMachine::new(folder.path()).expect("the folder is ours");
        // Its product is never read: one row of tiles takes enough time.
        TestEnv { machine: machine.with("SLUICE_STANDIN_BLOCKS", "sluice_product=8"), folder }
    }

    /// Adds a configuration variable of the stand-in.
    pub fn with(mut self, name: &'static str, value: &str) -> TestEnv {
        self.machine = self.machine.with(name, value);
        self
    }

    /// Simulates a driver older than this function.
    pub fn without(mut self, function: &str) -> TestEnv {
        let changed = self.machine.with_library(|library| library.without(function));
        self.machine = changed.expect("the folder is ours");
        self
    }

    /// Adds cuBLASLt of this version of CUDA.
    pub fn with_cublas(mut self, major: u32) -> TestEnv {
        let changed = self.machine.with_library(|library| library.with_cublas(major));
        self.machine = changed.expect("the folder is ours");
        self
    }

    /// Returns a path in the test's folder, which is removed on drop.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn probe(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("the probe starts")
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sluice-gpu-probe"));
        command.args(arguments).envs(self.machine.variables());
        command
    }

    /// Runs one check. Returns its result and the exit status.
    pub fn ask(&self, name: &str) -> (CheckResult, i32) {
        let output = self.probe(&["--quick", "--only", name, "--json", "-"]);
        let [row] = <[CheckResult; 1]>::try_from(read(&output).rows).expect("one question was asked");
        (row, output.status.code().expect("the probe exits"))
    }

    /// Runs the probe with these arguments and returns its report.
    pub fn report(&self, arguments: &[&str]) -> ProbeReport {
        read(&self.probe(&[arguments, &["--json", "-"]].concat()))
    }

    /// Runs one check, whose answer must be yes, and checks that no process leaked anything.
    pub fn assert_yes(&self, name: &str) -> CheckResult {
        let (row, status) = self.ask(name);
        assert_eq!((&row.answer, status), (&Answer::Yes, 0), "{row:?}");
        self.assert_nothing_leaked();
        row
    }

    /// Checks that every process with a context released everything before its exit.
    pub fn assert_nothing_leaked(&self) {
        self.machine.assert_nothing_held();
    }
}

fn read(output: &Output) -> ProbeReport {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)))
}

#[test]
fn a_driver_without_a_device_ends_with_4() {
    let world = TestEnv::new();
    let output = world.probe(&["--device", "1"]);
    assert_eq!(output.status.code(), Some(4));
    let line = "sluice-gpu-probe: there is no CUDA device 1: the driver reports 1\n";
    assert_eq!(String::from_utf8_lossy(&output.stderr), line);
}

#[test]
fn a_driver_without_any_device_ends_with_4() {
    let output = TestEnv::new().with("SLUICE_STANDIN_FAULTS", "cuInit=100").probe(&["--quick"]);
    assert_eq!(output.status.code(), Some(4));
    assert_eq!(String::from_utf8_lossy(&output.stderr).lines().count(), 1);
}

#[test]
fn a_driver_that_is_too_old_ends_with_3_and_names_what_it_lacks() {
    let output = TestEnv::new().without("cuMemCreate").probe(&["--quick"]);
    assert_eq!(output.status.code(), Some(3));
    let line = "sluice-gpu-probe: the CUDA driver is too old: it lacks cuMemCreate\n";
    assert_eq!(String::from_utf8_lossy(&output.stderr), line);
}

#[test]
fn a_driver_that_does_not_start_ends_with_3() {
    let output = TestEnv::new().with("SLUICE_STANDIN_FAULTS", "cuInit=999").probe(&[]);
    assert_eq!(output.status.code(), Some(3));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.starts_with("sluice-gpu-probe: cuInit: CUDA_ERROR_UNKNOWN ("), "{stderr}");
}
