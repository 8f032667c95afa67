//! The scheduler's clock.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
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

/// Time since the machine's start, suspensions included.
pub fn since_boot() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    let (seconds, nanos) = (u64::try_from(now.tv_sec), u32::try_from(now.tv_nsec));
    Duration::new(seconds.expect("positive"), nanos.expect("less than a second"))
}
