//! Why a question could not be asked.

use std::time::Duration;

use rustix::io::Errno;

/// Everything that can go wrong between the probe and the device.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No library of the driver can be loaded.
    #[error("no CUDA driver: libcuda.so.1 is not on the library path")]
    NoDriver,
    /// The driver is older than the calls that every question needs.
    #[error("the CUDA driver is too old: it has no {0}")]
    MissingSymbol(&'static str),
    /// The driver is older than the calls that this question needs.
    #[error("this CUDA driver has no {0}")]
    Absent(&'static str),
    /// The device does not exist.
    #[error("no CUDA device {asked}: the driver shows {seen}")]
    NoDevice {
        /// The ordinal that was asked for.
        asked: u32,
        /// Devices that the driver shows.
        seen: u32,
    },
    /// The driver refused a call.
    #[error("{call}: {name} ({words})")]
    Call {
        /// The driver's function.
        call: &'static str,
        /// Its result, as a number.
        code: u32,
        /// The driver's name for it.
        name: String,
        /// The driver's words for it.
        words: String,
    },
    /// The kernel refused a call.
    #[error("{call}: {source}")]
    Kernel {
        /// The system call.
        call: &'static str,
        /// The kernel's reason.
        source: Errno,
    },
    /// Something took longer than it may.
    #[error("{what} took more than {limit:?}")]
    Timeout {
        /// What was waited for.
        what: String,
        /// How long.
        limit: Duration,
    },
    /// The other process ended, or said what nobody understands.
    #[error("the process '{role}' {what}")]
    Peer {
        /// Its part.
        role: String,
        /// What it did.
        what: String,
    },
    /// The device's memory does not hold what the question needs.
    #[error("needs {needed} MiB of device memory, {free} MiB are free")]
    Memory {
        /// MiB that the question takes.
        needed: u64,
        /// MiB that the driver says are free.
        free: u64,
    },
    /// The device did something else than it was told to: an answer, and no obstacle to one.
    #[error("the device {0}")]
    Otherwise(String),
    /// A message between the probe's processes is too long to be read whole.
    #[error("a message of more than {limit} bytes")]
    TooLong {
        /// The most.
        limit: usize,
    },
    /// A message is not what its reader expects.
    #[error("a message of the wrong form: {0}")]
    Message(#[from] serde_json::Error),
}

impl Error {
    /// For `map_err` of a system call.
    pub fn kernel(call: &'static str) -> impl FnOnce(Errno) -> Error {
        move |source| Error::Kernel { call, source }
    }

    /// Whether no driver can be used at all, as opposed to one that shows no device or refuses a call.
    pub fn is_no_driver(&self) -> bool {
        match self {
            Error::NoDriver | Error::MissingSymbol(_) => true,
            Error::Call { call: "cuInit", code, .. } => *code != NO_DEVICE,
            _ => false,
        }
    }

    /// Whether a driver works and has no such device.
    pub fn is_no_device(&self) -> bool {
        matches!(self, Error::NoDevice { .. } | Error::Call { call: "cuInit", code: NO_DEVICE, .. })
    }
}

/// `CUDA_ERROR_NO_DEVICE`.
const NO_DEVICE: u32 = 100;
