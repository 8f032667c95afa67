//! Files with several mistakes: all of them are named, by file, line, column and field. Each folder of `mistakes` has
//! files that are loaded together, and in `expected.txt` what is said of them.

use std::path::{Path, PathBuf};

use sluice_types::load::{Loader, SourceFile};

fn cases() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mistakes");
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut cases: Vec<PathBuf> = entries.collect();
    cases.sort();
    cases
}

/// The files of a case, by name.
fn sources(case: &Path) -> Vec<SourceFile> {
    let files = std::fs::read_dir(case).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = files.filter(|file| file.extension().unwrap() == "yaml").collect();
    files.sort();
    let name = |file: &PathBuf| file.file_name().unwrap().to_str().unwrap().to_owned();
    files.iter().map(|file| SourceFile::new(&name(file), &std::fs::read_to_string(file).unwrap())).collect()
}

#[test]
fn every_mistake_of_every_file_is_named() {
    let cases = cases();
    assert!(cases.len() >= 6, "{cases:?}");
    for case in cases {
        let said = Loader::new().load(&sources(&case)).into_result().unwrap_err().to_string() + "\n";
        let expected = std::fs::read_to_string(case.join("expected.txt")).unwrap_or_default();
        assert_eq!(said, expected, "{}:\n{said}", case.display());
    }
}
