//! The checks, one per file.

use std::time::Duration;

use crate::Error;
use crate::bench::{Bench, ProbeOptions};
use crate::child_process::ParentPipe;
use crate::report::Answer;
use crate::results::Findings;

mod aliases;
mod handles;
mod limits;
pub mod link;
mod remap;
mod share;
mod sharing;
mod signals;

/// Number of a check.
pub type CheckId = u8;

/// One check of the device.
#[derive(Clone, Copy, Debug)]
pub struct Check {
    /// Number of the check.
    pub id: CheckId,
    /// Name on the command line.
    pub name: &'static str,
    /// Question that the check answers.
    pub text: &'static str,
    /// Maximum device memory in MiB, without contexts.
    pub mib: u64,
    /// Maximum device memory in MiB with `--quick`, without contexts.
    pub quick_mib: u64,
    /// Maximum run time; then the check is killed.
    pub limit: Duration,
    /// Runs the check. Its findings are sent at once and are kept if it fails later.
    pub ask: fn(&Bench, &mut Findings<'_>) -> Result<Answer, Error>,
}

/// All checks, by number.
pub const ALL: &[Check] = &[
    aliases::CHECK,
    share::CHECK,
    handles::CHECK,
    link::CHECK,
    sharing::CHECK,
    signals::CHECK,
    remap::CHECK,
    limits::CHECK,
];

/// The work of a child process of a check.
pub type Role = fn(ProbeOptions, &ParentPipe) -> Result<(), Error>;

/// Roles of child processes, by name.
pub const ROLES: &[(&str, Role)] =
    &[share::importer::ROLE, handles::exporter::ROLE, handles::context::ROLE, sharing::ROLE, signals::ROLE];

/// Ends processes and removes files that the exited check process `asking` may have left on this machine.
pub fn clean_up(asking: u32) {
    sharing::clean_up(asking);
}

/// Returns the check with this number.
///
/// # Panics
/// If there is none.
pub fn by_id(id: CheckId) -> &'static Check {
    let found = ALL.iter().find(|question| question.id == id);
    found.unwrap_or_else(|| panic!("there is a question {id}"))
}

/// Returns the number of the check that `word` names or numbers.
///
/// # Errors
/// The list of all checks.
pub fn parse_id(word: &str) -> Result<CheckId, String> {
    let found = ALL.iter().find(|question| question.name == word || question.id.to_string() == word);
    found.map(|question| question.id).ok_or_else(|| {
        let names: Vec<String> =
            ALL.iter().map(|question| format!("{} {}", question.id, question.name)).collect();
        format!("the questions are: {}", names.join(", "))
    })
}
