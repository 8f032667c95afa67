//! Code behind `#[cfg(test)]`.

use super::blank;

/// Byte ranges of the items that stand behind `#[cfg(test)]` in blanked source: code of tests only.
pub fn test_ranges(blanked: &str) -> Vec<std::ops::Range<usize>> {
    blanked.match_indices("#[cfg(test)]").map(|(at, _)| at..item_end(blanked, at)).collect()
}

/// `text` with the code of tests turned into spaces, every byte offset and line kept.
pub fn without_tests(text: &str) -> String {
    let mut bytes = text.as_bytes().to_vec();
    for range in test_ranges(&blank(text)) {
        let shown = bytes[range].iter_mut().filter(|byte| **byte != b'\n');
        shown.for_each(|byte| *byte = b' ');
    }
    String::from_utf8_lossy(&bytes).into_owned()
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
    use super::{test_ranges, without_tests};

    #[test]
    fn the_range_of_a_test_module_ends_at_its_brace() {
        let text = "fn a() {}\n#[cfg(test)]\nmod t { fn b() {} }\nfn c() {}";
        let range = test_ranges(text).remove(0);
        assert_eq!(&text[range], "#[cfg(test)]\nmod t { fn b() {} }");
        let text = "#[cfg(test)]\nmod t;\nfn c() {}";
        assert_eq!(&text[test_ranges(text).remove(0)], "#[cfg(test)]\nmod t;");
    }

    #[test]
    fn without_tests_every_line_stays_where_it_is() {
        let text = "fn a() {}\n#[cfg(test)]\nmod t { \"}\"; }\nfn c() {}";
        assert_eq!(
            without_tests(text),
            format!("fn a() {{}}\n{}\n{}\nfn c() {{}}", " ".repeat(12), " ".repeat(14))
        );
    }
}
