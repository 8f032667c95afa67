//! Built pages: their links, each of which leads to a file of the site and its anchor to an element there, and a
//! change of all.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::{Context, Result};
use cargo_metadata::camino::{Utf8Path, Utf8PathBuf};

use crate::rules::links::resolve;

/// `PAGE: LINK` for each link below `site` that leads nowhere.
pub fn broken_links(site: &Utf8Path) -> Result<Vec<String>> {
    let mut files = Vec::new();
    walk(site, site, &mut files)?;
    let mut pages = BTreeMap::new();
    for file in files.iter().filter(|file| file.extension() == Some("html")) {
        // Served at any address, so its links begin at the root, which a folder does not have.
        if file.as_str() != "404.html" {
            let text = fs::read_to_string(site.join(file)).with_context(|| format!("reading {file}"))?;
            pages.insert(file.to_string(), text);
        }
    }
    let files: BTreeSet<&str> = files.iter().map(|file| file.as_str()).collect();
    Ok(broken(&files, &pages))
}

/// Makes `change` to every page below `site`.
pub fn rewrite(site: &Utf8Path, change: impl Fn(&str) -> String) -> Result<()> {
    let mut files = Vec::new();
    walk(site, site, &mut files)?;
    for file in files.iter().filter(|file| file.extension() == Some("html")) {
        let path = site.join(file);
        let text = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
        let changed = change(&text);
        if changed != text {
            fs::write(&path, changed).with_context(|| format!("writing {path}"))?;
        }
    }
    Ok(())
}

fn walk(site: &Utf8Path, folder: &Utf8Path, files: &mut Vec<Utf8PathBuf>) -> Result<()> {
    for entry in folder.read_dir_utf8().with_context(|| format!("reading {folder}"))? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            walk(site, entry.path(), files)?;
        } else {
            files.push(entry.path().strip_prefix(site).context("a file of the site lies in it")?.to_owned());
        }
    }
    Ok(())
}

fn broken(files: &BTreeSet<&str>, pages: &BTreeMap<String, String>) -> Vec<String> {
    let ids: BTreeMap<&str, BTreeSet<&str>> =
        pages.iter().map(|(name, text)| (name.as_str(), attributes(text, " id=\"").collect())).collect();
    let mut broken = Vec::new();
    for (page, text) in pages {
        for link in attributes(text, " href=\"").chain(attributes(text, " src=\"")) {
            if !leads_somewhere(files, &ids, page, link) {
                broken.push(format!("{page}: {link}"));
            }
        }
    }
    broken.dedup();
    broken
}

fn leads_somewhere(
    files: &BTreeSet<&str>,
    ids: &BTreeMap<&str, BTreeSet<&str>>,
    page: &str,
    link: &str,
) -> bool {
    if link.contains("://") || link.starts_with("mailto:") || link.starts_with("javascript:") {
        return true;
    }
    let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
    let target = if path.is_empty() { Some(page.to_owned()) } else { resolve(page, path) };
    let Some(target) = target.filter(|target| files.contains(target.as_str())) else { return false };
    anchor.is_empty() || ids.get(target.as_str()).is_some_and(|ids| ids.contains(anchor))
}

/// Values of an attribute, whose `start` ends with the quotation mark.
fn attributes<'a>(text: &'a str, start: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(start).skip(1).filter_map(|rest| rest.split('"').next())
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::broken;

    fn of(text: &str) -> Vec<String> {
        let files = BTreeSet::from(["docs/a.html", "docs/b.html", "docs/p.svg", "index.html"]);
        let pages = BTreeMap::from([
            ("docs/a.html".to_owned(), text.to_owned()),
            ("docs/b.html".to_owned(), "<h2 id=\"part\">Part</h2>".to_owned()),
        ]);
        broken(&files, &pages)
    }

    #[test]
    fn links_to_files_of_the_site_and_to_elements_pass() {
        let text = "<a href=\"b.html#part\"><img src=\"p.svg\"><a id=\"x\" href=\"#x\"><a href=\"../index.html\">\
                    <a href=\"https://x.org/y#z\">";
        assert_eq!(of(text), [""; 0]);
    }

    #[test]
    fn a_missing_file_and_a_missing_element_are_found() {
        let text = "<a href=\"c.html\"><img src=\"q.svg\"><a href=\"b.html#none\"><a href=\"#none\">";
        let missing = ["c.html", "b.html#none", "#none", "q.svg"];
        assert_eq!(of(text), missing.map(|link| format!("docs/a.html: {link}")));
    }
}
