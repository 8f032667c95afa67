//! The scheduler's clock, and times as messages have them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sluice_memory::since_boot;
use sluice_policy::ids::Nanos;

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

/// A moment as messages have it: milliseconds since the Unix epoch.
pub(crate) fn unix_ms(at: SystemTime) -> u64 {
    at.duration_since(UNIX_EPOCH).map_or(0, whole_ms)
}

/// A time as messages have it.
pub(crate) fn whole_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
