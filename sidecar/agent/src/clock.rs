//! The scheduler's clock, and times as messages have them.

use std::time::Duration;

use sluice_memory::since_boot;
use sluice_policy::ids::Nanos;
pub(crate) use sluice_wire::time::{unix_ms, whole_ms};

/// Nanoseconds since it was started. It goes on while the machine is suspended: a loan whose time to live ends meanwhile has
/// ended when the machine wakes.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    started: Duration,
}

impl Clock {
    /// From now on.
    pub fn start() -> Clock {
        Clock { started: since_boot() }
    }

    /// What it shows.
    pub fn now(&self) -> Nanos {
        Nanos(u64::try_from(since_boot().saturating_sub(self.started).as_nanos()).unwrap_or(u64::MAX))
    }
}
