//! The asynchronous runtime of a sidecar, and the signals that end it.

use tokio::signal::unix::{SignalKind, signal};

use super::failure::{Failure, other_error};

/// Returns the runtime that serves HTTP.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().map_err(other_error)
}

/// Waits for SIGTERM or SIGINT.
pub(crate) async fn wait_for_signal() -> Result<(), Failure> {
    let mut terminate = signal(SignalKind::terminate()).map_err(other_error)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(other_error)?;
    tokio::select! {
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
    }
}
