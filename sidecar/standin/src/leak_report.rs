//! Writes the resources that a process still holds at its exit, for tests.

use std::fs::OpenOptions;
use std::io::Write;

use crate::address_space::space;
use crate::env_config::ENV_CONFIG;
use crate::objects::objects;

/// Registers the report to be written when the process exits.
pub fn report_at_exit() {
    if ENV_CONFIG.report.is_some() {
        // SAFETY: the library is not unloaded before the process exits, and the function takes no arguments.
        unsafe { libc::atexit(report) };
    }
}

extern "C" fn report() {
    let Some(path) = &ENV_CONFIG.report else { return };
    let objects = objects();
    let mut counts = objects.counts();
    drop(objects);
    counts.extend(space().counts());
    let fields: Vec<_> = counts.iter().map(|(name, count)| format!("\"{name}\":{count}")).collect();
    let line = format!("{{\"pid\":{},{}}}\n", std::process::id(), fields.join(","));
    if let Ok(mut file) = OpenOptions::new().append(true).create(true).open(path) {
        // One write per line, so that lines of several processes do not mix. A test detects a missing line.
        let _ = file.write_all(line.as_bytes());
    }
}
