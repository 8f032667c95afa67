//! Writes the calls to the driver that no fault replaces, also those that it refuses, for tests that compare their order.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::sync::LazyLock;

use crate::env_config::ENV_CONFIG;

static FILE: LazyLock<Option<File>> = LazyLock::new(|| {
    let path = ENV_CONFIG.trace.as_ref()?;
    let file = OpenOptions::new().append(true).create(true).open(path);
    Some(file.unwrap_or_else(|error| panic!("{}: {error}", path.display())))
});

/// Appends a line: the thread, the function, and its arguments as numbers, pointers among them.
pub fn record(name: &str, arguments: impl FnOnce() -> String) {
    let Some(mut file) = FILE.as_ref() else { return };
    // SAFETY: the call has no arguments and cannot fail.
    let thread = unsafe { libc::gettid() };
    let line = format!("{thread} {name} {}\n", arguments());
    // One write per line, so that lines of several threads do not mix. A test detects a missing line.
    let _ = file.write_all(line.as_bytes());
}
