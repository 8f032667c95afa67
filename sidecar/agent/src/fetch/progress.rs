//! How far a download is, for people who wait.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Time between two lines.
const EVERY: Duration = Duration::from_secs(5);
const GIB: f64 = (1_u64 << 30) as f64;

/// Bytes that are there, of how many.
#[derive(Debug)]
pub struct Progress {
    there: AtomicU64,
    all: u64,
}

impl Progress {
    pub fn new(all: u64) -> Self {
        Progress { there: AtomicU64::new(0), all }
    }

    pub fn add(&self, bytes: u64) {
        self.there.fetch_add(bytes, Ordering::Relaxed);
    }

    pub fn take(&self, bytes: u64) {
        self.there.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Logs a line now and then, for ever.
    pub async fn tell(&self) {
        let mut ticks = tokio::time::interval(EVERY);
        ticks.tick().await;
        loop {
            ticks.tick().await;
            let gib = |bytes: u64| bytes as f64 / GIB;
            let (there, all) = (gib(self.there.load(Ordering::Relaxed)), gib(self.all));
            tracing::info!("{there:.2} of {all:.2} GiB are there");
        }
    }
}
