//! Retries of failed requests, and the report of each failure.

use std::time::Duration;

use sluice_common::back_off::BackOff;
use sluice_wire::download::{DownloadReport, Retry};

use super::{DownloadError, ProgressOutput, error_chain};

/// Number and timing of retries.
#[derive(Clone, Copy, Debug)]
pub struct RetryPolicy {
    /// Tries without a received byte in between.
    pub max_tries: u32,
    /// Tries to reach the source before a download begins. Failures of other kinds do not count.
    pub connect_tries: u32,
    /// Wait before the second try; doubled before each further try.
    pub initial_backoff: Duration,
    /// Longest wait.
    pub max_backoff: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        let (first, longest) = (Duration::from_millis(500), Duration::from_secs(30));
        RetryPolicy { max_tries: 8, connect_tries: 8, initial_backoff: first, max_backoff: longest }
    }
}

/// How often a failure is tried again, on the command line.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct RetryArgs {
    /// Tries while the source cannot be reached, before a download begins.
    #[arg(
        long, value_name = "N", global = true, default_value_t = RetryPolicy::default().connect_tries,
        value_parser = clap::value_parser!(u32).range(1..=1000)
    )]
    connect_tries: u32,
}

impl RetryArgs {
    /// Returns the default policy with these arguments.
    pub fn policy(&self) -> RetryPolicy {
        RetryPolicy { connect_tries: self.connect_tries, ..RetryPolicy::default() }
    }
}

/// Runs `attempt` until it succeeds, fails finally, or the tries are used up.
pub(crate) async fn with_retries<T>(
    policy: RetryPolicy,
    report: ProgressOutput,
    mut attempt: impl AsyncFnMut() -> Result<T, DownloadError>,
) -> Result<T, DownloadError> {
    let mut retries = RetryState::new(policy, report);
    loop {
        match attempt().await {
            Err(error) if error.is_final() => return Err(error),
            Err(error @ DownloadError::Unreachable { .. }) => retries.wait_after_unreachable(error).await?,
            Err(error) => retries.wait_after(error).await?,
            done => return done,
        }
    }
}

/// Failures of one request so far.
pub(super) struct RetryState {
    policy: RetryPolicy,
    report: ProgressOutput,
    failures: u32,
    /// Failures that `connect_tries` bounds; `failures` does not count them.
    connect_failures: u32,
    back_off: BackOff,
}

impl RetryState {
    pub(super) fn new(policy: RetryPolicy, report: ProgressOutput) -> Self {
        let back_off = BackOff::new(policy.initial_backoff, policy.max_backoff);
        RetryState { policy, report, failures: 0, connect_failures: 0, back_off }
    }

    /// Resets the failures, because bytes have arrived since.
    pub(super) fn reset(&mut self) {
        *self = RetryState::new(self.policy, self.report);
    }

    /// Reports a failure and waits, or returns the failure if the tries are used up.
    pub(super) async fn wait_after(&mut self, error: DownloadError) -> Result<(), DownloadError> {
        self.failures += 1;
        self.wait_or_fail(self.failures < self.policy.max_tries, error).await
    }

    /// As [`RetryState::wait_after`], for a source that could not be reached before a download.
    async fn wait_after_unreachable(&mut self, error: DownloadError) -> Result<(), DownloadError> {
        self.connect_failures += 1;
        self.wait_or_fail(self.connect_failures < self.policy.connect_tries, error).await
    }

    async fn wait_or_fail(&mut self, again: bool, error: DownloadError) -> Result<(), DownloadError> {
        if !again {
            return Err(error);
        }
        self.report_retry(&error);
        tokio::time::sleep(self.back_off.next_delay()).await;
        Ok(())
    }

    fn report_retry(&self, error: &DownloadError) {
        let problem = error_chain(error);
        match self.report {
            ProgressOutput::Log => {
                let again_in = self.back_off.delay();
                tracing::warn!(error = problem, ?again_in, "a download failed and is tried again");
            }
            ProgressOutput::Json => {
                let retry_in_ms = u64::try_from(self.back_off.delay().as_millis()).unwrap_or(u64::MAX);
                ProgressOutput::write(&DownloadReport::Retry(Retry { problem, retry_in_ms }));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use reqwest::StatusCode;

    use super::*;

    const POLICY: RetryPolicy = RetryPolicy {
        max_tries: 4,
        connect_tries: 2,
        initial_backoff: Duration::from_millis(1),
        max_backoff: Duration::from_millis(1),
    };

    fn busy() -> Result<u32, DownloadError> {
        Err(DownloadError::status("http://hub/file", StatusCode::SERVICE_UNAVAILABLE))
    }

    fn refused() -> Result<u32, DownloadError> {
        Err(DownloadError::Unreachable { host: "hub".into(), problem: "connection refused".into() })
    }

    /// Returns the result of a request whose tries have these outcomes, and how many outcomes are left.
    async fn run_attempts(
        outcomes: impl IntoIterator<Item = Result<u32, DownloadError>>,
    ) -> (Result<u32, DownloadError>, usize) {
        let mut outcomes: VecDeque<_> = outcomes.into_iter().collect();
        let end = with_retries(POLICY, ProgressOutput::Log, async || outcomes.pop_front().unwrap()).await;
        (end, outcomes.len())
    }

    #[tokio::test]
    async fn unreachable_source_has_its_own_retry_budget() {
        assert!(matches!(run_attempts([busy(), busy(), refused(), Ok(7)]).await, (Ok(7), 0)));
        assert!(matches!(run_attempts([refused(), busy(), busy(), busy(), Ok(7)]).await, (Ok(7), 0)));
        let (end, left) = run_attempts([refused(), busy(), refused(), Ok(7)]).await;
        assert!(matches!(end, Err(DownloadError::Unreachable { .. })) && left == 1, "{end:?}, {left} left");
        let (end, left) = run_attempts([busy(), busy(), refused(), busy(), busy(), Ok(7)]).await;
        assert!(matches!(end, Err(DownloadError::Status { .. })) && left == 1, "{end:?}, {left} left");
    }
}
