//! The limit of open files of this process and of test programs.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::cluster::{is_ci, skipped};

/// Runs a program with the soft limit of most sessions and of systemd: 1,024 open files. The program can raise it.
/// For `sh -c`, before the program and its arguments.
pub const FEW: &str = "ulimit -S -n 1024 && exec \"$0\" \"$@\"";

/// Open files of a test binary apart from the connections of one test.
const OTHERS: u64 = 2_000;

/// Raises the file limit of this process so that `connections` fit. If the hard limit is too low, prints the reason
/// and returns `None`.
///
/// # Panics
/// In CI if the hard limit is too low: a row of the failure table would remain untested.
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
