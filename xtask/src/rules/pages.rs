//! Pages for people: no line is too wide to read, and every page is on the site.

use super::links;
use crate::lint_violation::LintViolation;

const RULE: &str = "page";

/// The table of contents of the site.
pub const SUMMARY: &str = "docs/SUMMARY.md";

/// Widest line, in characters. Rows of tables cannot be wrapped: each of their cells has a limit.
const WIDEST_LINE_CHARS: usize = 120;

/// Longest cell of a table, in characters. Longer text belongs below the table.
const LONGEST_CELL_CHARS: usize = 200;

/// Pages outside `docs/` whose width is checked.
const ROOT_PAGES: [&str; 4] = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"];

/// Findings for lines that are too wide, and for tables with long cells.
pub fn check(file: &str, text: &str) -> Vec<LintViolation> {
    if !file.starts_with("docs/") && !ROOT_PAGES.contains(&file) {
        return vec![];
    }
    let lines = (1..).zip(text.lines());
    lines
        .filter_map(|(number, line)| {
            let (problem, mend) = too_wide(line)?;
            Some(LintViolation::new(RULE, file, number, problem, mend))
        })
        .collect()
}

/// The problem of a line and its mend.
fn too_wide(line: &str) -> Option<(String, &'static str)> {
    if !line.trim_start().starts_with('|') {
        return (line.chars().count() > WIDEST_LINE_CHARS).then(|| {
            (format!("the line is wider than {WIDEST_LINE_CHARS} characters"), "break it between two words")
        });
    }
    let longest = line.split('|').map(|cell| cell.trim().chars().count()).max();
    (longest > Some(LONGEST_CELL_CHARS)).then(|| {
        (
            format!("a cell of the table is longer than {LONGEST_CELL_CHARS} characters"),
            "shorten it, or write it below the table",
        )
    })
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
    use super::{LONGEST_CELL_CHARS, WIDEST_LINE_CHARS, check, unlisted};

    #[test]
    fn a_line_of_a_page_may_have_the_width_and_no_more_and_a_row_of_a_table_more() {
        let line = "é".repeat(WIDEST_LINE_CHARS);
        let text = format!("{line}\n{line}x\n| {line} |{line}x|\n  {line}\n");
        let lines = |file| check(file, &text).into_iter().map(|finding| finding.line).collect::<Vec<_>>();
        assert_eq!(lines("docs/a.md"), [2, 4]);
        assert_eq!(lines("README.md"), [2, 4]);
        assert_eq!(lines("sidecar/README.md"), [0; 0]);
    }

    #[test]
    fn a_cell_of_a_table_may_have_its_length_and_no_more() {
        let cell = "é".repeat(LONGEST_CELL_CHARS);
        let text = format!("| a | b |\n| {cell} | b |\n| a | {cell}x |\n");
        assert_eq!(
            check("docs/a.md", &text).into_iter().map(|finding| finding.line).collect::<Vec<_>>(),
            [3]
        );
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
