//! How often a failure is tried again, and what is reported meanwhile.

use std::time::Duration;

use sluice_wire::fetched::{Report, Retry};

use super::{FetchError, ProgressReport, with_causes};

/// How often, and how fast, a failure is tried again.
#[derive(Clone, Copy, Debug)]
pub struct RetryPolicy {
    /// Tries without a byte in between.
    pub tries: u32,
    /// Tries of a request before the download that no service answers: the name of its host has no address, or it refuses the
    /// connection.
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
    /// How often a source is asked that cannot be reached, before a download begins.
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
            Err(error @ FetchError::Unreachable { .. }) => {
                retries.within(policy.connect_tries, error).await?
            }
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
    wait: Duration,
}

impl Retries {
    pub(super) fn new(policy: RetryPolicy, report: ProgressReport) -> Self {
        Retries { policy, report, failures: 0, wait: policy.first }
    }

    /// Forgets the failures: bytes have come since.
    pub(super) fn restart(&mut self) {
        *self = Retries::new(self.policy, self.report);
    }

    /// Reports a failure and waits, or gives up with it.
    pub(super) async fn after(&mut self, error: FetchError) -> Result<(), FetchError> {
        self.within(self.policy.tries, error).await
    }

    async fn within(&mut self, tries: u32, error: FetchError) -> Result<(), FetchError> {
        self.failures += 1;
        if self.failures >= tries {
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
