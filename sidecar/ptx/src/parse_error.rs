//! Why a text was refused.

use std::fmt;

/// Why a PTX text was refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParseError {
    /// Line of the text, from 1.
    pub line: u32,
    /// The statement.
    pub statement: String,
    /// What is wrong with it.
    pub reason: String,
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PTX line {}: {}: {}", self.line, self.statement, self.reason)
    }
}

impl std::error::Error for ParseError {}
