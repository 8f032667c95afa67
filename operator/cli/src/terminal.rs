//! Properties of the user's terminal.

use std::io::IsTerminal;
use std::os::fd::AsFd;

use rustix::termios::tcgetwinsize;
use unicode_width::UnicodeWidthChar;

/// Columns of a terminal of unknown width.
pub const DEFAULT_COLUMNS: usize = 80;

/// Columns of the terminal that standard output is; `None` = it is none, or does not say. Asked each time: a
/// terminal may be made wider or narrower.
pub fn columns() -> Option<usize> {
    columns_of(&std::io::stdout())
}

/// Like [`columns`], for another stream.
pub fn columns_of(stream: &(impl IsTerminal + AsFd)) -> Option<usize> {
    let size = stream.is_terminal().then(|| tcgetwinsize(stream).ok()).flatten();
    size.map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

/// Wraps `text` at spaces into lines of at most `columns` columns. A longer word stays whole. Terminal styles
/// (`ESC [
/// ... m`) take no column.
pub fn wrap(text: &str, columns: usize) -> String {
    let mut wrapped = String::new();
    for line in text.split_inclusive('\n') {
        let mut column = 0;
        for word in line.split_inclusive(' ') {
            if column > 0 && column + width(word.trim_end()) > columns {
                wrapped.truncate(wrapped.trim_end_matches(' ').len());
                wrapped.push('\n');
                column = 0;
            }
            wrapped.push_str(word);
            column += width(word);
        }
    }
    wrapped
}

/// Returns the columns of `text`.
fn width(text: &str) -> usize {
    let (mut columns, mut in_style) = (0, false);
    for character in text.chars() {
        match (character, in_style) {
            ('\x1b', _) => in_style = true,
            ('m', true) => in_style = false,
            (_, true) => {}
            (character, false) => columns += character.width().unwrap_or(0),
        }
    }
    columns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_break_at_blanks_and_styles_take_no_column() {
        for (text, expected) in [
            ("one two three", "one two\nthree"),
            ("one\n  two three\n", "one\n  two\nthree\n"),
            ("a-word-longer-than-that is whole", "a-word-longer-than-that\nis whole"),
            ("\x1b[1mone\x1b[0m two three", "\x1b[1mone\x1b[0m two\nthree"),
            ("one  three", "one\nthree"),
            ("\u{6c34}\u{6c34} \u{6c34}\u{6c34}", "\u{6c34}\u{6c34}\n\u{6c34}\u{6c34}"),
            ("", ""),
        ] {
            assert_eq!(wrap(text, 8), expected, "{text:?}");
        }
    }
}
