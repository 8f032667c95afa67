//! Text that must not be committed: leftovers of debugging, paths of one machine, lines too long to read.

use super::{links, pages};
use crate::lint_violation::LintViolation;

const RULE: &str = "tidy";

/// Longest line of Rust source, in characters. rustfmt leaves strings and comments alone.
const LONGEST_LINE_CHARS: usize = 200;

/// Banned words, each with its remedy. They are spelled in halves so that this file is free of them.
const BANNED: [(&str, &str); 2] = [
    (concat!("dbg", "!"), "log it with tracing, or remove it"),
    (concat!("FIX", "ME"), "fix it, or write in the text what is missing"),
];

/// Starts of absolute paths that exist on one machine only.
const MACHINE_PATHS: [&str; 3] = [concat!("/wo", "rk/"), concat!("/ho", "me/"), concat!("/tmp/", "bash")];

/// Findings in the text file `file`.
pub fn check(file: &str, text: &str) -> Vec<LintViolation> {
    let mut findings: Vec<LintViolation> =
        (1..).zip(text.lines()).flat_map(|(at, line)| check_line(file, at, line)).collect();
    // The parts of mdBook's table of contents are headings of the first level.
    if file.ends_with(".md") && file != pages::SUMMARY {
        findings.extend(one_title(file, text));
    }
    findings
}

fn check_line(file: &str, number: usize, line: &str) -> Vec<LintViolation> {
    let banned = BANNED.iter().filter(|(word, _)| has_word(line, word));
    let banned = banned.map(|(word, remedy)| (format!("`{word}` is a leftover"), *remedy));
    let paths = MACHINE_PATHS.iter().filter(|path| has_path(line, path));
    let paths = paths.map(|path| {
        (
            format!("a path below {path} exists on one machine only"),
            "make it relative, or take it from the environment",
        )
    });
    let long = (file.ends_with(".rs") && line.chars().count() > LONGEST_LINE_CHARS)
        .then(|| (format!("the line is longer than {LONGEST_LINE_CHARS} characters"), "break it"));
    let all = banned.chain(paths).chain(long);
    all.map(|(problem, remedy)| LintViolation::new(RULE, file, number, problem, remedy)).collect()
}

fn has_word(line: &str, word: &str) -> bool {
    preceded(line, word, |before| !before.is_alphanumeric() && before != '_')
}

/// `path` at its beginning: not in the middle of a longer path or of an address.
fn has_path(line: &str, path: &str) -> bool {
    preceded(line, path, |before| !before.is_alphanumeric() && !"_-./~}".contains(before))
}

/// Whether `needle` stands in `line` at its start or after a character that `fits`.
fn preceded(line: &str, needle: &str, fits: impl Fn(char) -> bool) -> bool {
    line.match_indices(needle).any(|(at, _)| line[..at].chars().next_back().is_none_or(&fits))
}

/// A page has one title, and so exactly one heading of the first level.
fn one_title(file: &str, text: &str) -> Vec<LintViolation> {
    let prose = links::prose(text);
    let titles = (1..).zip(prose.lines()).filter(|(_, line)| line.starts_with("# "));
    let lines: Vec<usize> = titles.map(|(number, _)| number).collect();
    match lines.as_slice() {
        [_] => vec![],
        [] => {
            vec![LintViolation::new(RULE, file, 1, "the page has no title", "start it with one `# Heading`")]
        }
        [_, more @ ..] => more.iter().map(|&number| second_title(file, number)).collect(),
    }
}

fn second_title(file: &str, line: usize) -> LintViolation {
    LintViolation::new(RULE, file, line, "the page has a second title", "make it `##` or deeper")
}

#[cfg(test)]
mod tests {
    use super::{LONGEST_LINE_CHARS, check};

    fn problems(file: &str, text: &str) -> Vec<(usize, String)> {
        check(file, text).into_iter().map(|finding| (finding.line, finding.problem)).collect()
    }

    #[test]
    fn leftovers_of_debugging_are_refused() {
        assert_eq!(problems("a.rs", concat!("fn a() {\n    dbg", "!(1);\n}")).len(), 1);
        assert_eq!(problems("a.sh", concat!("# FIX", "ME later"))[0].0, 1);
        assert_eq!(problems("a.rs", concat!("my_dbg", "!(1); // PREFIX", "ME")), []);
    }

    #[test]
    fn a_path_of_one_machine_is_refused_and_the_middle_of_another_path_is_not() {
        for bad in [concat!("see /wo", "rk/x"), concat!("\"/ho", "me/me\""), concat!("cd /tmp/", "bash_jobs")]
        {
            assert_eq!(problems("a.txt", bad).len(), 1, "{bad}");
        }
        for good in
            [concat!("a/wo", "rk/x"), concat!("https://a.org/ho", "me/"), concat!("${A}/wo", "rk/"), "/tmp/x"]
        {
            assert_eq!(problems("a.txt", good), [], "{good}");
        }
    }

    #[test]
    fn a_line_of_rust_may_have_two_hundred_characters_and_no_more() {
        let line = "é".repeat(LONGEST_LINE_CHARS);
        assert_eq!(problems("a.rs", &line), []);
        assert_eq!(problems("a.rs", &format!("x\n{line}x"))[0].0, 2);
        assert_eq!(problems("a.md", &format!("# T\n{line}x")), []);
    }

    #[test]
    fn a_page_has_exactly_one_title_and_a_comment_in_a_code_block_is_none() {
        assert_eq!(problems("a.md", "# Title\n\n```sh\n# comment\n```\n## Part\n"), []);
        assert_eq!(problems("a.md", "Text\n"), [(1, "the page has no title".to_owned())]);
        assert_eq!(problems("a.md", "# A\n\n# B\n"), [(3, "the page has a second title".to_owned())]);
    }
}
