//! [`Check`].

use std::time::Duration;

use crate::Error;
use crate::bench::Bench;
use crate::report::Answer;
use crate::results::Findings;

/// Number of a check.
pub type CheckId = u8;

/// One check of the device.
#[derive(Clone, Copy, Debug)]
pub struct Check {
    /// Number of the check.
    pub id: CheckId,
    /// Name on the command line.
    pub name: &'static str,
    /// Question that the check answers.
    pub text: &'static str,
    /// Maximum device memory in MiB, without contexts.
    pub mib: u64,
    /// Maximum device memory in MiB with `--quick`, without contexts.
    pub quick_mib: u64,
    /// Maximum run time; then the check is killed.
    pub limit: Duration,
    /// Runs the check. Its findings are sent at once and are kept if it fails later.
    pub ask: fn(&Bench, &mut Findings<'_>) -> Result<Answer, Error>,
}
