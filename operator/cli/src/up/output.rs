//! What `sluice up` says, and other commands of how far they are. Nobody needs to listen: a reader that has gone must
//! not take the tenants with it, as a `println!` into a closed pipe would.

use std::fmt::Display;
use std::io::Write;

/// A line on stdout, for scripts.
pub fn print_line(line: impl Display) {
    // A reader that has gone wants no more lines.
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// A line on stderr, for people.
pub fn eprint_note(line: impl Display) {
    // As above.
    let _ = writeln!(std::io::stderr(), "sluice: {line}");
}

/// A line on stderr that answers what a person typed, without the program's name.
pub fn eprint_hint(line: impl Display) {
    // As above.
    let _ = writeln!(std::io::stderr(), "{line}");
}
