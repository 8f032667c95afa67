//! [`Row`]: the result of one measurement.

use serde::{Deserialize, Serialize};
use sluice_probe::report::{Answer, CheckResult};
use sluice_probe::statistics::Figure;

/// The result of one measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// Name of the measurement on the command line.
    pub name: String,
    /// What is measured.
    pub text: String,
    /// Whether it was.
    pub outcome: Outcome,
    /// Measured figures; of a failed measurement those before its failure.
    pub figures: Vec<Figure>,
    /// Notes without a figure.
    pub notes: Vec<String>,
    /// Duration in seconds.
    pub seconds: f64,
}

/// Whether something was measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "lowercase", deny_unknown_fields)]
pub enum Outcome {
    /// From start to end.
    Measured,
    /// It ended early.
    Failed {
        /// Why.
        reason: String,
    },
}

impl From<CheckResult> for Row {
    /// A measurement is a check whose answer is yes when it comes to its end.
    fn from(result: CheckResult) -> Row {
        let outcome = match result.answer {
            Answer::Yes => Outcome::Measured,
            Answer::No { reason } | Answer::Unknown { reason } => Outcome::Failed { reason },
        };
        Row {
            name: result.name,
            text: result.question,
            outcome,
            figures: result.figures,
            notes: result.notes,
            seconds: result.seconds,
        }
    }
}

/// Returns the median of a figure of a measurement, if it was measured.
pub fn median(rows: &[Row], measurement: &str, name: &str) -> Option<f64> {
    let row = rows.iter().find(|row| row.name == measurement)?;
    row.figures.iter().find(|figure| figure.name == name).map(|figure| figure.median)
}
