//! Open files of this process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::cluster::{is_ci, skipped};

/// Runs a program as most sessions and systemd do: with 1,024 open files, and more for who asks. For `sh -c`, before the program
/// and its arguments.
pub const FEW: &str = "ulimit -S -n 1024 && exec \"$0\" \"$@\"";

/// What a test binary has open beside the connections of one test.
const OTHERS: u64 = 2_000;

/// Makes room for so many connections at once, for the rest of this process; `None`, with a line that says so, where the system
/// does not allow as many.
///
/// # Panics
/// In CI, where it does not: a row of the failure table would go untested.
pub fn raise_open_file_limit(connections: usize) -> Option<()> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).expect("what is allowed is given");
    let needed = connections as u64 + OTHERS;
    if maximum.is_none_or(|maximum| maximum >= needed) {
        return Some(());
    }
    let why = format!("{connections} connections take {needed} open files (`ulimit -Hn`)");
    assert!(!is_ci(), "{why}");
    skipped(&why);
    None
}
