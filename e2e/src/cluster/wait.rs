//! Waiting for a condition, with a limit.

use std::time::{Duration, Instant};

/// Longest that anything may take on a busy machine with debug builds.
pub const WAIT_LIMIT: Duration = Duration::from_secs(60);

const PAUSE: Duration = Duration::from_millis(20);

/// Waits until `get` has something, at most for [`WAIT_LIMIT`].
///
/// # Panics
/// If it has nothing in time.
pub async fn eventually<T>(what: &str, get: impl AsyncFnMut() -> Option<T>) -> T {
    within(WAIT_LIMIT, what, get).await
}

/// Waits until `get` has something, at most for `limit`.
///
/// # Panics
/// If it has nothing in time.
pub async fn within<T>(limit: Duration, what: &str, mut get: impl AsyncFnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(value) = get().await {
            return value;
        }
        assert!(begun.elapsed() < limit, "waited {limit:?} in vain: {what}");
        tokio::time::sleep(PAUSE).await;
    }
}
