//! [`CheckResult`].

use serde::{Deserialize, Serialize};

use super::answer::Answer;
use crate::statistics::Figure;

/// Result of one check.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckResult {
    /// Number of the check.
    pub id: u8,
    /// Name of the check on the command line.
    pub name: String,
    /// Question of the check.
    pub question: String,
    /// The answer.
    pub answer: Answer,
    /// Measured figures.
    pub figures: Vec<Figure>,
    /// Notes without a figure.
    pub notes: Vec<String>,
    /// Duration in seconds.
    pub seconds: f64,
}
