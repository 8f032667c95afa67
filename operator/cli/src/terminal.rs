//! The terminal on which a person reads.

use std::io::IsTerminal;

use rustix::termios::tcgetwinsize;

/// Columns of a terminal that does not say how wide it is.
pub const USUAL_COLUMNS: usize = 80;

/// Columns of the terminal that standard output is; `None` = it is none, or does not say. Asked each time: a terminal may be made
/// wider or narrower.
pub fn columns() -> Option<usize> {
    let stdout = std::io::stdout();
    let size = stdout.is_terminal().then(|| tcgetwinsize(&stdout).ok()).flatten();
    size.map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0)
}
