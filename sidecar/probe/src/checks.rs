//! The checks, one per file.

mod aliases;
mod check;
pub mod handles;
mod limits;
pub mod link;
mod mps;
pub mod remap;
mod role;
mod share;
pub mod sharing;
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
