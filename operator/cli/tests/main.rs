//! Tests of the binaries as users run them: processes, exit statuses, signals, files.
// Helpers outside test functions unwrap too.
#![allow(clippy::unwrap_used)]

mod bench;
mod command;
mod config_errors;
mod explain;
mod leader;
mod peers;
mod plan;
mod reference_docs;
mod run;
mod sleep;
mod support;
mod terminal;
mod top;
mod up;
