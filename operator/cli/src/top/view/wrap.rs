//! Wraps text between phrases: a phrase that does not fit a line moves to the next one.

use ratatui::text::{Line, Span};

/// A phrase that stays together.
pub type Fragment = Vec<Span<'static>>;

/// A phrase without colours.
pub fn plain_fragment(text: impl Into<String>) -> Fragment {
    vec![Span::raw(text.into())]
}

/// Wraps the phrases after `label`, `gap` spaces apart, into lines of `width` columns, indented by the label's width.
/// Only a phrase wider than a whole line is cut, by the terminal.
pub fn wrap_fragments(
    label: &str,
    phrases: impl IntoIterator<Item = Fragment>,
    gap: usize,
    width: usize,
) -> Vec<Line<'static>> {
    let indent = label.chars().count();
    let (mut lines, mut line) = (Vec::new(), Line::from(label.to_owned()));
    for phrase in phrases {
        let wide: usize = phrase.iter().map(Span::width).sum();
        let begun = line.width() > indent;
        if begun && line.width() + gap + wide > width {
            lines.push(std::mem::replace(&mut line, Line::from(" ".repeat(indent))));
        } else if begun {
            line.push_span(" ".repeat(gap));
        }
        line.extend(phrase);
    }
    lines.push(line);
    lines
}

/// Returns the first text that fits `width`, else the last one. Texts are ordered from longest to shortest.
pub fn fitting(width: usize, texts: impl IntoIterator<Item = String>) -> String {
    let mut shortest = String::new();
    for text in texts {
        if text.chars().count() <= width {
            return text;
        }
        shortest = text;
    }
    shortest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrapped(width: usize) -> Vec<String> {
        let phrases = ["one", "two three", "4"].map(plain_fragment);
        wrap_fragments("label ", phrases, 2, width).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn fragments_are_not_split_across_lines() {
        assert_eq!(wrapped(23), ["label one  two three  4"]);
        assert_eq!(wrapped(22), ["label one  two three", "      4"]);
        assert_eq!(wrapped(19), ["label one", "      two three  4"]);
        assert_eq!(wrapped(1), ["label one", "      two three", "      4"]);
    }

    #[test]
    fn the_fullest_text_that_fits_is_taken() {
        let taken = |width| fitting(width, ["long text".to_owned(), "text".to_owned()]);
        assert_eq!([taken(9), taken(8), taken(2)], ["long text", "text", "text"]);
    }
}
