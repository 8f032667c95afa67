//! Reloads credentials whose files change while the sidecar runs. Polls their contents every few seconds.
//!
//! A kubelet replaces the files of a Secret through a symbolic link (`..data`), so each poll opens the paths again.
//! File events would require following those links, and some file systems report none.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::gateway::serve::wait_for_stop;
use crate::metrics::Metrics;

/// Poll interval.
pub const RELOAD_INTERVAL: Duration = Duration::from_secs(5);

/// Credentials that can be reloaded.
pub trait ReloadableCredentials: Send + Sync + 'static {
    /// Reason why the files cannot be used.
    type Error: Display + Send;
    /// Name in metrics and logs.
    const NAME: &'static str;

    /// Reads the files again. Returns true if they have changed and are in force.
    ///
    /// # Errors
    /// The files cannot be used. Then the old credentials stay in force.
    fn reload(&self) -> Result<bool, Self::Error>;
}

/// Reloads `credentials` at each interval `every` until `stop`. Logs an unusable file once, and reports it in the
/// metrics while it lasts.
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
                tracing::info!(credentials = C::NAME, "the files of credentials changed: using the new ones");
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
                "the files of credentials changed but cannot be used: keeping the old ones"
            );
        }
        reported = problem;
    }
}
