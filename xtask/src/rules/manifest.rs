//! Member manifests take lints and every version from the workspace.
//!
//! A reader of lines is enough here: manifests are formatted, and cargo itself has parsed them before.

use crate::lint_violation::LintViolation;

const RULE: &str = "manifest";

/// A `key = value` of a manifest, with the table that it stands in.
struct Entry<'a> {
    line: usize,
    table: &'a str,
    key: &'a str,
    value: &'a str,
}

/// Findings in the manifest `file` of a member, with text `text`.
pub fn check(file: &str, text: &str) -> Vec<LintViolation> {
    let entries = entries(text);
    let mut findings = Vec::new();
    if !entries.iter().any(is_lint_inheritance) {
        let remedy = "add `[lints]` with `workspace = true`";
        findings.push(LintViolation::new(
            RULE,
            file,
            1,
            "the lints of the workspace are not inherited",
            remedy,
        ));
    }
    findings.extend(versions(file, text, &entries));
    findings
}

/// Line of the dependency that the manifest calls `key`; 1 if it is not there.
pub fn dependency_line(text: &str, key: &str) -> usize {
    let names = |entry: &&Entry| match dependency_of(entry.table) {
        Some("") => entry.key.split('.').next() == Some(key),
        Some(name) => name == key,
        None => false,
    };
    entries(text).iter().find(names).map_or(1, |entry| entry.line)
}

fn is_lint_inheritance(entry: &Entry) -> bool {
    let path = format!("{}.{}", entry.table, entry.key);
    entry.value == "true" && matches!(path.as_str(), "lints.workspace" | ".lints.workspace")
}

/// Dependencies that do not take their version from the workspace.
fn versions(file: &str, text: &str, entries: &[Entry]) -> Vec<LintViolation> {
    let mut findings = Vec::new();
    for entry in entries {
        let inherits = match dependency_of(entry.table) {
            None => continue,
            Some("") => entry_inherits(entry, entries),
            Some(_) => table_inherits(entry.table, entries),
        };
        if !inherits {
            let name = dependency_of(entry.table).filter(|name| !name.is_empty());
            let name = name.unwrap_or_else(|| entry.key.split('.').next().unwrap_or(entry.key));
            findings.push(own_version(file, dependency_line(text, name), name));
        }
    }
    findings.dedup();
    findings
}

/// `x.workspace = true`, or `x = { workspace = true, .. }`, or another line of `x` that says the former.
fn entry_inherits(entry: &Entry, entries: &[Entry]) -> bool {
    let name = entry.key.split('.').next().unwrap_or(entry.key);
    let dotted = format!("{name}.workspace");
    let said = |other: &Entry| other.table == entry.table && other.key == dotted && other.value == "true";
    let inline = entry.value.replace(' ', "");
    said(entry)
        || inline.contains("{workspace=true")
        || inline.contains(",workspace=true")
        || entries.iter().any(said)
}

fn table_inherits(table: &str, entries: &[Entry]) -> bool {
    entries.iter().any(|entry| entry.table == table && entry.key == "workspace" && entry.value == "true")
}

fn own_version(file: &str, line: usize, name: &str) -> LintViolation {
    let problem = format!("`{name}` does not take its version from the workspace");
    let remedy = format!("add it to [workspace.dependencies] and write `{name}.workspace = true`");
    LintViolation::new(RULE, file, line, problem, remedy)
}

/// For a table of dependencies the empty string, for the table of one dependency its name, else `None`.
fn dependency_of(table: &str) -> Option<&str> {
    let table = match table.strip_prefix("target.") {
        // The condition of `[target.'cfg(..)'.dependencies]` may hold dots and quotes.
        Some(rest) => {
            &rest[rest.find("dependencies").map_or(0, |at| rest[..at].rfind('.').map_or(0, |dot| dot + 1))..]
        }
        None => table,
    };
    let kinds = ["dependencies", "dev-dependencies", "build-dependencies"];
    kinds.iter().find_map(|kind| match table.strip_prefix(kind)? {
        "" => Some(""),
        rest => rest.strip_prefix('.'),
    })
}

fn entries(text: &str) -> Vec<Entry<'_>> {
    let mut entries = Vec::new();
    let mut table = "";
    let mut open_brackets = 0_isize;
    for (number, line) in (1..).zip(text.lines()) {
        let line = without_comment(line).trim();
        let continued = open_brackets > 0;
        if !continued && line.starts_with('[') {
            table = line.trim_matches(['[', ']']).trim();
            continue;
        }
        open_brackets += brackets(line);
        if let Some((key, value)) = line.split_once('=').filter(|_| !continued) {
            entries.push(Entry { line: number, table, key: key.trim(), value: value.trim() });
        }
    }
    entries
}

fn brackets(line: &str) -> isize {
    line.bytes()
        .map(|byte| isize::from(byte == b'[' || byte == b'{') - isize::from(byte == b']' || byte == b'}'))
        .sum()
}

/// A `#` inside quotes starts no comment.
fn without_comment(line: &str) -> &str {
    let mut quoted = false;
    for (at, byte) in line.bytes().enumerate() {
        match byte {
            b'"' => quoted = !quoted,
            b'#' if !quoted => return &line[..at],
            _ => {}
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::{check, dependency_line};

    const LINTS: &str = "[lints]\nworkspace = true\n";

    fn problems(dependencies: &str) -> Vec<(usize, String)> {
        let text = format!("{LINTS}{dependencies}");
        check("x/Cargo.toml", &text).into_iter().map(|finding| (finding.line, finding.problem)).collect()
    }

    #[test]
    fn all_ways_to_inherit_a_version_pass() {
        let all = "[dependencies]\na.workspace = true # why\nb = { workspace = true, features = [\n \"x\",\n] }\n\
                   c = { optional = true, workspace = true }\nd.workspace = true\nd.optional = true\n\
                   [dev-dependencies.e]\nworkspace = true\nfeatures = [\"y\"]\n\
                   [target.'cfg(target_os = \"linux\")'.dependencies]\nf.workspace = true\n";
        assert_eq!(problems(all), []);
    }

    #[test]
    fn a_version_of_its_own_is_refused_in_every_kind_of_table() {
        let problem = |name: &str| format!("`{name}` does not take its version from the workspace");
        assert_eq!(problems("[dependencies]\na = \"1\"\n"), [(4, problem("a"))]);
        assert_eq!(problems("[dev-dependencies]\nb = { path = \"../b\" }\n"), [(4, problem("b"))]);
        assert_eq!(problems("[build-dependencies.c]\nversion = \"1\"\nfeatures = []\n"), [(4, problem("c"))]);
        assert_eq!(problems("[target.'cfg(a.b)'.dependencies]\nd = \"1\"\n"), [(4, problem("d"))]);
    }

    #[test]
    fn a_manifest_without_the_lints_of_the_workspace_is_refused() {
        let found = |text| check("x/Cargo.toml", text).len();
        assert_eq!(found("[package]\nname = \"x\"\n"), 1);
        assert_eq!(found("[lints.rust]\nmissing_docs = \"allow\"\n"), 1);
        assert_eq!(found("[lints]\nworkspace = false\n"), 1);
        assert_eq!(found("lints.workspace = true\n[package]\nname = \"x\"\n"), 0);
    }

    #[test]
    fn the_line_of_a_dependency_is_found_in_every_form() {
        let text =
            "[dependencies]\nab.workspace = true\na.workspace = true\n[dependencies.c]\nworkspace = true\n";
        assert_eq!(["a", "ab", "c", "missing"].map(|key| dependency_line(text, key)), [3, 2, 5, 1]);
    }
}
