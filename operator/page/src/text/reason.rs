//! A reason with its level, which the page and the command line show.

use serde::Serialize;

/// How much a reason matters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Nothing is wrong.
    #[default]
    Fine,
    /// It may pass by itself, or has passed a moment ago.
    Watch,
    /// A tenant does not serve as it should.
    Bad,
}

/// One sentence about a tenant, or a few.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Reason {
    /// How much it matters.
    pub level: Level,
    /// What it is about: the same word while only its figures change.
    pub kind: &'static str,
    /// For people.
    pub text: String,
}

impl Reason {
    /// A reason of these parts.
    pub const fn new(level: Level, kind: &'static str, text: String) -> Reason {
        Reason { level, kind, text }
    }
}
