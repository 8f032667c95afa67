//! How far a download is: a line of the log for people, or JSON for the program that started the download.

use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sluice_wire::fetched::{self, Report};

/// Time between two lines of the log.
const LOG_EVERY: Duration = Duration::from_secs(5);
/// Time between two lines of JSON: a bar that moves smoothly.
const JSON_EVERY: Duration = Duration::from_millis(200);
const GIB: f64 = (1_u64 << 30) as f64;

/// How progress is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgressReport {
    /// In the log.
    Log,
    /// On standard output, one [`Report`] a line.
    Json,
}

impl ProgressReport {
    /// On standard output, or in the log.
    pub fn new(on_stdout: bool) -> ProgressReport {
        if on_stdout { ProgressReport::Json } else { ProgressReport::Log }
    }

    /// Writes a line to standard output.
    pub(super) fn write(report: &Report) {
        let line = serde_json::to_string(report).expect("a report serialises");
        // The download matters more than its reader.
        let _ = writeln!(std::io::stdout(), "{line}");
    }
}

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

    /// Reports now and then, for ever.
    pub async fn report(&self, report: ProgressReport) {
        let every = match report {
            ProgressReport::Log => LOG_EVERY,
            ProgressReport::Json => JSON_EVERY,
        };
        let mut ticks = tokio::time::interval(every);
        ticks.tick().await;
        loop {
            ticks.tick().await;
            match report {
                ProgressReport::Log => self.log(),
                ProgressReport::Json => self.write_json(),
            }
        }
    }

    /// Reports that all is there.
    pub fn report_end(&self, report: ProgressReport) {
        if report == ProgressReport::Json {
            self.write_json();
        }
    }

    fn log(&self) {
        let gib = |bytes: u64| bytes as f64 / GIB;
        let (there, all) = (gib(self.there.load(Ordering::Relaxed)), gib(self.all));
        tracing::info!("{there:.2} of {all:.2} GiB are there");
    }

    fn write_json(&self) {
        let present_bytes = self.there.load(Ordering::Relaxed);
        let progress = fetched::Progress { present_bytes, total_bytes: self.all };
        ProgressReport::write(&Report::Progress(progress));
    }
}
