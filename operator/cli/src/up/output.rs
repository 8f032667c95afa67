//! Output of `sluice up`, and progress of other commands. A closed pipe must not end the tenants, as it would with
//! `println!`.

use std::fmt::Display;
use std::io::Write;

/// Prints a line on stdout, for scripts.
pub fn print_line(line: impl Display) {
    // A closed pipe is no error.
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// Prints a line on stderr, for users.
pub fn eprint_note(line: impl Display) {
    // A closed pipe is ignored.
    let _ = writeln!(std::io::stderr(), "sluice: {line}");
}

/// Prints a line on stderr in answer to the user's input, without the program's name.
pub fn eprint_hint(line: impl Display) {
    // A closed pipe is ignored.
    let _ = writeln!(std::io::stderr(), "{line}");
}
