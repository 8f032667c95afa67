//! Errors of the probe.

use std::time::Duration;

use rustix::io::Errno;
use sluice_memory::cuda;

/// An error between the probe and the device.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The driver or the device refused a call.
    #[error(transparent)]
    Cuda(cuda::Error),
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

    /// Returns the error of the driver or the device, if it is one.
    pub fn cuda(&self) -> Option<&cuda::Error> {
        match self {
            Error::Cuda(error) => Some(error),
            _ => None,
        }
    }
}

impl From<cuda::Error> for Error {
    /// A wait for the device that takes too long is a timeout like that for another process.
    fn from(error: cuda::Error) -> Error {
        match error {
            cuda::Error::Timeout { what, limit } => Error::Timeout { what, limit },
            other => Error::Cuda(other),
        }
    }
}
