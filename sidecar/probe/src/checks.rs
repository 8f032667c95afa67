//! The checks, one per file.

mod aliases;
mod check;
mod handles;
mod limits;
pub mod link;
mod mps;
mod remap;
mod role;
mod share;
mod sharing;
mod signals;

pub use check::{Check, CheckId};
pub use role::Role;

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

/// Roles of child processes, by name.
pub const ROLES: &[(&str, Role)] =
    &[share::importer::ROLE, handles::exporter::ROLE, handles::context::ROLE, sharing::ROLE, signals::ROLE];

/// Ends processes and removes files that the exited check process `asking` may have left on this machine.
pub fn clean_up(asking: u32) {
    mps::clean_up(asking);
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
