//! The questions and answers of a run, as JSON and as text.

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::fitness::Fitness;
use crate::machine::Machine;
use crate::statistics::Figure;

mod text;

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

/// Identity of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceFacts {
    /// Name.
    pub name: String,
    /// UUID.
    pub uuid: String,
    /// PCI address.
    pub pci: String,
    /// Compute capability.
    pub compute_capability: String,
    /// Number of multiprocessors.
    pub multiprocessors: u32,
    /// Bytes of device memory.
    pub memory_bytes: u64,
    /// Version of the driver, such as "580.65.06"; `None` if neither the kernel nor the library's file name shows it.
    pub driver: Option<String>,
    /// CUDA version of the driver.
    pub cuda: String,
}

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

/// Yes, no, or the reason why the answer is unknown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "lowercase", deny_unknown_fields)]
pub enum Answer {
    /// The device does it.
    Yes,
    /// The device does not do it.
    No {
        /// What the device did instead.
        reason: String,
    },
    /// The check could not run.
    Unknown {
        /// Reason, with the driver's message if there is one.
        reason: String,
    },
}

impl Answer {
    /// Returns the answer of a check that failed with `error`.
    pub fn unknown(error: &Error) -> Answer {
        Answer::Unknown { reason: error.to_string() }
    }

    /// Returns yes if `held`, otherwise no with `reason`.
    pub fn of(held: bool, reason: impl FnOnce() -> String) -> Answer {
        if held { Answer::Yes } else { Answer::No { reason: reason() } }
    }
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
