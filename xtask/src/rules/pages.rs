//! Pages for people: no line is too wide to read, and every page is on the site.

use super::links;
use crate::lint_violation::LintViolation;

const RULE: &str = "page";

/// The table of contents of the site.
pub const SUMMARY: &str = "docs/SUMMARY.md";

/// Widest line, in characters. Rows of tables cannot be wrapped and may be wider.
const WIDEST_LINE_CHARS: usize = 120;

/// Pages outside `docs/` whose width is checked.
const ROOT_PAGES: [&str; 3] = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"];

/// Findings for lines that are too wide.
pub fn check(file: &str, text: &str) -> Vec<LintViolation> {
    if !file.starts_with("docs/") && !ROOT_PAGES.contains(&file) {
        return vec![];
    }
    let wide = (1..)
        .zip(text.lines())
        .filter(|(_, line)| line.chars().count() > WIDEST_LINE_CHARS && !line.trim_start().starts_with('|'));
    let problem = format!("the line is wider than {WIDEST_LINE_CHARS} characters");
    wide.map(|(line, _)| LintViolation::new(RULE, file, line, problem.clone(), "break it between two words"))
        .collect()
}

/// Findings for pages of `docs/` that the table of contents does not name, so that no reader of the site finds them.
pub fn unlisted(files: &[String], summary: &str) -> Vec<LintViolation> {
    let prose = links::prose(summary);
    let listed: Vec<String> =
        links::targets(&prose).iter().filter_map(|(_, to)| links::resolve(SUMMARY, to)).collect();
    let pages =
        files.iter().filter(|file| file.starts_with("docs/") && file.ends_with(".md") && *file != SUMMARY);
    let missing = pages.filter(|file| !listed.contains(file));
    missing
        .map(|file| {
            LintViolation::new(
                RULE,
                file,
                1,
                format!("{SUMMARY} does not name the page"),
                "add a line for it there",
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{WIDEST_LINE_CHARS, check, unlisted};

    #[test]
    fn a_line_of_a_page_may_have_the_width_and_no_more_and_a_row_of_a_table_any() {
        let line = "é".repeat(WIDEST_LINE_CHARS);
        let text = format!("{line}\n{line}x\n| {line} |\n  {line}\n");
        let lines = |file| check(file, &text).into_iter().map(|finding| finding.line).collect::<Vec<_>>();
        assert_eq!(lines("docs/a.md"), [2, 4]);
        assert_eq!(lines("README.md"), [2, 4]);
        assert_eq!(lines("CHANGELOG.md"), [0; 0]);
    }

    #[test]
    fn a_page_that_the_table_of_contents_does_not_name_is_found() {
        let files =
            ["README.md", "docs/SUMMARY.md", "docs/a.md", "docs/b/c.md", "docs/x.json"].map(str::to_owned);
        let found =
            |summary| unlisted(&files, summary).into_iter().map(|finding| finding.file).collect::<Vec<_>>();
        assert_eq!(found("- [A](a.md)\n"), ["docs/b/c.md"]);
        assert_eq!(found("- [A](a.md)\n  - [C](b/c.md)\n"), [""; 0]);
    }
}
