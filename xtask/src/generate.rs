//! Generated files: their generators, and whether the committed files are up to date.
//!
//! To add a generator, add a row to [`GENERATORS`]. Most own one folder: a file there that they do not write is
//! stale.

use std::fs;

use anyhow::{Context, Result};
use cargo_metadata::camino::Utf8Path;

use crate::lint_violation::LintViolation;
use crate::workspace::Workspace;
use crate::{chart, reference};

/// A source of committed files.
pub struct Generator {
    /// The folder of its files, relative to the workspace root.
    pub folder: &'static str,
    /// Whether every file of the folder is its own.
    pub owns_folder: bool,
    /// Names, relative to the folder, and contents of all files in it.
    pub files: fn() -> Vec<(&'static str, String)>,
}

/// All generators.
pub const GENERATORS: [Generator; 4] = [
    Generator { folder: "crds/generated", owns_folder: true, files: sluice_types::crd_yaml },
    Generator { folder: "docs/reference", owns_folder: true, files: reference::pages },
    Generator { folder: "charts/sluice", owns_folder: false, files: chart::values },
    Generator { folder: "charts/sluice/templates/generated", owns_folder: true, files: chart::templates },
];

/// Writes what differs and removes what is stale.
pub fn write_all(root: &Utf8Path) -> Result<()> {
    for generator in &GENERATORS {
        let (folder, files) = (root.join(generator.folder), (generator.files)());
        write_files(&folder, &files)?;
        if generator.owns_folder {
            remove_others(&folder, &files)?;
        }
    }
    Ok(())
}

fn write_files(folder: &Utf8Path, files: &[(&str, String)]) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("creating {folder}"))?;
    for (name, content) in files {
        let path = folder.join(name);
        if fs::read(&path).ok().as_deref() != Some(content.as_bytes()) {
            fs::write(&path, content).with_context(|| format!("writing {path}"))?;
            println!("wrote {path}");
        }
    }
    Ok(())
}

fn remove_others(folder: &Utf8Path, files: &[(&str, String)]) -> Result<()> {
    for entry in folder.read_dir_utf8()? {
        let entry = entry?;
        if !files.iter().any(|(name, _)| *name == entry.file_name()) {
            fs::remove_file(entry.path()).with_context(|| format!("removing {}", entry.path()))?;
            println!("removed {}: no generator writes it", entry.path());
        }
    }
    Ok(())
}

/// Findings for every generated file that is not what its generator writes.
pub fn check(workspace: &Workspace) -> Vec<LintViolation> {
    let drift = GENERATORS.iter().flat_map(|generator| {
        let prefix = format!("{}/", generator.folder);
        let committed = workspace
            .files
            .iter()
            .filter_map(|file| file.strip_prefix(&prefix).map(|name| (name, workspace.text(file))));
        let files = (generator.files)();
        let own =
            |(name, _): &(&str, &str)| generator.owns_folder || files.iter().any(|(file, _)| file == name);
        drift(generator.folder, &committed.filter(own).collect::<Vec<_>>(), &files)
    });
    drift.collect()
}

/// Compares the files of one folder, as (name, content), with what is generated.
fn drift(folder: &str, committed: &[(&str, &str)], generated: &[(&str, String)]) -> Vec<LintViolation> {
    let finding = |name: &str, line: usize, problem: &str| {
        LintViolation::new(
            "generated",
            &format!("{folder}/{name}"),
            line,
            problem,
            "run `cargo xtask gen` and commit the result",
        )
    };
    let changed = generated.iter().filter_map(|(name, content)| {
        match committed.iter().find(|(other, _)| other == name) {
            None => Some(finding(name, 1, "the generated file is missing")),
            Some((_, text)) if text == content => None,
            Some((_, text)) => Some(finding(
                name,
                first_difference(text, content),
                "the file differs from the generated one",
            )),
        }
    });
    let stale = committed.iter().filter(|(name, _)| !generated.iter().any(|(other, _)| other == name));
    changed.chain(stale.map(|(name, _)| finding(name, 1, "no generator writes this file"))).collect()
}

/// Line, counted from 1, at which two texts part.
fn first_difference(one: &str, other: &str) -> usize {
    1 + one.split('\n').zip(other.split('\n')).take_while(|(one, other)| one == other).count()
}

#[cfg(test)]
mod tests {
    use super::{GENERATORS, drift};

    fn problems(committed: &[(&str, &str)]) -> Vec<(String, usize, String)> {
        let generated = [("a.yaml", "one\ntwo\n".to_owned()), ("b.yaml", "x\n".to_owned())];
        let findings = drift("crds/generated", committed, &generated).into_iter();
        findings.map(|finding| (finding.file, finding.line, finding.problem)).collect()
    }

    #[test]
    fn files_that_are_what_is_generated_pass() {
        assert_eq!(problems(&[("a.yaml", "one\ntwo\n"), ("b.yaml", "x\n")]), []);
    }

    #[test]
    fn a_changed_a_missing_and_a_stale_file_are_found() {
        let found = problems(&[("a.yaml", "one\n2\n"), ("c.yaml", "")]);
        let place = |name: &str| format!("crds/generated/{name}");
        assert_eq!(
            found,
            [
                (place("a.yaml"), 2, "the file differs from the generated one".to_owned()),
                (place("b.yaml"), 1, "the generated file is missing".to_owned()),
                (place("c.yaml"), 1, "no generator writes this file".to_owned()),
            ]
        );
    }

    #[test]
    fn every_generator_gives_the_same_files_twice() {
        for generator in &GENERATORS {
            let files = (generator.files)();
            assert!(!files.is_empty(), "{}", generator.folder);
            assert_eq!(files, (generator.files)(), "{}", generator.folder);
        }
    }
}
