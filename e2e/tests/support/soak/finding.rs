//! Findings of a soak.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// A problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// An answer that differs from the tenant's answer alone.
    Answer(String),
    /// A request failed although its sidecar was not killed.
    Failed(String),
    /// No progress although there is work.
    Stuck(String),
    /// Lent memory is not returned, or budgets and shares disagree.
    Accounting(String),
    /// More memory is allocated than the GPU has.
    AboveCapacity(String),
    /// A process exited that the plan had not killed.
    Ended(String),
    /// Unused resources remain.
    Leak(String),
    /// A journal does not replay.
    Journal(String),
    /// A valid directive was refused, or an invalid one accepted.
    Directive(String),
}

impl fmt::Display for Finding {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, text) = match self {
            Finding::Answer(text) => ("another answer", text),
            Finding::Failed(text) => ("a failed request", text),
            Finding::Stuck(text) => ("stuck", text),
            Finding::Accounting(text) => ("the books", text),
            Finding::AboveCapacity(text) => ("above the capacity", text),
            Finding::Ended(text) => ("an unplanned end", text),
            Finding::Leak(text) => ("left over", text),
            Finding::Journal(text) => ("a journal", text),
            Finding::Directive(text) => ("a directive", text),
        };
        write!(to, "{kind}: {text}")
    }
}

/// Findings of all checks.
#[derive(Clone, Debug, Default)]
pub struct Findings(Arc<Mutex<Vec<Finding>>>);

impl Findings {
    /// Adds one.
    pub fn add(&self, finding: Finding) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(finding);
    }

    /// All so far.
    pub fn all(&self) -> Vec<Finding> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
