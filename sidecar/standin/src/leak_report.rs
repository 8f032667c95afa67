//! Writes the resources that a process still holds at its exit, for tests.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::sync::Once;

use crate::address_space::space;
use crate::env_config::ENV_CONFIG;
use crate::objects::objects;

/// Asserts that every process that ended by itself had released everything: its line in the file that
/// `SLUICE_STANDIN_REPORT` names has zeros only. Returns the number of these processes.
///
/// # Panics
/// If a process still held something, or if no process has reported.
pub fn assert_nothing_held(report: &Path) -> usize {
    let text = std::fs::read_to_string(report).unwrap_or_default();
    assert!(!text.is_empty(), "a process with the stand-in has reported to {}", report.display());
    for line in text.lines() {
        let fields = line.trim_matches(['{', '}']).split(',').filter(|field| !field.starts_with("\"pid\":"));
        let held: Vec<_> = fields.filter(|field| !field.ends_with(":0")).collect();
        assert!(held.is_empty(), "a process ended with {held:?}");
    }
    text.lines().count()
}

/// Registers the report to be written when the process exits, once: a process may initialise the driver again.
pub fn report_at_exit() {
    static REGISTERED: Once = Once::new();
    if ENV_CONFIG.report.is_some() {
        // SAFETY: the library is not unloaded before the process exits, and the function takes no arguments.
        REGISTERED.call_once(|| unsafe { _ = libc::atexit(report) });
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

#[cfg(test)]
mod tests {
    use super::assert_nothing_held;

    fn check(text: &str) -> usize {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("held");
        std::fs::write(&path, text).expect("the folder is ours");
        assert_nothing_held(&path)
    }

    #[test]
    fn a_report_of_zeros_is_empty() {
        let line = "{\"pid\":12,\"contexts\":0,\"streams\":0}\n";
        assert_eq!((check(line), check(&line.repeat(2))), (1, 2));
    }

    #[test]
    #[should_panic(expected = "a process ended with [\"\\\"streams\\\":10\"]")]
    fn a_held_stream_is_found() {
        check("{\"pid\":12,\"contexts\":0,\"streams\":10}\n");
    }

    #[test]
    #[should_panic(expected = "has reported")]
    fn a_missing_report_is_found() {
        check("");
    }
}
