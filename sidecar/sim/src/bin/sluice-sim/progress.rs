//! Reports the progress of a long run on standard error: as a bar on a terminal, else as a line at intervals.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::output::print_status;

/// Interval between two lines without a terminal.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// A run of a known number of steps.
pub struct RunProgress {
    bar: ProgressBar,
    /// Time of the last line.
    last_report: Mutex<Instant>,
}

impl RunProgress {
    /// Starts a run of `total` steps.
    pub fn new(name: &str, total: u64) -> RunProgress {
        let style = ProgressStyle::with_template("{prefix:16} {bar:40} {pos}/{len} {msg} {elapsed}");
        let style = style.expect("the template is sound").progress_chars("=> ");
        let bar = ProgressBar::new(total).with_style(style).with_prefix(name.to_owned());
        RunProgress { bar, last_report: Mutex::new(Instant::now()) }
    }

    /// Sets the number of finished steps.
    pub fn update(&self, done: u64) {
        self.bar.set_position(done);
        if self.bar.is_hidden() && self.is_report_due() {
            let (of, message) = (self.bar.length().unwrap_or(done), self.bar.message());
            print_status(format!("{}: {done} of {of} {message}", self.bar.prefix()).trim_end());
        }
    }

    /// Sets the number of finished steps and the total, with the name of the last step.
    pub fn update_of(&self, what: &str, done: u64, total: u64) {
        self.bar.set_length(total);
        self.bar.set_message(what.to_owned());
        self.update(done);
    }

    /// Ends the run.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }

    fn is_report_due(&self) -> bool {
        let mut last_report = self.last_report.lock().unwrap_or_else(PoisonError::into_inner);
        let due = last_report.elapsed() >= REPORT_INTERVAL;
        if due {
            *last_report = Instant::now();
        }
        due
    }
}
