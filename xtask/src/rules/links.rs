//! Relative links of markdown pages lead to files of the tree, and their anchors to headings.

use crate::lint_violation::LintViolation;
use crate::rust_text::line_of;

/// Findings in the page `file`. `exists` says whether the tree has a file or folder with that path, `page` gives the
/// text of a file.
pub fn check<'a>(
    file: &str,
    text: &'a str,
    exists: impl Fn(&str) -> bool,
    page: impl Fn(&str) -> Option<&'a str>,
) -> Vec<LintViolation> {
    let prose = prose(text);
    let mut findings = Vec::new();
    for (at, target) in targets(&prose) {
        let Some(path) = resolve(file, target).filter(|path| path.is_empty() || exists(path)) else {
            let problem = format!("the link `{target}` has no target");
            let remedy = "correct it: it starts at the folder of the page and stays in the tree";
            findings.push(LintViolation::new("link", file, line_of(&prose, at), problem, remedy));
            continue;
        };
        let Some((_, anchor)) = target.split_once('#') else { continue };
        let target_text = if target.starts_with('#') { Some(text) } else { page(&path) };
        if path_is_page(file, target, &path) && !target_text.is_some_and(|text| has_anchor(text, anchor)) {
            let problem = format!("the page of the link `{target}` has no such heading");
            let remedy = "name a heading in lower case, with `-` for each space and without punctuation";
            findings.push(LintViolation::new("link", file, line_of(&prose, at), problem, remedy));
        }
    }
    findings
}

fn path_is_page(file: &str, target: &str, path: &str) -> bool {
    let path = if target.starts_with('#') { file } else { path };
    path.ends_with(".md")
}

/// Relative targets of all links of a page, each with its offset; the page is as [`prose`] gives it.
pub fn targets(prose: &str) -> Vec<(usize, &str)> {
    let all = inline_targets(prose).into_iter().chain(reference_targets(prose));
    all.filter(|(_, target)| is_relative(target)).collect()
}

/// Whether a heading of the page has this anchor. A heading that stands there twice has `-1` behind its second anchor.
fn has_anchor(text: &str, anchor: &str) -> bool {
    let visible = outside_fences(text, str::to_owned);
    let headings = visible.lines().filter_map(|line| {
        let title = line.trim_start_matches('#');
        let level = line.len() - title.len();
        ((1..=6).contains(&level) && title.starts_with(' ')).then(|| slug(title.trim()))
    });
    let mut seen: Vec<String> = Vec::new();
    for slug in headings {
        let before = seen.iter().filter(|other| **other == slug).count();
        let own = if before == 0 { slug.clone() } else { format!("{slug}-{before}") };
        if own == anchor {
            return true;
        }
        seen.push(slug);
    }
    false
}

/// The anchor of a heading, as GitHub and mdBook make it; of a link in it the text counts.
fn slug(title: &str) -> String {
    let mut text = String::new();
    let mut rest = title;
    while let Some((before, after)) = rest.split_once("](") {
        text.push_str(before);
        rest = after.split_once(')').map_or("", |(_, rest)| rest);
    }
    text.push_str(rest);
    let kept = text.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// The page with fenced blocks and code spans blanked, offsets and lines kept (bytes of text become spaces).
pub fn prose(text: &str) -> String {
    outside_fences(text, without_spans)
}

/// The page with fenced blocks blanked, and every other line as `visible` gives it.
fn outside_fences(text: &str, visible: impl Fn(&str) -> String) -> String {
    let mut fence: Option<&str> = None;
    let mut prose = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let mark = ["```", "~~~"].into_iter().find(|mark| line.trim_start().starts_with(mark));
        let shown = match (fence, mark) {
            (None, None) => visible(line),
            (None, Some(_)) | (Some(_), None) => hidden(line),
            (Some(open), Some(mark)) if open == mark => {
                fence = None;
                prose.push_str(&hidden(line));
                continue;
            }
            (Some(_), Some(_)) => hidden(line),
        };
        fence = fence.or(mark);
        prose.push_str(&shown);
    }
    prose
}

fn hidden(text: &str) -> String {
    text.bytes().map(|byte| if byte == b'\n' { '\n' } else { ' ' }).collect()
}

/// `line` with the code spans blanked; a backtick without a partner is text.
fn without_spans(line: &str) -> String {
    let parts: Vec<&str> = line.split('`').collect();
    let mut out = String::with_capacity(line.len());
    for (at, part) in parts.iter().enumerate() {
        let is_code = at % 2 == 1 && at + 1 < parts.len();
        out.push_str(&if is_code { hidden(part) } else { (*part).to_owned() });
        if at + 1 < parts.len() {
            out.push('`');
        }
    }
    out
}

/// Targets of `[text](target)` and `![text](target "title")`, each with its offset.
fn inline_targets(prose: &str) -> Vec<(usize, &str)> {
    let starts = prose.match_indices("](").map(|(at, mark)| at + mark.len());
    let target = |at: usize| {
        let inside = &prose[at..at + prose[at..].find([')', '\n'])?];
        let first = inside.trim_start_matches('<').split([' ', '>']).next()?;
        Some((at, first))
    };
    starts.filter_map(target).collect()
}

/// Targets of `[name]: target` at the start of a line.
fn reference_targets(prose: &str) -> Vec<(usize, &str)> {
    let mut targets = Vec::new();
    let mut offset = 0;
    for line in prose.split_inclusive('\n') {
        let reference = line.strip_prefix('[').and_then(|rest| rest.split_once("]: "));
        if let Some((_, target)) = reference.filter(|(name, _)| !name.contains(']') && !name.starts_with('^'))
        {
            targets.push((offset, target.split_whitespace().next().unwrap_or("")));
        }
        offset += line.len();
    }
    targets
}

/// No address (`https:`, `mailto:`).
fn is_relative(target: &str) -> bool {
    let has_scheme = target
        .split_once(':')
        .is_some_and(|(scheme, _)| scheme.bytes().all(|byte| byte.is_ascii_alphanumeric()));
    !has_scheme
}

/// The path that `target` means on the page `file`; `None` if it leaves the tree. Empty for the root.
pub fn resolve(file: &str, target: &str) -> Option<String> {
    let path = target.split(['#', '?']).next()?;
    let folder = file.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut parts: Vec<&str> = if path.starts_with('/') { vec![] } else { folder.split('/').collect() };
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop().filter(|part| !part.is_empty())?),
            part => parts.push(part),
        }
    }
    Some(parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("/"))
}

#[cfg(test)]
mod tests {
    use super::check;

    const TREE: [&str; 4] = ["README.md", "docs", "docs/a.md", "docs/b.md"];

    const NONE: [usize; 0] = [];

    fn broken(file: &str, text: &str) -> Vec<usize> {
        let page = |path: &str| {
            (path == "docs/b.md").then_some("# B\n\n## `sluice` *up* -f [F](x.md)\n## Twice\n## Twice\n")
        };
        let found = check(file, text, |path| TREE.contains(&path), page);
        found.into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn links_that_lead_to_files_and_folders_pass() {
        let text = "[b](b.md) [up](../README.md) [d](./) ![x](/docs/a.md \"title\")\n\n[r]: b.md\n";
        assert_eq!(broken("docs/a.md", text), NONE);
        assert_eq!(
            broken("README.md", "[a](docs/a.md) [d](docs/) [w](https://x.org/y#z) [m](mailto:a@b)"),
            NONE
        );
    }

    #[test]
    fn an_anchor_is_that_of_a_heading() {
        let good = "# A b\n[h](#a-b) [b](b.md#sluice-up--f-f) [c](b.md#twice-1)\n";
        assert_eq!(broken("docs/a.md", good), NONE);
        let bad = "# A\n[h](#b)\n[b](b.md#up)\n[c](b.md#twice-2)\n```\n# Code\n```\n[d](#code)\n";
        assert_eq!(broken("docs/a.md", bad), [2, 3, 4, 8]);
    }

    #[test]
    fn a_link_that_leads_nowhere_is_found_in_every_form() {
        assert_eq!(broken("docs/a.md", "x\n[a](c.md)\n"), [2]);
        assert_eq!(broken("docs/a.md", "[c](README.md)"), [1]);
        assert_eq!(broken("docs/a.md", "text\n\n[r]: c.md\n"), [3]);
        assert_eq!(broken("docs/a.md", "![i](<c.png>)"), [1]);
    }

    #[test]
    fn a_link_that_leaves_the_tree_is_broken() {
        assert_eq!(broken("docs/a.md", "[a](../../README.md)"), [1]);
        assert_eq!(broken("README.md", "[a](../README.md)"), [1]);
    }

    #[test]
    fn what_looks_like_a_link_in_code_is_none() {
        assert_eq!(
            broken("README.md", "`a[0](x)`\n\n```\n[a](c.md)\n```\n~~~\n```\n[a](c.md)\n~~~\n[z](c.md)\n"),
            [10]
        );
    }
}
