//! Runs the body of a test in a process of its own, whose driver is the stand-in.

use std::process::{Command, Output};

use sluice_cuda_standin::test_machine::{TestMachine, folder_in_memory};
use tempfile::TempDir;

/// Names the test whose body this process runs.
const BODY: &str = "SLUICE_STANDIN_TEST_BODY";

/// A machine with one device.
pub struct Machine {
    machine: TestMachine,
    _folder: TempDir,
}

impl Machine {
    pub fn new() -> Machine {
        let folder = TempDir::new_in(folder_in_memory()).expect("a folder for tests");
        let machine = TestMachine::new(folder.path()).expect("the folder is ours");
        let machine = machine.with_library(|library| library.with_cublas(12)).expect("the folder is ours");
        Machine { machine, _folder: folder }
    }

    /// Adds a configuration variable of the stand-in.
    pub fn with(mut self, name: &'static str, value: &str) -> Machine {
        self.machine = self.machine.with(name, value);
        self
    }

    /// Makes the driver one of this version of CUDA.
    pub fn of_driver(mut self, version: &str) -> Machine {
        self.machine = self.machine.of_driver(version).expect("the folder is ours");
        self
    }

    /// Runs `body` in a process that sees this machine, checks that it succeeds and that it releases everything.
    /// `name` is the path of the calling test in this binary, as `cublas::products_are_right`.
    pub fn run(self, name: &str, body: impl FnOnce()) {
        if is_body(name) {
            return body();
        }
        self.check(&self.start(name));
        self.assert_nothing_held();
    }

    /// As [`Machine::run`], for a body that ends with a fault of the device: its calls to release fail.
    pub fn run_to_fault(self, name: &str, body: impl FnOnce()) -> Option<String> {
        if is_body(name) {
            body();
            return None;
        }
        let output = self.start(name);
        self.check(&output);
        Some(String::from_utf8_lossy(&output.stderr).into_owned())
    }

    /// As [`Machine::run`]. Returns what the process wrote to stderr, and in that process nothing.
    pub fn run_noisy(self, name: &str, body: impl FnOnce()) -> Option<String> {
        if is_body(name) {
            body();
            return None;
        }
        let output = self.start(name);
        self.check(&output);
        self.assert_nothing_held();
        Some(String::from_utf8_lossy(&output.stderr).into_owned())
    }

    /// Returns a process that runs the body of a test.
    pub fn command(&self, name: &str) -> Command {
        let mut command = Command::new(std::env::current_exe().expect("this test is a file"));
        command
            .args(["--exact", name, "--nocapture", "--test-threads", "1"])
            .env(BODY, name)
            .envs(self.machine.variables());
        command
    }

    /// Asserts that every process that ended by itself had released everything.
    pub fn assert_nothing_held(&self) {
        self.machine.assert_nothing_held();
    }

    fn start(&self, name: &str) -> Output {
        self.command(name).output().expect("the process starts")
    }

    fn check(&self, output: &Output) {
        let (text, errors) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && text.contains("1 passed"), "{text}{errors}");
    }
}

/// Whether this process runs the body of this test.
pub fn is_body(name: &str) -> bool {
    std::env::var(BODY).is_ok_and(|body| body == name)
}
