//! The ways of waiting that are compared.

use serde::{Deserialize, Serialize};

use super::page::{FLAG, GO};

/// A way to wait for a word of another process before a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SignalPath {
    /// `cuStreamWaitValue64`, then a launch.
    Stream,
    /// A graph whose node waits for a value that is changed before each launch.
    Parameters,
    /// A graph with a kernel that compares the word with a counter of the device.
    Counter,
    /// A graph whose node waits for a flag and resets it.
    Flags,
}

impl SignalPath {
    /// The ways of graphs.
    pub const GRAPHS: [SignalPath; 3] = [SignalPath::Parameters, SignalPath::Counter, SignalPath::Flags];

    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            SignalPath::Stream => "stream",
            SignalPath::Parameters => "graph by parameters",
            SignalPath::Counter => "graph by counter",
            SignalPath::Flags => "graph by flags",
        }
    }

    /// Which word ends the wait for step `value`, and what is to be written there.
    pub fn target(self, value: u64) -> (u64, u64) {
        match self {
            SignalPath::Flags => (FLAG, 1),
            _ => (GO, value),
        }
    }
}
