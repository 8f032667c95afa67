//! The questions of the probe: its checks as a suite.

use crate::checks::{self, CheckId};
use crate::suite::Suite;

/// All checks of the probe.
pub const SUITE: Suite = Suite { checks: checks::ALL, roles: &[checks::ROLES] };

/// Returns the number of the check that `word` names or numbers.
///
/// # Errors
/// The list of all checks.
pub fn parse_id(word: &str) -> Result<CheckId, String> {
    SUITE.parse_id("questions", word)
}
