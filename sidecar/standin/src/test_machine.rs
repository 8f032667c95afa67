//! A machine with one device, for processes that tests start.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::{env, fs, io};

use crate::leak_report;
use crate::library_folder::LibraryFolder;

/// Libraries, the memory of one device and the report of what processes hold at exit, in a folder of a test. The
/// library path of a process is fixed when it starts, so a test gives [`TestMachine::variables`] to a process of its own.
#[derive(Debug)]
pub struct TestMachine {
    library: LibraryFolder,
    report: PathBuf,
    variables: Vec<(&'static str, OsString)>,
}

impl TestMachine {
    /// Makes the folders `lib` and `pool` in an existing one, which outlives all processes of the machine.
    pub fn new(folder: &Path) -> io::Result<Self> {
        let [libraries, pool, report] = ["lib", "pool", "held"].map(|name| folder.join(name));
        fs::create_dir(&libraries)?;
        fs::create_dir(&pool)?;
        let machine = Self { library: LibraryFolder::new(&libraries)?, report, variables: Vec::new() };
        let report = machine.report.clone();
        Ok(machine
            .with("LD_LIBRARY_PATH", libraries)
            .with("SLUICE_STANDIN_POOL", pool)
            .with("SLUICE_STANDIN_REPORT", report))
    }

    /// Adds a variable. Of two with one name the later one holds.
    pub fn with(mut self, name: &'static str, value: impl Into<OsString>) -> Self {
        self.variables.push((name, value.into()));
        self
    }

    /// Changes the libraries.
    pub fn with_library(
        mut self,
        change: impl FnOnce(LibraryFolder) -> io::Result<LibraryFolder>,
    ) -> io::Result<Self> {
        self.library = change(self.library)?;
        Ok(self)
    }

    /// Makes the driver one of this version of CUDA, such as "12.0": what it says of itself, and the functions that it
    /// lacks.
    pub fn of_driver(self, version: &str) -> io::Result<Self> {
        let machine = self.with_library(|library| library.of_driver(version))?;
        Ok(machine.with("SLUICE_STANDIN_DRIVER", version))
    }

    /// Returns what the environment of a process on this machine has.
    pub fn variables(&self) -> impl Iterator<Item = (&'static str, &OsStr)> {
        self.variables.iter().map(|(name, value)| (*name, value.as_os_str()))
    }

    /// Asserts that every process that ended by itself had released everything. Returns their number.
    ///
    /// # Panics
    /// If one still held something, or if none has reported.
    pub fn assert_nothing_held(&self) -> usize {
        leak_report::assert_nothing_held(&self.report)
    }
}

/// Returns the place for folders of machines: memory, if /dev/shm exists, because device memory consists of files.
pub fn folder_in_memory() -> PathBuf {
    let shm = Path::new("/dev/shm");
    if shm.is_dir() { shm.to_owned() } else { env::temp_dir() }
}
