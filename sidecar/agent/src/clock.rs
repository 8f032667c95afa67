//! The scheduler's clock, and conversions to the times of messages.

use std::time::Duration;

use sluice_memory::since_boot;
use sluice_policy::ids::Nanos;
pub(crate) use sluice_wire::time::{unix_ms, whole_ms};

/// Clock that counts nanoseconds since its start. It advances while the machine is suspended, so a loan whose time to
/// live ends during that time has expired when the machine wakes.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    started: Duration,
}

impl Clock {
    /// Starts a clock now.
    pub fn start() -> Clock {
        Clock { started: since_boot() }
    }

    /// Returns the time since the start.
    pub fn now(&self) -> Nanos {
        Nanos(u64::try_from(since_boot().saturating_sub(self.started).as_nanos()).unwrap_or(u64::MAX))
    }
}
