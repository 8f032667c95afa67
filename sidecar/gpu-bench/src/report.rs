//! The results of a run, as JSON and as text.

use serde::{Deserialize, Serialize};
use sluice_probe::machine::Machine;
use sluice_probe::report::DeviceFacts;

use crate::limits::Judged;
use crate::profile::Prediction;
use crate::row::{Outcome, Row};

mod text;

/// Version of the JSON form: increased if a reader of the older form would misread the newer one.
pub const SCHEMA: u32 = 1;

/// A whole run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BenchReport {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Start time, UTC, RFC 3339.
    pub date: String,
    /// The command line.
    pub command: Vec<String>,
    /// Version of the benchmark.
    pub version: String,
    /// Commit of the benchmark.
    pub commit: String,
    /// Whether the run took fewer samples and smaller sizes (`--quick`).
    pub quick: bool,
    /// Whether the driver is the stand-in over host memory: then no figure says anything about a GPU.
    pub stand_in: bool,
    /// The measured device.
    pub device: DeviceFacts,
    /// The device's machine.
    pub machine: Machine,
    /// Results of the measurements.
    pub rows: Vec<Row>,
    /// The limits with value and verdict.
    pub limits: Vec<Judged>,
    /// Times of steps that the simulator predicts for the measured machine; empty without a machine profile.
    pub predictions: Vec<Prediction>,
}

impl BenchReport {
    /// Whether everything was measured.
    pub fn is_complete(&self) -> bool {
        self.rows.iter().all(|row| row.outcome == Outcome::Measured)
    }

    /// Returns the report as indented JSON with a final newline.
    pub fn json(&self) -> String {
        let json = serde_json::to_string_pretty(self).expect("a report has only strings for keys");
        json + "\n"
    }
}
