//! What was asked and answered, as JSON and as text.

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::fitness::Fitness;
use crate::machine::Machine;
use crate::statistics::Figure;

mod text;

/// Version of the JSON form: raised when a reader of the older one would misread the newer.
pub const SCHEMA: u32 = 1;

/// A whole run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProbeReport {
    /// [`SCHEMA`].
    pub schema: u32,
    /// When it began, UTC, RFC 3339.
    pub date: String,
    /// The command line.
    pub command: Vec<String>,
    /// Version of the probe.
    pub version: String,
    /// Its commit.
    pub commit: String,
    /// Whether it took fewer samples (`--quick`).
    pub quick: bool,
    /// The device that was asked.
    pub device: DeviceFacts,
    /// The machine that it is in.
    pub machine: Machine,
    /// The answers.
    pub rows: Vec<CheckResult>,
    /// What they mean for a user.
    pub fitness: Fitness,
}

/// What identifies a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceFacts {
    /// Its name.
    pub name: String,
    /// Its UUID.
    pub uuid: String,
    /// Its place on the bus.
    pub pci: String,
    /// Its compute capability.
    pub compute_capability: String,
    /// Its multiprocessors.
    pub multiprocessors: u32,
    /// Bytes of its memory.
    pub memory_bytes: u64,
    /// Version of the driver, such as "580.65.06"; none where neither the kernel nor the library's file name says.
    pub driver: Option<String>,
    /// Version of CUDA that the driver speaks.
    pub cuda: String,
}

/// One question and its answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckResult {
    /// Its number.
    pub id: u8,
    /// Its name on the command line.
    pub name: String,
    /// What was asked.
    pub question: String,
    /// The answer.
    pub answer: Answer,
    /// What was measured.
    pub figures: Vec<Figure>,
    /// What else there is to say.
    pub notes: Vec<String>,
    /// How long it took, seconds.
    pub seconds: f64,
}

/// Yes or no, or why that is not known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "lowercase", deny_unknown_fields)]
pub enum Answer {
    /// It does.
    Yes,
    /// It does not.
    No {
        /// What it did instead.
        reason: String,
    },
    /// It could not be asked.
    Unknown {
        /// Why, in the driver's own words where they are its.
        reason: String,
    },
}

impl Answer {
    /// What an error leaves of a question.
    pub fn unknown(error: &Error) -> Answer {
        Answer::Unknown { reason: error.to_string() }
    }

    /// Yes if `held`, otherwise no because of `reason`.
    pub fn of(held: bool, reason: impl FnOnce() -> String) -> Answer {
        if held { Answer::Yes } else { Answer::No { reason: reason() } }
    }
}

impl ProbeReport {
    /// Whether every question was answered.
    pub fn is_complete(&self) -> bool {
        self.rows.iter().all(|row| !matches!(row.answer, Answer::Unknown { .. }))
    }

    /// As JSON, indented, with a final newline.
    pub fn json(&self) -> String {
        let json = serde_json::to_string_pretty(self).expect("a report has only strings for keys");
        json + "\n"
    }
}
