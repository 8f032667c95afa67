//! Marker words of English that is hard to read, in comments and strings of Rust and in prose of pages.

use super::links;
use crate::lint_violation::LintViolation;
use crate::rust_text::{literals, test_code::without_tests, whole_words};

const RULE: &str = "words";

/// The record of past releases keeps its words.
const HISTORY: &str = "CHANGELOG.md";

/// Words in lower case, each with its remedy. They are spelled in halves so that this file is free of them.
const MARKERS: [(&str, &str); 11] = [
    (concat!("who", "ever"), NAME_IT),
    (concat!("whom", "ever"), NAME_IT),
    (concat!("no", "body"), NAME_IT),
    (concat!("some", "body"), NAME_IT),
    (concat!("every", "body"), NAME_IT),
    (concat!("who", " comes"), NAME_IT),
    (concat!("so", " many"), "give the number, or name the argument"),
    (concat!("mean", "while"), "say which event, or drop the word"),
    (concat!("be", "side"), "say next to, with, during or in parallel to"),
    (concat!("to", "ld"), "say reported, given or known"),
    (concat!("te", "lls"), "say reports, shows or notifies"),
];

const NAME_IT: &str = "name the thing: the request, a peer, the caller";

/// Findings in the text file `file`.
pub fn check(file: &str, text: &str) -> Vec<LintViolation> {
    if file.ends_with(".rs") {
        let comments = (1..).zip(text.lines()).filter(|(_, line)| line.trim_start().starts_with("//"));
        let mut found: Vec<_> = comments.flat_map(|(at, line)| check_line(file, at, line)).collect();
        if !is_test(file) {
            found.extend(check_strings(file, text));
        }
        return found;
    }
    if file.ends_with(".md") && file != HISTORY {
        let prose = links::prose(text);
        return (1..).zip(prose.lines()).flat_map(|(at, line)| check_line(file, at, line)).collect();
    }
    vec![]
}

/// Strings of tests are expectations and test data.
fn is_test(file: &str) -> bool {
    file.split('/').any(|part| matches!(part, "tests" | "tests.rs"))
}

fn check_strings(file: &str, text: &str) -> Vec<LintViolation> {
    let strings = literals(&without_tests(text));
    (1..).zip(strings.lines()).flat_map(|(at, line)| check_line(file, at, line)).collect()
}

fn check_line(file: &str, number: usize, line: &str) -> Vec<LintViolation> {
    let lower = line.to_lowercase();
    let found = MARKERS.iter().filter(|(word, _)| whole_words(&lower, word).next().is_some());
    found
        .map(|(word, remedy)| LintViolation::new(RULE, file, number, format!("`{word}` is unclear"), *remedy))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::check;

    fn lines(file: &str, text: &str) -> Vec<usize> {
        check(file, text).into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn markers_in_comments_are_refused_and_in_code_are_not() {
        let bad = concat!("let a = 1;\n    /// No", "body knows.\n// so", " many chunks\n");
        assert_eq!(lines("a.rs", bad), [2, 3]);
        assert!(lines("a.rs", concat!("let to", "ld = 1;\n// A holder.\n")).is_empty());
    }

    #[test]
    fn markers_in_strings_are_refused_outside_tests() {
        let text = concat!("fn f() {}\nconst A: &str = \"a\nno", "body b\";\n");
        assert_eq!(lines("a.rs", text), [3]);
        assert!(lines("a/tests/a.rs", text).is_empty() && lines("a/tests.rs", text).is_empty());
        let module = format!("#[cfg(test)]\nmod tests {{\n{text}}}\n");
        assert!(lines("a.rs", &module).is_empty());
    }

    #[test]
    fn markers_in_prose_of_pages_are_refused_and_in_examples_are_not() {
        assert_eq!(lines("a.md", concat!("# A\n\nThe operator te", "lls it.\n")), [3]);
        assert!(lines("a.md", concat!("# A\n\n```text\nte", "lls\n```\n")).is_empty());
        assert!(lines("CHANGELOG.md", concat!("# A\n\nno", "body\n")).is_empty());
    }

    #[test]
    fn markers_within_longer_words_are_no_markers() {
        assert!(lines("a.rs", concat!("// be", "sides, fore", "told\n")).is_empty());
    }
}
