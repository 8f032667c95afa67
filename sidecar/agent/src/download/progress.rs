//! Progress of a download: log lines for people, or JSON for the program that started the download.

use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sluice_wire::download::{self, DownloadReport};

/// Interval between two log lines.
const LOG_EVERY: Duration = Duration::from_secs(5);
/// Interval between two JSON lines, short enough for a smooth progress bar.
const JSON_EVERY: Duration = Duration::from_millis(200);
const GIB: f64 = (1_u64 << 30) as f64;

/// How progress is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgressOutput {
    /// Log lines.
    Log,
    /// Standard output, one report per line.
    Json,
}

impl ProgressOutput {
    /// Returns the output: standard output, or the log.
    pub fn new(on_stdout: bool) -> ProgressOutput {
        if on_stdout { ProgressOutput::Json } else { ProgressOutput::Log }
    }

    /// Writes a line to standard output.
    pub(super) fn write(report: &DownloadReport) {
        let line = serde_json::to_string(report).expect("a report serialises");
        // A failed write must not stop the download.
        let _ = writeln!(std::io::stdout(), "{line}");
    }
}

/// Downloaded and total bytes.
#[derive(Debug)]
pub struct ByteProgress {
    present_bytes: AtomicU64,
    total_bytes: u64,
}

impl ByteProgress {
    pub fn new(all: u64) -> Self {
        ByteProgress { present_bytes: AtomicU64::new(0), total_bytes: all }
    }

    pub fn add(&self, bytes: u64) {
        self.present_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub fn subtract(&self, bytes: u64) {
        self.present_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Reports at a fixed interval, without end.
    pub async fn report(&self, report: ProgressOutput) {
        let every = match report {
            ProgressOutput::Log => LOG_EVERY,
            ProgressOutput::Json => JSON_EVERY,
        };
        let mut ticks = tokio::time::interval(every);
        ticks.tick().await;
        loop {
            ticks.tick().await;
            match report {
                ProgressOutput::Log => self.log(),
                ProgressOutput::Json => self.write_json(),
            }
        }
    }

    /// Reports the final progress.
    pub fn report_finished(&self, report: ProgressOutput) {
        if report == ProgressOutput::Json {
            self.write_json();
        }
    }

    fn log(&self) {
        let gib = |bytes: u64| bytes as f64 / GIB;
        let (there, all) = (gib(self.present_bytes.load(Ordering::Relaxed)), gib(self.total_bytes));
        tracing::info!("{there:.2} of {all:.2} GiB downloaded");
    }

    fn write_json(&self) {
        let present_bytes = self.present_bytes.load(Ordering::Relaxed);
        let progress = download::Progress { present_bytes, total_bytes: self.total_bytes };
        ProgressOutput::write(&DownloadReport::Progress(progress));
    }
}
