//! Just enough of Rust's lexical grammar to read source text without being fooled by comments and strings.

pub mod module_files;
pub mod named_paths;
mod strip_literals;
pub mod test_code;
pub mod tokens;

pub use strip_literals::{blank, literals};
pub use tokens::is_word;

/// Line of byte `offset` in `text`, counted from 1.
pub fn line_of(text: &str, offset: usize) -> usize {
    1 + text.as_bytes()[..offset].iter().filter(|&&byte| byte == b'\n').count()
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

#[cfg(test)]
mod tests {
    use super::{line_of, whole_words};

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
}
