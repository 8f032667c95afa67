//! What a soak complains about.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// Something that must not be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// An answer that is not what the tenant answers alone.
    Answer(String),
    /// A request failed although its sidecar was well.
    Failed(String),
    /// Nothing goes on although there is work.
    Stuck(String),
    /// Memory that is lent stays away, or budgets and shares disagree.
    Accounting(String),
    /// More memory is there than the GPU has.
    AboveCapacity(String),
    /// A process ended that nobody had killed.
    Ended(String),
    /// Something is left that nobody needs.
    Leak(String),
    /// A journal does not replay.
    Journal(String),
    /// A directive was refused that is right, or taken that is wrong.
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

/// Findings of all who look.
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
