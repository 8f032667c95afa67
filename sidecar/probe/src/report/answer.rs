//! [`Answer`].

use serde::{Deserialize, Serialize};

use crate::Error;

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
