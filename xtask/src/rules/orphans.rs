//! A source file that no module names is unused, and the compiler does not report it.

use std::collections::BTreeSet;

use crate::lint_violation::LintViolation;
use crate::rust_text::module_files::reached;
use crate::workspace::Member;

/// Findings for the `.rs` files of `files` that lie in a member and that no target of it reaches.
///
/// `text` gives the text of a file, or `None` if there is no such file.
pub fn check<'a>(
    members: &[Member],
    files: &[String],
    text: impl Fn(&str) -> Option<&'a str>,
) -> Vec<LintViolation> {
    let roots = members.iter().flat_map(|member| &member.roots).cloned();
    let reached: BTreeSet<String> = reached(roots, text).into_iter().map(|source| source.file).collect();
    let of_a_member = |file: &&String| owner(file, files).is_some_and(|folder| is_member(folder, members));
    let sources = files.iter().filter(|file| file.ends_with(".rs")).filter(of_a_member);
    sources.filter(|file| !reached.contains(*file)).map(|file| finding(file)).collect()
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
    LintViolation::new("orphan", file, 1, "no module declares this file, so it is not compiled", remedy)
}

#[cfg(test)]
mod tests;
