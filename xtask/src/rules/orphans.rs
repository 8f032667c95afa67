//! A source file that no module names is unused, and the compiler does not report it.

mod declared;

use std::collections::BTreeSet;

use crate::lint_violation::LintViolation;
use crate::workspace::Member;
use declared::{Source, declared};

/// Findings for the `.rs` files of `files` that lie in a member and that no target of it reaches.
///
/// `text` gives the text of a file, or `None` if there is no such file.
pub fn check<'a>(
    members: &[Member],
    files: &[String],
    text: impl Fn(&str) -> Option<&'a str>,
) -> Vec<LintViolation> {
    let roots = members.iter().flat_map(|member| &member.roots).cloned();
    let reached = reached(roots, text);
    let of_a_member = |file: &&String| owner(file, files).is_some_and(|folder| is_member(folder, members));
    let sources = files.iter().filter(|file| file.ends_with(".rs")).filter(of_a_member);
    sources.filter(|file| !reached.contains(*file)).map(|file| finding(file)).collect()
}

/// All files that `roots` reach by `mod` declarations and `include!`.
fn reached<'a>(
    roots: impl Iterator<Item = String>,
    text: impl Fn(&str) -> Option<&'a str>,
) -> BTreeSet<String> {
    let mut waiting: Vec<Source> = roots.map(Source::root).collect();
    let mut reached = BTreeSet::new();
    while let Some(source) = waiting.pop() {
        let Some(content) = text(&source.file) else { continue };
        if reached.insert(source.file.clone()) {
            waiting.extend(declared(&source, content));
        }
    }
    reached
}

/// Folder of the package that `file` belongs to: the nearest one above it that holds a manifest.
fn owner<'a>(file: &'a str, files: &[String]) -> Option<&'a str> {
    let mut folder = file;
    while let Some(slash) = folder.rfind('/') {
        folder = &folder[..slash];
        if files.binary_search(&format!("{folder}/Cargo.toml")).is_ok() {
            return Some(folder);
        }
    }
    None
}

fn is_member(folder: &str, members: &[Member]) -> bool {
    members.iter().any(|member| member.folder == folder)
}

fn finding(file: &str) -> LintViolation {
    let remedy = "declare it with `mod`, or delete it";
    LintViolation::new("orphan", file, 1, "no module names this file, so nothing compiles it", remedy)
}

#[cfg(test)]
mod tests;
