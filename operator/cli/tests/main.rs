//! The binaries as a user meets them: processes, exit statuses, signals, files.
// Helpers outside test functions unwrap too.
#![allow(clippy::unwrap_used)]

mod bench;
mod command;
mod explain;
mod leader;
mod mistakes;
mod neighbours;
mod page;
mod plan;
mod run;
mod sleep;
mod support;
mod terminal;
mod top;
mod up;
