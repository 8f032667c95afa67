//! The compared kinds of wait.

use serde::{Deserialize, Serialize};

use super::page::{FLAG, GO};

/// A way to wait for a word of another process before a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SignalPath {
    /// `cuStreamWaitValue64`, then a launch.
    Stream,
    /// A graph whose node waits for a value that changes before each launch.
    Parameters,
    /// A graph with a kernel that compares the word with a counter on the device.
    Counter,
    /// A graph whose node waits for a flag and resets it.
    Flags,
}

impl SignalPath {
    /// The kinds that use graphs.
    pub const GRAPHS: [SignalPath; 3] = [SignalPath::Parameters, SignalPath::Counter, SignalPath::Flags];

    /// Returns the name in reports.
    pub fn name(self) -> &'static str {
        match self {
            SignalPath::Stream => "stream",
            SignalPath::Parameters => "graph by parameters",
            SignalPath::Counter => "graph by counter",
            SignalPath::Flags => "graph by flags",
        }
    }

    /// Returns the word that ends the wait for step `value`, and the value to write there.
    pub fn target(self, value: u64) -> (u64, u64) {
        match self {
            SignalPath::Flags => (FLAG, 1),
            _ => (GO, value),
        }
    }
}
