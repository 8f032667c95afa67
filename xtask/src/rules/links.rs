//! Relative links of markdown pages lead to files of the tree.

use crate::finding::Finding;
use crate::rust_text::line_of;

/// Findings in the page `file`. `exists` says whether the tree has a file or folder with that path.
pub fn check(file: &str, text: &str, exists: impl Fn(&str) -> bool) -> Vec<Finding> {
    let prose = prose(text);
    let targets = inline_targets(&prose).into_iter().chain(reference_targets(&prose));
    let broken = targets.filter(|(_, target)| is_relative(target)).filter(|(_, target)| {
        let resolved = resolve(file, target);
        !resolved.is_some_and(|path| path.is_empty() || exists(&path))
    });
    broken.map(|(at, target)| finding(file, line_of(&prose, at), target)).collect()
}

fn finding(file: &str, line: usize, target: &str) -> Finding {
    let problem = format!("the link `{target}` leads nowhere");
    Finding::new(
        "link",
        file,
        line,
        problem,
        "correct it: it starts at the folder of the page and stays in the tree",
    )
}

/// The page with fenced blocks and code spans blanked, offsets and lines kept (bytes of text become spaces).
pub fn prose(text: &str) -> String {
    let mut fence: Option<&str> = None;
    let mut prose = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let mark = ["```", "~~~"].into_iter().find(|mark| line.trim_start().starts_with(mark));
        let visible = match (fence, mark) {
            (None, None) => without_spans(line),
            (None, Some(_)) | (Some(_), None) => hidden(line),
            (Some(open), Some(mark)) if open == mark => {
                fence = None;
                prose.push_str(&hidden(line));
                continue;
            }
            (Some(_), Some(_)) => hidden(line),
        };
        fence = fence.or(mark);
        prose.push_str(&visible);
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

/// No address (`https:`, `mailto:`) and no place in the page itself.
fn is_relative(target: &str) -> bool {
    let has_scheme = target
        .split_once(':')
        .is_some_and(|(scheme, _)| scheme.bytes().all(|byte| byte.is_ascii_alphanumeric()));
    !target.starts_with('#') && !has_scheme
}

/// The path that `target` means on the page `file`; `None` if it leaves the tree.
fn resolve(file: &str, target: &str) -> Option<String> {
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
        check(file, text, |path| TREE.contains(&path)).into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn links_that_lead_to_files_and_folders_pass() {
        let text = "[b](b.md) [up](../README.md#part) [d](./) ![x](/docs/a.md \"title\")\n\n[r]: b.md\n";
        assert_eq!(broken("docs/a.md", text), NONE);
        assert_eq!(
            broken("README.md", "[a](docs/a.md) [d](docs/) [here](#x) [w](https://x.org/y) [m](mailto:a@b)"),
            NONE
        );
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
