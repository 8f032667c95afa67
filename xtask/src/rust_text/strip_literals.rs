//! Comments and the insides of literals turned into spaces, every byte offset and line kept.

use super::tokens::is_word;

/// `source` with comments and the contents of string and character literals blanked.
///
/// The result has the same length and the same line ends, so that an offset in one is an offset in the other.
pub fn blank(source: &str) -> String {
    let mut blanker = LiteralStripper { text: source.as_bytes(), out: Vec::with_capacity(source.len()) };
    while blanker.out.len() < source.len() {
        blanker.next();
    }
    String::from_utf8(blanker.out).expect("whole characters are blanked or kept, never halves")
}

/// `source` with everything but the contents of its string literals blanked: the opposite of [`blank`].
pub fn literals(source: &str) -> String {
    // In blanked text, a double quote is always the delimiter of a string.
    let mut inside = false;
    let keep = |(byte, blanked): (u8, u8)| {
        inside ^= blanked == b'"';
        if byte == b'\n' || (inside && blanked != b'"') { byte } else { b' ' }
    };
    let kept = source.bytes().zip(blank(source).bytes()).map(keep).collect();
    String::from_utf8(kept).expect("whole characters are blanked or kept, never halves")
}

struct LiteralStripper<'a> {
    text: &'a [u8],
    /// What was read so far; its length is the position in `text`.
    out: Vec<u8>,
}

impl LiteralStripper<'_> {
    fn next(&mut self) {
        let rest = &self.text[self.out.len()..];
        match rest {
            [b'/', b'/', ..] => self.hide(line_end(rest)),
            [b'/', b'*', ..] => self.hide(block_end(rest)),
            [b'r', ..] if self.raw_string_may_start() && raw_hashes(rest).is_some() => self.raw_string(),
            [b'"', ..] => self.quoted(string_end(rest)),
            [b'\'', ..] => self.quote(),
            _ => self.keep(1),
        }
    }

    fn keep(&mut self, count: usize) {
        let at = self.out.len();
        let end = (at + count).min(self.text.len());
        self.out.extend_from_slice(&self.text[at..end]);
    }

    fn hide(&mut self, count: usize) {
        let at = self.out.len();
        let hidden = self.text[at..(at + count).min(self.text.len())].iter();
        self.out.extend(hidden.map(|&byte| if byte == b'\n' { b'\n' } else { b' ' }));
    }

    /// A literal of `length` bytes with one delimiter byte at either end.
    fn quoted(&mut self, length: usize) {
        self.keep(1);
        self.hide(length.saturating_sub(2));
        self.keep(1);
    }

    /// A character literal, or the quote of a lifetime.
    fn quote(&mut self) {
        match char_end(&self.text[self.out.len()..]) {
            Some(length) => self.quoted(length),
            None => self.keep(1),
        }
    }

    /// Not in the middle of an identifier that ends in `r` (but `br"` and `cr"` are prefixes).
    fn raw_string_may_start(&self) -> bool {
        let read = match self.out.as_slice() {
            [read @ .., b'b' | b'c'] => read,
            read => read,
        };
        read.last().is_none_or(|&byte| !is_word(byte))
    }

    fn raw_string(&mut self) {
        let rest = &self.text[self.out.len()..];
        let hashes = raw_hashes(rest).expect("the caller looked");
        let open = 1 + hashes + 1;
        let close: Vec<u8> = std::iter::once(b'"').chain(std::iter::repeat_n(b'#', hashes)).collect();
        let inside = rest[open..].windows(close.len()).position(|window| window == close);
        let inside = inside.unwrap_or(rest.len() - open);
        self.keep(open);
        self.hide(inside);
        self.keep(close.len());
    }
}

/// Number of `#` between the `r` at the start of `rest` and its quote, or `None` if this is no raw string.
fn raw_hashes(rest: &[u8]) -> Option<usize> {
    let hashes = rest[1..].iter().take_while(|&&byte| byte == b'#').count();
    (rest.get(1 + hashes) == Some(&b'"')).then_some(hashes)
}

fn line_end(rest: &[u8]) -> usize {
    rest.iter().position(|&byte| byte == b'\n').unwrap_or(rest.len())
}

/// Length of a block comment; they nest.
fn block_end(rest: &[u8]) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while at < rest.len() {
        match &rest[at..] {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] if depth == 1 => return at + 2,
            [b'*', b'/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
    }
    rest.len()
}

/// Length of a string literal, both quotes included.
fn string_end(rest: &[u8]) -> usize {
    let mut at = 1;
    while at < rest.len() {
        match rest[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

/// Length of a character literal, both quotes included; `None` for a lifetime.
fn char_end(rest: &[u8]) -> Option<usize> {
    let close = |from: usize| rest[from..].iter().position(|&byte| byte == b'\'').map(|at| from + at + 1);
    match rest.get(1)? {
        b'\\' => close(3.min(rest.len())),
        &first => {
            let width = first.leading_ones().max(1) as usize;
            (rest.get(1 + width) == Some(&b'\'')).then_some(2 + width)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{blank, literals};

    #[test]
    fn only_the_contents_of_strings_are_literals() {
        let source = "f('\"', \"a b\", r#\"c\"d\"#); // \"e\"\n\"\u{e9}\nf\" g";
        assert_eq!(literals(source), "        a b      c\"d           \n \u{e9}\nf   ");
    }

    #[test]
    fn comments_and_strings_are_blanked_and_code_is_kept() {
        assert_eq!(blank("mod a; // mod b;\nmod c;"), "mod a;          \nmod c;");
        assert_eq!(blank("x /* a /* b */ c */ y"), "x                   y");
        assert_eq!(blank(r#"f("mod x;\"", 1)"#), r#"f("        ", 1)"#);
    }

    #[test]
    fn raw_strings_end_at_their_own_number_of_hashes() {
        let source = r####"a(r##"mod "# x"##); mod y;"####;
        assert_eq!(blank(source), r####"a(r##"        "##); mod y;"####);
        assert_eq!(blank(r#"br"\" z"#), r#"br" " z"#);
        assert_eq!(blank("let r#mod = 1;"), "let r#mod = 1;");
    }

    #[test]
    fn lifetimes_are_not_mistaken_for_characters() {
        assert_eq!(blank("fn a<'a>(c: &'a str) { '\"'; }"), "fn a<'a>(c: &'a str) { ' '; }");
        assert_eq!(blank(r"('\'', '\u{1F600}', 'é') //"), r"('  ', '         ', '  ')   ");
    }

    #[test]
    fn lengths_and_lines_are_kept_also_where_a_literal_never_ends() {
        for source in ["\"abc\n", "/* é\n", "r#\"x", "'\\", "'", "b'x'", "\"\\"] {
            let blanked = blank(source);
            assert_eq!(blanked.len(), source.len(), "{source:?}");
            assert_eq!(blanked.matches('\n').count(), source.matches('\n').count());
        }
    }
}
