//! Runs the body of a test in a process of its own, whose driver is the stand-in.

use std::path::Path;
use std::process::{Command, Output};

use sluice_cuda_standin::leak_report;
use sluice_cuda_standin::library_folder::LibraryFolder;
use tempfile::TempDir;

/// Names the test whose body this process runs.
const BODY: &str = "SLUICE_STANDIN_TEST_BODY";

/// A machine with one device.
pub struct Machine {
    folder: TempDir,
    library: LibraryFolder,
    variables: Vec<(String, String)>,
}

impl Machine {
    pub fn new() -> Machine {
        // Device memory consists of files, in memory if /dev/shm exists.
        let shm = Path::new("/dev/shm");
        let folder = if shm.is_dir() { TempDir::new_in(shm) } else { TempDir::new() };
        let folder = folder.expect("a folder for tests");
        std::fs::create_dir(folder.path().join("pool")).expect("the folder is ours");
        let library = LibraryFolder::new(folder.path()).and_then(|library| library.with_cublas(12));
        Machine { library: library.expect("the folder is ours"), folder, variables: Vec::new() }
    }

    /// Adds a configuration variable of the stand-in.
    pub fn with(mut self, name: &str, value: &str) -> Machine {
        self.variables.push((name.into(), value.into()));
        self
    }

    /// Changes the library.
    pub fn with_library(
        mut self,
        change: impl FnOnce(LibraryFolder) -> std::io::Result<LibraryFolder>,
    ) -> Machine {
        self.library = change(self.library).expect("the folder is ours");
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
            .env("LD_LIBRARY_PATH", self.library.as_os_str())
            .env("SLUICE_STANDIN_POOL", self.folder.path().join("pool"))
            .env("SLUICE_STANDIN_REPORT", self.folder.path().join("held"))
            .envs(self.variables.iter().cloned());
        command
    }

    /// Asserts that every process that ended by itself had released everything.
    pub fn assert_nothing_held(&self) {
        leak_report::assert_nothing_held(&self.folder.path().join("held"));
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
