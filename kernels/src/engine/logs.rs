//! Sets up logs on stderr: warnings and errors by default, more with `SLUICE_LOG`. Each line begins with
//! `SLUICE_LOG_NAME` if set.

use std::io::IsTerminal;

use sluice_link::log_prefix::LogPrefix;

/// Installs the global log subscriber.
pub(super) fn start() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("SLUICE_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn"));
    let name = std::env::var("SLUICE_LOG_NAME").ok().filter(|name| !name.is_empty());
    let lines = LogPrefix::for_tenant(name.as_deref());
    let format = tracing_subscriber::fmt().with_env_filter(filter).with_target(false);
    // By default, a failed write of a log line panics.
    let format = format.log_internal_errors(false);
    format.with_writer(move || lines.clone()).with_ansi(std::io::stderr().is_terminal()).init();
}
