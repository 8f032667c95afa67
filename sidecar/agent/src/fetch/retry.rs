//! How often a failed request is tried again, and the report of each failure.

use std::time::Duration;

use sluice_wire::fetched::{Report, Retry};

use super::{FetchError, ProgressReport, with_causes};

/// How often, and how fast, a failure is tried again.
#[derive(Clone, Copy, Debug)]
pub struct RetryPolicy {
    /// Tries without a byte in between.
    pub tries: u32,
    /// Tries while the source cannot be reached, before a download begins. Failures of other kinds do not count.
    pub connect_tries: u32,
    /// Wait before the second try; doubled before each further one.
    pub first: Duration,
    /// Longest wait.
    pub longest: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        let (first, longest) = (Duration::from_millis(500), Duration::from_secs(30));
        RetryPolicy { tries: 8, connect_tries: 8, first, longest }
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
    /// The defaults with these.
    pub fn policy(&self) -> RetryPolicy {
        RetryPolicy { connect_tries: self.connect_tries, ..RetryPolicy::default() }
    }
}

/// Tries again what may succeed later.
pub(crate) async fn again<T>(
    policy: RetryPolicy,
    report: ProgressReport,
    mut attempt: impl AsyncFnMut() -> Result<T, FetchError>,
) -> Result<T, FetchError> {
    let mut retries = Retries::new(policy, report);
    loop {
        match attempt().await {
            Err(error) if error.is_final() => return Err(error),
            Err(error @ FetchError::Unreachable { .. }) => retries.after_unreachable(error).await?,
            Err(error) => retries.after(error).await?,
            done => return done,
        }
    }
}

/// Failures of one request so far.
pub(super) struct Retries {
    policy: RetryPolicy,
    report: ProgressReport,
    failures: u32,
    /// Failures that `connect_tries` bounds; `failures` does not count them.
    unreachable: u32,
    wait: Duration,
}

impl Retries {
    pub(super) fn new(policy: RetryPolicy, report: ProgressReport) -> Self {
        Retries { policy, report, failures: 0, unreachable: 0, wait: policy.first }
    }

    /// Forgets the failures: bytes have come since.
    pub(super) fn restart(&mut self) {
        *self = Retries::new(self.policy, self.report);
    }

    /// Reports a failure and waits, or gives up with it.
    pub(super) async fn after(&mut self, error: FetchError) -> Result<(), FetchError> {
        self.failures += 1;
        self.wait_if(self.failures < self.policy.tries, error).await
    }

    /// As [`Retries::after`], for a source that could not be reached before a download.
    async fn after_unreachable(&mut self, error: FetchError) -> Result<(), FetchError> {
        self.unreachable += 1;
        self.wait_if(self.unreachable < self.policy.connect_tries, error).await
    }

    async fn wait_if(&mut self, again: bool, error: FetchError) -> Result<(), FetchError> {
        if !again {
            return Err(error);
        }
        self.show(&error);
        tokio::time::sleep(self.wait).await;
        self.wait = (self.wait * 2).min(self.policy.longest);
        Ok(())
    }

    fn show(&self, error: &FetchError) {
        let problem = with_causes(error);
        match self.report {
            ProgressReport::Log => tracing::warn!(error = problem, again_in = ?self.wait, "trying again"),
            ProgressReport::Json => {
                let retry_in_ms = u64::try_from(self.wait.as_millis()).unwrap_or(u64::MAX);
                ProgressReport::write(&Report::Retry(Retry { problem, retry_in_ms }));
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
        tries: 4,
        connect_tries: 2,
        first: Duration::from_millis(1),
        longest: Duration::from_millis(1),
    };

    fn busy() -> Result<u32, FetchError> {
        Err(FetchError::status("http://hub/file", StatusCode::SERVICE_UNAVAILABLE))
    }

    fn refused() -> Result<u32, FetchError> {
        Err(FetchError::Unreachable { host: "hub".into(), problem: "connection refused".into() })
    }

    /// How a request ends whose tries have these outcomes, and how many of them are left.
    async fn ends(
        outcomes: impl IntoIterator<Item = Result<u32, FetchError>>,
    ) -> (Result<u32, FetchError>, usize) {
        let mut outcomes: VecDeque<_> = outcomes.into_iter().collect();
        let end = again(POLICY, ProgressReport::Log, async || outcomes.pop_front().unwrap()).await;
        (end, outcomes.len())
    }

    #[tokio::test]
    async fn tries_of_an_unreachable_source_are_counted_apart_from_other_failures() {
        assert!(matches!(ends([busy(), busy(), refused(), Ok(7)]).await, (Ok(7), 0)));
        assert!(matches!(ends([refused(), busy(), busy(), busy(), Ok(7)]).await, (Ok(7), 0)));
        let (end, left) = ends([refused(), busy(), refused(), Ok(7)]).await;
        assert!(matches!(end, Err(FetchError::Unreachable { .. })) && left == 1, "{end:?}, {left} left");
        let (end, left) = ends([busy(), busy(), refused(), busy(), busy(), Ok(7)]).await;
        assert!(matches!(end, Err(FetchError::Status { .. })) && left == 1, "{end:?}, {left} left");
    }
}
