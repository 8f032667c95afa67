//! [`ServedError`].

use std::io;
use std::path::{Path, PathBuf};

use sluice_kernels::generate::GenerateError;
use sluice_probe::Error;

/// Why tenants did not serve a load.
#[derive(Debug, thiserror::Error)]
pub enum ServedError {
    /// A binary of the product is missing.
    #[error("{0} is not in $SLUICE_BIN_DIR, not in the folder of this program and not on PATH")]
    NoBinary(&'static str),
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The model could not be made.
    #[error(transparent)]
    Model(#[from] GenerateError),
    /// The driver did not answer.
    #[error(transparent)]
    Driver(#[from] sluice_memory::cuda::Error),
    /// A sidecar has exited.
    #[error("the sidecar of {tenant} ended with {status}: {log}")]
    Ended {
        /// Name of its tenant.
        tenant: String,
        /// How it ended.
        status: String,
        /// The last lines of its log.
        log: String,
    },
    /// A sidecar did not do something in time.
    #[error("the sidecar of {tenant} did not {what} in {seconds} s: {log}")]
    Late {
        /// Name of its tenant.
        tenant: String,
        /// What was awaited.
        what: &'static str,
        /// The limit.
        seconds: u64,
        /// The last lines of its log.
        log: String,
    },
    /// A request was not answered.
    #[error("{request}: {source}")]
    Request {
        /// Method and path.
        request: String,
        /// Error of the connection.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A request was refused, or answered with something else than was asked for.
    #[error("{request}: answered: {answer}")]
    Answer {
        /// Method and path.
        request: String,
        /// The status line, or what is wrong.
        answer: String,
    },
}

impl ServedError {
    /// Returns a function for `map_err` of an operation on a file.
    pub fn file(path: &Path) -> impl FnOnce(io::Error) -> ServedError {
        |source| ServedError::File { path: path.to_owned(), source }
    }
}

impl From<ServedError> for Error {
    fn from(error: ServedError) -> Error {
        Error::Peer { role: "tenant".into(), what: format!("did not serve the load: {error}") }
    }
}
