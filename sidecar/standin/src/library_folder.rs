//! A folder for the library path of tests, in which every library of CUDA is this one.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::driver_pose::DriverPose;

/// The name of the driver's library.
const DRIVER: &str = "libcuda.so.1";

/// A folder that a test puts on `LD_LIBRARY_PATH`. Its names lead to one file, which a process therefore loads once:
/// driver and cuBLASLt share their streams.
///
/// The exported names of a shared library are fixed when it is loaded. A library that poses as an older driver is
/// therefore a copy in which the names of newer functions are others.
#[derive(Debug)]
pub struct LibraryFolder {
    path: PathBuf,
}

impl LibraryFolder {
    /// Makes the driver's library in an existing folder: a symbolic link to the stand-in.
    pub fn new(path: &Path) -> io::Result<Self> {
        std::os::unix::fs::symlink(built_library()?, path.join(DRIVER))?;
        Ok(Self { path: path.to_owned() })
    }

    /// Makes cuBLASLt of this major version of CUDA.
    pub fn with_cublas(self, major: u32) -> io::Result<Self> {
        std::os::unix::fs::symlink(DRIVER, self.path.join(format!("libcublasLt.so.{major}")))?;
        Ok(self)
    }

    /// Makes the library one without this function: a copy in which its name is another of the same length.
    ///
    /// # Panics
    /// If the library has no such function.
    pub fn without(self, function: &str) -> io::Result<Self> {
        let place = self.path.join(DRIVER);
        let mut bytes = fs::read(&place)?;
        let wanted = format!("\0{function}\0").into_bytes();
        let found: Vec<usize> =
            (0..=bytes.len() - wanted.len()).filter(|at| bytes[*at..].starts_with(&wanted)).collect();
        assert!(!found.is_empty(), "the stand-in has {function}");
        found.iter().for_each(|at| bytes[at + 1] = b'x');
        fs::remove_file(&place)?;
        fs::write(&place, bytes)?;
        Ok(self)
    }

    /// Makes the library one without the functions that a driver of this version lacks ("12.0"). The variable
    /// `SLUICE_STANDIN_DRIVER` must name the same version, as it does in
    /// [`crate::test_machine::TestMachine::of_driver`].
    pub fn of_driver(self, version: &str) -> io::Result<Self> {
        DriverPose::named(Some(version)).absent().try_fold(self, Self::without)
    }

    /// Returns the value for `LD_LIBRARY_PATH`.
    pub fn as_os_str(&self) -> &OsStr {
        self.path.as_os_str()
    }
}

/// Returns the path of the dynamic library: cargo builds it next to the test that depends on this crate.
fn built_library() -> io::Result<PathBuf> {
    let test = std::env::current_exe()?;
    let library = test.parent().unwrap_or(Path::new("/")).join("libsluice_cuda_standin.so");
    if library.is_file() {
        return Ok(library);
    }
    Err(io::Error::new(io::ErrorKind::NotFound, format!("{} is not built", library.display())))
}
