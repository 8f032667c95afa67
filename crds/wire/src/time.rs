//! Times as messages have them: whole milliseconds.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A moment, milliseconds since the Unix epoch; 0 = before it.
pub fn unix_ms(at: SystemTime) -> u64 {
    at.duration_since(UNIX_EPOCH).map_or(0, whole_ms)
}

/// A time, milliseconds.
pub fn whole_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
