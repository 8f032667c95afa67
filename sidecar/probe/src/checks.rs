//! The questions, one file each.

use std::time::Duration;

use crate::Error;
use crate::bench::{Bench, Setup};
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

/// Number of a question.
pub type CheckId = u8;

/// One question.
#[derive(Clone, Copy, Debug)]
pub struct Check {
    /// Its number.
    pub id: CheckId,
    /// Its name on the command line.
    pub name: &'static str,
    /// What it asks.
    pub text: &'static str,
    /// MiB of device memory that it takes at most, contexts aside.
    pub mib: u64,
    /// The same under `--quick`.
    pub quick_mib: u64,
    /// Longest that it may take; then it is killed.
    pub limit: Duration,
    /// Asks it. What it finds on the way is told at once, and stays when it fails.
    pub ask: fn(&Bench, &mut Findings<'_>) -> Result<Answer, Error>,
}

/// All questions, by number.
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

/// What a process beside the asking one does.
pub type Role = fn(Setup, &ParentPipe) -> Result<(), Error>;

/// Roles of such processes, by name.
pub const ROLES: &[(&str, Role)] =
    &[share::importer::ROLE, handles::exporter::ROLE, handles::context::ROLE, sharing::ROLE, signals::ROLE];

/// Ends what a process that asked a question, and has ended, may have left behind on this machine.
pub fn clean_up(asking: u32) {
    sharing::clean_up(asking);
}

/// The question of this number.
///
/// # Panics
/// If there is none.
pub fn by_id(id: CheckId) -> &'static Check {
    let found = ALL.iter().find(|question| question.id == id);
    found.unwrap_or_else(|| panic!("there is a question {id}"))
}

/// The number of the question called `word`, or numbered so.
///
/// # Errors
/// The names that there are.
pub fn parse_id(word: &str) -> Result<CheckId, String> {
    let found = ALL.iter().find(|question| question.name == word || question.id.to_string() == word);
    found.map(|question| question.id).ok_or_else(|| {
        let names: Vec<String> =
            ALL.iter().map(|question| format!("{} {}", question.id, question.name)).collect();
        format!("the questions are: {}", names.join(", "))
    })
}
