//! Credentials in files that change while the sidecar runs: looked at every few seconds, by content.
//!
//! A kubelet swaps the files of a Secret by a symbolic link (`..data`), so a path is opened anew at every look. Watching
//! for events would have to follow those links, and is silent on some file systems.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::gateway::serve::wait_for_stop;
use crate::metrics::Metrics;

/// How often files are looked at.
pub const RELOAD_INTERVAL: Duration = Duration::from_secs(5);

/// What is read again.
pub trait ReloadableCredentials: Send + Sync + 'static {
    /// Why files cannot be used.
    type Error: Display + Send;
    /// In metrics and logs.
    const NAME: &'static str;

    /// Reads the files again; true = they have changed and are in force.
    ///
    /// # Errors
    /// They cannot be used; then everything stays as it was.
    fn reload(&self) -> Result<bool, Self::Error>;
}

/// Reads `credentials` again every so often until `stop`. Files that cannot be used are logged once, and shown by the
/// metrics as long as they stay so.
pub async fn reload_until_stopped<C: ReloadableCredentials>(
    credentials: Arc<C>,
    every: Duration,
    stop: watch::Receiver<bool>,
    metrics: Arc<Metrics>,
) {
    let mut reported = None;
    metrics.set_credentials_valid(C::NAME, true);
    while tokio::time::timeout(every, wait_for_stop(stop.clone())).await.is_err() {
        let read = credentials.clone();
        let reloaded = tokio::task::spawn_blocking(move || read.reload()).await;
        let problem = match reloaded.expect("reading credentials does not panic") {
            Ok(true) => {
                tracing::info!(credentials = C::NAME, "credentials have changed and are in force");
                None
            }
            Ok(false) => None,
            Err(error) => Some(error.to_string()),
        };
        metrics.set_credentials_valid(C::NAME, problem.is_none());
        if let Some(error) = problem.as_ref().filter(|_| problem != reported) {
            tracing::error!(
                credentials = C::NAME,
                error,
                "credentials have changed and cannot be used; the old ones stay"
            );
        }
        reported = problem;
    }
}
