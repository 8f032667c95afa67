//! The clock that all processes of the machine share.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Time since the machine's start, suspensions included.
pub fn since_boot() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    let (seconds, nanos) = (u64::try_from(now.tv_sec), u32::try_from(now.tv_nsec));
    Duration::new(seconds.expect("positive"), nanos.expect("less than a second"))
}
