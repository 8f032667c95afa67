//! [`Error`].

use std::time::Duration;

use rustix::io::Errno;

/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: u32 = 2;
/// `CUDA_ERROR_NO_DEVICE`.
const NO_DEVICE: u32 = 100;

/// Why the driver or the kernel refused a call.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The driver's library cannot be loaded.
    #[error("no CUDA driver: libcuda.so.1 is not on the library path")]
    NoDriver,
    /// The driver's library is there, and the loader refuses it.
    #[error("no CUDA driver: the loader refuses libcuda.so.1: {0}")]
    UnloadableDriver(String),
    /// The driver lacks a function that every user of it needs.
    #[error("the CUDA driver is too old: it lacks {0}")]
    MissingSymbol(&'static str),
    /// The driver lacks an optional function that this call needs.
    #[error("this CUDA driver lacks {0}")]
    Absent(&'static str),
    /// The device does not exist.
    #[error("there is no CUDA device {asked}: the driver reports {seen}")]
    NoDevice {
        /// Requested index.
        asked: u32,
        /// Number of devices in the driver.
        seen: u32,
    },
    /// No device has the UUID.
    #[error("there is no CUDA device {asked}: this process sees {seen}")]
    NoDeviceWithUuid {
        /// Requested UUID.
        asked: String,
        /// UUIDs of the devices that the driver reports.
        seen: String,
    },
    /// The driver refused a call.
    #[error("{call}: {name} ({words})")]
    Call {
        /// Function of the driver.
        call: &'static str,
        /// Numeric result.
        code: u32,
        /// The driver's name for the result.
        name: String,
        /// The driver's message.
        words: String,
    },
    /// No file of cuBLASLt that fits the driver can be loaded.
    #[error("no cuBLASLt: {files} is not on the library path, and the driver is of CUDA {cuda}")]
    NoCublasLt {
        /// Names of the files.
        files: String,
        /// The CUDA version of the driver.
        cuda: String,
    },
    /// cuBLASLt lacks a function.
    #[error("{file} is too old: it lacks {lacks}")]
    OldCublasLt {
        /// Name of its file.
        file: String,
        /// The function.
        lacks: &'static str,
    },
    /// cuBLASLt refused a call.
    #[error("{call}: {status}")]
    CublasLt {
        /// Its function.
        call: &'static str,
        /// The name of its status.
        status: String,
    },
    /// The kernel refused a call.
    #[error("{call}: {source}")]
    Kernel {
        /// The system call.
        call: &'static str,
        /// Error of the kernel.
        source: Errno,
    },
    /// A wait exceeded its time limit.
    #[error("{what} took more than {limit:?}")]
    Timeout {
        /// The awaited event.
        what: String,
        /// Time limit.
        limit: Duration,
    },
}

impl Error {
    /// Returns a function for `map_err` of a system call.
    pub fn kernel(call: &'static str) -> impl FnOnce(Errno) -> Error {
        move |source| Error::Kernel { call, source }
    }

    /// Whether no usable driver exists, as opposed to a driver that has no device or refuses a call.
    pub fn is_no_driver(&self) -> bool {
        match self {
            Error::NoDriver | Error::UnloadableDriver(_) | Error::MissingSymbol(_) => true,
            Error::Call { call: "cuInit", code, .. } => *code != NO_DEVICE,
            _ => false,
        }
    }

    /// Whether the driver works but does not have the device.
    pub fn is_no_device(&self) -> bool {
        matches!(
            self,
            Error::NoDevice { .. }
                | Error::NoDeviceWithUuid { .. }
                | Error::Call { call: "cuInit", code: NO_DEVICE, .. }
        )
    }

    /// Whether the device has no memory for the call.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Error::Call { code: OUT_OF_MEMORY, .. })
    }
}
