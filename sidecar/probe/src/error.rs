//! Errors of the probe.

use std::time::Duration;

use rustix::io::Errno;

/// An error between the probe and the device.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The driver's library cannot be loaded.
    #[error("no CUDA driver: libcuda.so.1 is not on the library path")]
    NoDriver,
    /// The driver lacks a function that every check needs.
    #[error("the CUDA driver is too old: it lacks {0}")]
    MissingSymbol(&'static str),
    /// The driver lacks a function that this check needs.
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
    /// The other process exited or sent an unexpected message.
    #[error("the process '{role}' {what}")]
    Peer {
        /// Role of the process.
        role: String,
        /// Description of its behavior.
        what: String,
    },
    /// The device has too little free memory for the check.
    #[error("needs {needed} MiB of device memory, {free} MiB are free")]
    Memory {
        /// Required MiB.
        needed: u64,
        /// Free MiB according to the driver.
        free: u64,
    },
    /// The device did not do what it was ordered to do. This is an answer to the check, not an obstacle.
    #[error("the device {0}")]
    Otherwise(String),
    /// A message between the probe's processes exceeds the limit.
    #[error("a message exceeds {limit} bytes")]
    TooLong {
        /// Maximum size in bytes.
        limit: usize,
    },
    /// A message does not have the form that its reader expects.
    #[error("a message is not valid: {0}")]
    Message(#[from] serde_json::Error),
}

impl Error {
    /// Returns a function for `map_err` of a system call.
    pub fn kernel(call: &'static str) -> impl FnOnce(Errno) -> Error {
        move |source| Error::Kernel { call, source }
    }

    /// Whether no usable driver exists, as opposed to a driver that has no device or refuses a call.
    pub fn is_no_driver(&self) -> bool {
        match self {
            Error::NoDriver | Error::MissingSymbol(_) => true,
            Error::Call { call: "cuInit", code, .. } => *code != NO_DEVICE,
            _ => false,
        }
    }

    /// Whether the driver works but does not have the device.
    pub fn is_no_device(&self) -> bool {
        matches!(self, Error::NoDevice { .. } | Error::Call { call: "cuInit", code: NO_DEVICE, .. })
    }
}

/// `CUDA_ERROR_NO_DEVICE`.
const NO_DEVICE: u32 = 100;
