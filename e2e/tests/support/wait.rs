//! Waiting for a condition, with a limit.

use std::time::Duration;

pub use sluice_e2e::cluster::WAIT_LIMIT;
use sluice_e2e::cluster::polled;

/// Shorter than between requests to an API server: a state of a tenant may last a few milliseconds.
const PAUSE: Duration = Duration::from_millis(5);

/// Waits until `get` returns a value.
pub async fn eventually<T>(what: &str, get: impl AsyncFnMut() -> Option<T>) -> T {
    within(WAIT_LIMIT, what, get).await
}

/// Waits until `get` returns a value, at most `limit`.
pub async fn within<T>(limit: Duration, what: &str, get: impl AsyncFnMut() -> Option<T>) -> T {
    polled(limit, PAUSE, what, get).await
}
