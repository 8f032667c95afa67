//! The questions, one file each.

use std::time::Duration;

use crate::Error;
use crate::bench::{Bench, Setup};
use crate::findings::Findings;
use crate::peer::Parent;
use crate::report::Answer;

mod aliases;
mod handles;
mod limits;
pub mod link;
mod remap;
mod share;
mod sharing;
mod signals;

/// Number of a question.
pub type Id = u8;

/// One question.
#[derive(Clone, Copy, Debug)]
pub struct Question {
    /// Its number.
    pub id: Id,
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
pub const ALL: &[Question] = &[
    aliases::QUESTION,
    share::QUESTION,
    handles::QUESTION,
    link::QUESTION,
    sharing::QUESTION,
    signals::QUESTION,
    remap::QUESTION,
    limits::QUESTION,
];

/// What a process beside the asking one does.
pub type Role = fn(Setup, &Parent) -> Result<(), Error>;

/// Roles of such processes, by name.
pub const ROLES: &[(&str, Role)] =
    &[share::importer::ROLE, handles::neighbour::ROLE, handles::context::ROLE, sharing::ROLE, signals::ROLE];

/// Ends what a process that asked a question, and has ended, may have left behind on this machine.
pub fn clean_up(asking: u32) {
    sharing::clean_up(asking);
}

/// The question of this number.
///
/// # Panics
/// If there is none.
pub fn numbered(id: Id) -> &'static Question {
    let found = ALL.iter().find(|question| question.id == id);
    found.unwrap_or_else(|| panic!("there is a question {id}"))
}

/// The number of the question called `word`, or numbered so.
///
/// # Errors
/// The names that there are.
pub fn named(word: &str) -> Result<Id, String> {
    let found = ALL.iter().find(|question| question.name == word || question.id.to_string() == word);
    found.map(|question| question.id).ok_or_else(|| {
        let names: Vec<String> =
            ALL.iter().map(|question| format!("{} {}", question.id, question.name)).collect();
        format!("the questions are: {}", names.join(", "))
    })
}
