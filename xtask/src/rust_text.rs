//! Just enough of Rust's lexical grammar to read source text without being fooled by comments and strings.

mod strip_literals;

pub use strip_literals::blank;

/// Line of byte `offset` in `text`, counted from 1.
pub fn line_of(text: &str, offset: usize) -> usize {
    1 + text.as_bytes()[..offset].iter().filter(|&&byte| byte == b'\n').count()
}

/// Whether `byte` may be part of an identifier. Bytes of other alphabets count as such.
pub fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80
}

/// Byte offsets at which `needle` stands in `text` as whole words.
pub fn whole_words<'a>(text: &'a str, needle: &'a str) -> impl Iterator<Item = usize> + 'a {
    let bytes = text.as_bytes();
    text.match_indices(needle).map(|(at, _)| at).filter(move |&at| {
        let end = at + needle.len();
        let starts = at == 0 || !is_word(bytes[at - 1]) || !is_word(bytes[at]);
        let ends = end == bytes.len() || !is_word(bytes[end]) || !is_word(bytes[end - 1]);
        starts && ends
    })
}

/// Byte ranges of the items that stand behind `#[cfg(test)]` in blanked source: code of tests only.
pub fn test_ranges(blanked: &str) -> Vec<std::ops::Range<usize>> {
    blanked.match_indices("#[cfg(test)]").map(|(at, _)| at..item_end(blanked, at)).collect()
}

/// End of the item that starts at `from`: its closing brace, or the semicolon that comes before any brace.
fn item_end(blanked: &str, from: usize) -> usize {
    let mut depth = 0_usize;
    for (at, byte) in blanked.bytes().enumerate().skip(from) {
        match byte {
            b'{' => depth += 1,
            b'}' if depth <= 1 => return at + 1,
            b'}' => depth -= 1,
            b';' if depth == 0 => return at + 1,
            _ => {}
        }
    }
    blanked.len()
}

#[cfg(test)]
mod tests {
    use super::{line_of, test_ranges, whole_words};

    #[test]
    fn whole_words_are_not_found_inside_longer_ones() {
        let text = "Instant MyInstant Instants std::Instant";
        assert_eq!(whole_words(text, "Instant").collect::<Vec<_>>(), [0, 32]);
    }

    #[test]
    fn lines_are_counted_from_one() {
        assert_eq!(line_of("a\nb\nc", 0), 1);
        assert_eq!(line_of("a\nb\nc", 4), 3);
    }

    #[test]
    fn the_range_of_a_test_module_ends_at_its_brace() {
        let text = "fn a() {}\n#[cfg(test)]\nmod t { fn b() {} }\nfn c() {}";
        let range = test_ranges(text).remove(0);
        assert_eq!(&text[range], "#[cfg(test)]\nmod t { fn b() {} }");
        let text = "#[cfg(test)]\nmod t;\nfn c() {}";
        assert_eq!(&text[test_ranges(text).remove(0)], "#[cfg(test)]\nmod t;");
    }
}
