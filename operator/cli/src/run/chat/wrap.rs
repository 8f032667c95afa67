//! Wraps a streamed answer on a terminal: a word that reaches the border moves to the next line while it is written.
//! Pure.

use unicode_width::UnicodeWidthChar;

/// Tab width, columns.
const TAB_WIDTH: usize = 8;
/// On a narrower terminal the terminal itself breaks lines, within words.
const MIN_COLUMNS: usize = 20;

/// Cursor position of an answer.
#[derive(Debug, Default)]
pub struct Wrapper {
    /// Columns of the line so far.
    column: usize,
    /// The last word of the line so far, and its columns.
    word: String,
    word_columns: usize,
}

impl Wrapper {
    /// Returns the output for the next `piece` of an answer on a terminal of `columns` columns, without control
    /// characters of the piece
    ///.
    pub fn wrap(&mut self, piece: &str, columns: Option<usize>) -> String {
        let mut text = String::new();
        // A line that fills the last column stands between two lines.
        let columns =
            columns.filter(|columns| *columns >= MIN_COLUMNS).map_or(usize::MAX, |columns| columns - 1);
        for character in piece.chars() {
            match character {
                '\n' => self.begin_line(&mut text),
                '\t' => self.push_blank(
                    character,
                    (TAB_WIDTH - self.column % TAB_WIDTH).min(columns.saturating_sub(self.column)),
                    &mut text,
                ),
                ' ' if self.column >= columns => self.begin_line(&mut text),
                ' ' => self.push_blank(character, 1, &mut text),
                character if character.is_control() => {}
                character => self.push_char(character, columns, &mut text),
            }
        }
        text
    }

    fn begin_line(&mut self, text: &mut String) {
        text.push('\n');
        *self = Wrapper::default();
    }

    fn push_blank(&mut self, blank: char, width: usize, text: &mut String) {
        text.push(blank);
        self.column += width;
        self.end_word();
    }

    fn end_word(&mut self) {
        self.word.clear();
        self.word_columns = 0;
    }

    fn push_char(&mut self, character: char, columns: usize, text: &mut String) {
        let width = character.width().unwrap_or(0);
        // Scripts of wide characters have no blanks: each of them is a word.
        if width > 1 {
            self.end_word();
        }
        if self.column + width > columns {
            self.move_word(text);
        }
        text.push(character);
        self.word.push(character);
        self.column += width;
        self.word_columns += width;
        if width > 1 {
            self.end_word();
        }
    }

    /// Moves the last word of the line, which does not fit, to the next line. A word as
    /// long as the line stays.
    fn move_word(&mut self, text: &mut String) {
        let (word, columns) = (std::mem::take(&mut self.word), self.word_columns);
        let moves = 0 < columns && columns < self.column;
        if moves {
            // Moves the cursor to the start of the word, and clears the rest of the line.
            text.push_str(&format!("\x1b[{columns}D\x1b[K"));
        }
        self.begin_line(text);
        if moves {
            text.push_str(&word);
            *self = Wrapper { column: columns, word, word_columns: columns };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the screen of a terminal after the output `written`.
    fn screen(written: &str) -> Vec<String> {
        let (mut lines, mut rest) = (vec![String::new()], written);
        while let Some(character) = rest.chars().next() {
            rest = &rest[character.len_utf8()..];
            let line = lines.last_mut().unwrap();
            match character {
                '\n' => lines.push(String::new()),
                '\x1b' => {
                    let (back, after) = rest.strip_prefix('[').unwrap().split_once("D\x1b[K").unwrap();
                    for _ in 0..back.parse::<usize>().unwrap() {
                        line.pop();
                    }
                    rest = after;
                }
                character => line.push(character),
            }
        }
        lines
    }

    fn wrapped(text: &str, characters_per_piece: usize) -> Vec<String> {
        let (mut wrapper, characters) = (Wrapper::default(), text.chars().collect::<Vec<_>>());
        let pieces = characters.chunks(characters_per_piece).map(|piece| piece.iter().collect::<String>());
        screen(&pieces.map(|piece| wrapper.wrap(&piece, Some(21))).collect::<String>())
    }

    #[test]
    fn lines_break_at_words_whatever_the_pieces() {
        let text = "Once upon a time there was a river.\n\nIt was cold-blooded and unfathomable.";
        let expected =
            ["Once upon a time ", "there was a river.", "", "It was cold-blooded ", "and unfathomable."];
        for piece_length in [1, 2, 3, 7, 100] {
            assert_eq!(wrapped(text, piece_length), expected, "{piece_length} letters a piece");
        }
    }

    #[test]
    fn a_word_longer_than_a_line_is_cut_and_a_blank_at_the_border_is_the_break() {
        assert_eq!(wrapped(&"a".repeat(45), 4), ["a".repeat(20), "a".repeat(20), "a".repeat(5)]);
        assert_eq!(wrapped("12345678901234567890 next", 1), ["12345678901234567890", "next"]);
        let path = format!("see {}", "x".repeat(30));
        assert_eq!(wrapped(&path, 1), ["see ".to_owned(), "x".repeat(20), "x".repeat(10)]);
    }

    #[test]
    fn wide_characters_take_two_columns_and_are_words_of_their_own() {
        assert_eq!(wrapped(&"\u{6c34}".repeat(12), 1), ["\u{6c34}".repeat(10), "\u{6c34}".repeat(2)]);
        let mixed = format!("ab {}", "\u{6c34}".repeat(9));
        assert_eq!(wrapped(&mixed, 5), [format!("ab {}", "\u{6c34}".repeat(8)), "\u{6c34}".to_owned()]);
    }

    #[test]
    fn a_tabulator_stays_and_control_characters_go() {
        let mut wrapper = Wrapper::default();
        assert_eq!(wrapper.wrap("\tif x\r\x1b[2J\x07", Some(21)), "\tif x[2J");
        assert_eq!(wrapper.wrap("123456789 12345", Some(21)), "12345\x1b[9D\x1b[K\nx[2J123456789 12345");
    }

    #[test]
    fn line_longer_than_narrowed_terminal_ends_at_next_blank_or_character() {
        for (piece, expected) in [(" next", "\nnext"), ("x", "\x1b[5D\x1b[K\n12345x"), ("\t12", "\t\n12")] {
            let mut wrapper = Wrapper::default();
            let wide = "123456789 123456789 12345";
            assert_eq!(wrapper.wrap(wide, Some(41)), wide);
            assert_eq!(wrapper.wrap(piece, Some(21)), expected, "{piece:?}");
        }
    }

    #[test]
    fn where_the_width_is_unknown_or_tiny_the_terminal_breaks_the_lines() {
        for columns in [None, Some(0), Some(19)] {
            let text = "a\tb c".repeat(100);
            assert_eq!(Wrapper::default().wrap(&text, columns), text);
        }
    }
}
