//! Waiting for a condition, with a limit.

use std::time::{Duration, Instant};

/// Upper limit for any wait on a busy machine with debug builds.
pub const WAIT_LIMIT: Duration = Duration::from_secs(120);

const PAUSE: Duration = Duration::from_millis(20);

/// Waits until `get` returns a value, at most [`WAIT_LIMIT`].
///
/// # Panics
/// If the limit passes.
pub async fn eventually<T>(what: &str, get: impl AsyncFnMut() -> Option<T>) -> T {
    within(WAIT_LIMIT, what, get).await
}

/// Waits until `get` returns a value, at most `limit`.
///
/// # Panics
/// If the limit passes.
pub async fn within<T>(limit: Duration, what: &str, get: impl AsyncFnMut() -> Option<T>) -> T {
    polled(limit, PAUSE, what, get).await
}

/// Same as [`within`], with this time between two calls of `get`.
///
/// # Panics
/// If the limit passes.
pub async fn polled<T>(
    limit: Duration,
    pause: Duration,
    what: &str,
    mut get: impl AsyncFnMut() -> Option<T>,
) -> T {
    let begun = Instant::now();
    loop {
        if let Some(value) = get().await {
            return value;
        }
        assert!(begun.elapsed() < limit, "waited {limit:?} in vain: {what}");
        tokio::time::sleep(pause).await;
    }
}
