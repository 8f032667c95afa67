//! The source of the site: pages and the files that they link to, at the places that they have in the tree.
//!
//! Pages link to files outside of `docs/`, as readers on a code host expect. mdBook knows one folder of sources, so
//! that folder holds copies of just these files: links then lead to the same places on the site as in the tree.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result, bail};
use cargo_metadata::camino::Utf8Path;

use crate::lint_violation::LintViolation;
use crate::rules::links;
use crate::rules::pages::SUMMARY;
use crate::workspace::Workspace;

/// Writes the source of the site into `to`, which is emptied first.
pub fn write(workspace: &Workspace, to: &Utf8Path) -> Result<()> {
    let files = files_of(workspace)?;
    if to.exists() {
        fs::remove_dir_all(to).with_context(|| format!("emptying {to}"))?;
    }
    for file in ["book.toml", "site.css"] {
        copy(&workspace.root.join("docs").join(file), &to.join(file))?;
    }
    for (path, page) in files {
        let target = to.join("src").join(&path);
        match page {
            Some(text) => put(&target, &text)?,
            None => copy(&workspace.root.join(&path), &target)?,
        }
    }
    Ok(())
}

/// A finding if no site can be made of the pages: `cargo xtask check` needs no mdBook.
pub fn check(workspace: &Workspace) -> Option<LintViolation> {
    let error = files_of(workspace).err()?;
    Some(LintViolation::new(
        "site",
        SUMMARY,
        1,
        format!("{error:#}"),
        "`cargo xtask docs` then builds the site",
    ))
}

fn files_of(workspace: &Workspace) -> Result<BTreeMap<String, Option<String>>> {
    let page = |path: &str| workspace.texts.get(path).map(String::as_str).filter(|_| path.ends_with(".md"));
    let is_file = |path: &str| workspace.files.iter().any(|file| file == path);
    files(workspace.text(SUMMARY), page, is_file)
}

fn put(path: &Utf8Path, text: &str) -> Result<()> {
    let folder = path.parent().context("a file lies in a folder")?;
    fs::create_dir_all(folder).with_context(|| format!("making {folder}"))?;
    fs::write(path, text).with_context(|| format!("writing {path}"))
}

fn copy(from: &Utf8Path, to: &Utf8Path) -> Result<()> {
    let folder = to.parent().context("a file lies in a folder")?;
    fs::create_dir_all(folder).with_context(|| format!("making {folder}"))?;
    fs::copy(from, to).with_context(|| format!("copying {from}"))?;
    Ok(())
}

/// Paths in the tree of all files of the site: a page with its text, any other file with `None`.
fn files<'a>(
    summary: &'a str,
    page: impl Fn(&str) -> Option<&'a str>,
    is_file: impl Fn(&str) -> bool,
) -> Result<BTreeMap<String, Option<String>>> {
    let mut files = BTreeMap::new();
    let mut table = summary.to_owned();
    let prose = links::prose(summary);
    let mut listed = Vec::new();
    // From the last one on, so that offsets before it stay.
    for (at, target) in links::targets(&prose).into_iter().rev() {
        let path = links::resolve(SUMMARY, target).with_context(|| format!("{SUMMARY}: {target}"))?;
        table.replace_range(at..at + target.len(), &path);
        listed.push(path);
    }
    files.insert("SUMMARY.md".to_owned(), Some(table));
    for path in &listed {
        let text =
            page(path).with_context(|| format!("{SUMMARY} has a link to {path}, which is not a page"))?;
        files.insert(path.clone(), Some(text.to_owned()));
        for (_, target) in links::targets(&links::prose(text)) {
            let linked = links::resolve(path, target).with_context(|| format!("{path}: {target}"))?;
            if target.starts_with('#') || listed.contains(&linked) {
                continue;
            }
            if linked.ends_with(".md") {
                bail!("{path} links to the page {linked}, which is not on the site: add it to {SUMMARY}");
            }
            if !is_file(&linked) {
                bail!("{path} links to {linked}, which is not a file: link to a file of that folder");
            }
            files.entry(linked).or_insert(None);
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::files;

    fn is_file(path: &str) -> bool {
        path != "sidecar"
    }

    fn page(path: &str) -> Option<&'static str> {
        match path {
            "README.md" => Some("# R\n[a](docs/a.md#x) [y](examples/y.yaml) [w](https://x.org)\n"),
            "docs/a.md" => Some("# A\n[r](../README.md) ![p](pictures/p.svg) [here](#a)\n"),
            "docs/b.md" => Some("# B\n[folder](../sidecar)\n"),
            "docs/c.md" => Some("# C\n[not listed](b.md)\n"),
            _ => None,
        }
    }

    #[test]
    fn the_site_has_the_pages_and_what_they_link_to_at_their_places() {
        let files = files("# S\n- [R](../README.md)\n- [A](a.md)\n", page, is_file).unwrap();
        let names: Vec<&str> = files.keys().map(String::as_str).collect();
        assert_eq!(names, ["README.md", "SUMMARY.md", "docs/a.md", "docs/pictures/p.svg", "examples/y.yaml"]);
        assert_eq!(files["SUMMARY.md"].as_deref(), Some("# S\n- [R](README.md)\n- [A](docs/a.md)\n"));
        assert_eq!(files["examples/y.yaml"], None);
    }

    #[test]
    fn a_link_to_a_folder_or_to_a_page_that_is_not_on_the_site_is_refused() {
        for summary in ["- [B](b.md)\n", "- [C](c.md)\n", "- [D](d.md)\n"] {
            assert!(files(summary, page, is_file).is_err(), "{summary}");
        }
    }
}
