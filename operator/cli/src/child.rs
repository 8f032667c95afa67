//! Child processes. They end with this process, and signals of the terminal do not reach them.

use rustix::process::Signal;
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::Command;

/// Prefix of the line with which a sidecar's program reports why it failed.
const FAILURE_PREFIX: &str = "sluice-sidecar: ";

/// Makes the child of `command` end when this process ends for any reason. The child gets its own process group: a
/// Ctrl-C in the terminal reaches only this process, which then stops its children in order.
pub fn kill_on_parent_exit(command: &mut Command) {
    command.process_group(0).kill_on_drop(true);
    let parent = rustix::process::getpid();
    // SAFETY: between fork and exec only async-signal-safe system calls are made.
    unsafe {
        command.pre_exec(move || {
            rustix::process::set_parent_process_death_signal(Some(Signal::TERM))?;
            // The parent may have ended before the signal was set; the kernel would then never send it.
            if rustix::process::getppid() != Some(parent) {
                // An error could not be reported: the parent's end of the pipe is closed, and std would abort.
                rustix::process::kill_process(rustix::process::getpid(), Signal::KILL)?;
            }
            Ok(())
        });
    }
}

/// Limits the log of a sidecar's program to warnings and errors, unless SLUICE_LOG, or else RUST_LOG, sets
/// another
/// level.
pub fn set_warn_log_level(command: &mut Command) {
    if std::env::var_os("SLUICE_LOG").is_none() {
        let level = std::env::var_os("RUST_LOG").filter(|level| !level.is_empty());
        command.env("SLUICE_LOG", level.unwrap_or_else(|| "warn".into()));
    }
}

/// Passes each log line of a sidecar's program to `show`. Returns the message with which the program failed, if it did.
pub async fn forward_log(log: impl AsyncRead + Unpin, show: impl Fn(&str)) -> Option<String> {
    let (mut lines, mut failure) = (BufReader::new(log).lines(), None::<String>);
    // An unreadable log counts as ended.
    while let Ok(Some(line)) = lines.next_line().await {
        match (line.strip_prefix(FAILURE_PREFIX), &mut failure) {
            (Some(words), _) => failure = Some(words.to_owned()),
            // The message may have several lines.
            (None, Some(words)) => *words = format!("{words}\n{line}"),
            (None, None) => show(&line),
        }
    }
    failure
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[tokio::test]
    async fn log_is_forwarded_and_failure_is_returned() {
        let shown = RefCell::new(Vec::new());
        let log = "WARN trying again\nsluice-sidecar: no such model\nat all\n";
        let failure = forward_log(log.as_bytes(), |line| shown.borrow_mut().push(line.to_owned())).await;
        assert_eq!(failure.as_deref(), Some("no such model\nat all"));
        assert_eq!(*shown.borrow(), ["WARN trying again"]);
    }
}
