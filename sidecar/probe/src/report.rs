//! The questions and answers of a run, as JSON and as text.

use serde::{Deserialize, Serialize};

use crate::fitness::Fitness;
use crate::machine::Machine;

mod answer;
mod check_result;
mod device_facts;
pub mod text;

pub use answer::Answer;
pub use check_result::CheckResult;
pub use device_facts::DeviceFacts;

/// Version of the JSON form: increased if a reader of the older form would misread the newer one.
pub const SCHEMA: u32 = 1;

/// A whole run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProbeReport {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Start time, UTC, RFC 3339.
    pub date: String,
    /// The command line.
    pub command: Vec<String>,
    /// Version of the probe.
    pub version: String,
    /// Commit of the probe.
    pub commit: String,
    /// Whether the run took fewer samples (`--quick`).
    pub quick: bool,
    /// The tested device.
    pub device: DeviceFacts,
    /// The device's machine.
    pub machine: Machine,
    /// Results of the checks.
    pub rows: Vec<CheckResult>,
    /// Conclusions for a user.
    pub fitness: Fitness,
}

impl ProbeReport {
    /// Whether every check has an answer.
    pub fn is_complete(&self) -> bool {
        self.rows.iter().all(|row| !matches!(row.answer, Answer::Unknown { .. }))
    }

    /// Returns the report as indented JSON with a final newline.
    pub fn json(&self) -> String {
        let json = serde_json::to_string_pretty(self).expect("a report has only strings for keys");
        json + "\n"
    }
}
