//! Trees with and without a file that no module names.

use std::collections::BTreeMap;

use super::check;
use crate::workspace::Member;

/// The orphans among `sources` in a crate `a` with a library and one integration test.
fn orphans(sources: &[(&str, &str)]) -> Vec<String> {
    let member = Member {
        folder: "a".to_owned(),
        roots: vec!["a/src/lib.rs".to_owned(), "a/tests/main.rs".to_owned()],
        ..Member::default()
    };
    let texts: BTreeMap<_, _> = sources.iter().copied().chain([("a/Cargo.toml", "")]).collect();
    let files: Vec<_> = texts.keys().map(|file| (*file).to_owned()).collect();
    let findings = check(&[member], &files, |file| texts.get(file).copied());
    findings.into_iter().map(|finding| finding.file).collect()
}

#[test]
fn a_tree_in_which_every_file_is_named_passes() {
    let tree = [
        ("a/src/lib.rs", "pub mod b;\n#[cfg(test)] mod tests;"),
        ("a/src/b.rs", "pub(crate) mod c;"),
        ("a/src/b/c.rs", ""),
        ("a/src/tests.rs", ""),
        ("a/tests/main.rs", "mod d;"),
        ("a/tests/d.rs", ""),
    ];
    assert_eq!(orphans(&tree), Vec::<String>::new());
}

#[test]
fn a_file_that_no_one_names_is_found_and_so_is_what_it_names() {
    let tree =
        [("a/src/lib.rs", "mod b;"), ("a/src/b.rs", ""), ("a/src/c.rs", "mod d;"), ("a/src/c/d.rs", "")];
    assert_eq!(orphans(&tree), ["a/src/c.rs", "a/src/c/d.rs"]);
}

#[test]
fn a_declaration_in_a_comment_or_a_string_names_nothing() {
    let tree = [("a/src/lib.rs", "// mod b;\n/* mod b; */ const A: &str = \"mod b;\";"), ("a/src/b.rs", "")];
    assert_eq!(orphans(&tree), ["a/src/b.rs"]);
}

#[test]
fn a_module_is_looked_for_below_its_parent_and_not_beside_it() {
    let tree = [("a/src/lib.rs", "mod b;"), ("a/src/b.rs", "mod c;"), ("a/src/c.rs", "")];
    assert_eq!(orphans(&tree), ["a/src/c.rs"]);
}

#[test]
fn inline_modules_add_their_names_to_the_folder() {
    let tree = [
        ("a/src/lib.rs", "mod b { fn f() { {} } mod c; }\nmod d;"),
        ("a/src/b/c.rs", ""),
        ("a/src/d.rs", ""),
    ];
    assert_eq!(orphans(&tree), Vec::<String>::new());
    let tree = [("a/src/lib.rs", "mod b { }\nmod c;"), ("a/src/b/c.rs", "")];
    assert_eq!(orphans(&tree), ["a/src/b/c.rs"]);
}

#[test]
fn a_path_attribute_is_followed_and_its_modules_lie_beside_it() {
    let tree = [
        ("a/src/lib.rs", "#[cfg(unix)]\n#[path = \"os/unix.rs\"]\nmod os;"),
        ("a/src/os/unix.rs", "mod deep;"),
        ("a/src/os/deep.rs", ""),
        ("a/tests/main.rs", "#[path = \"../src/shared.rs\"] mod shared;"),
        ("a/src/shared.rs", ""),
    ];
    assert_eq!(orphans(&tree), Vec::<String>::new());
    let tree = [("a/src/lib.rs", "#[path = \"x.rs\"] use a;\nmod b;"), ("a/src/x.rs", "")];
    assert_eq!(orphans(&tree), ["a/src/x.rs"]);
}

#[test]
fn a_conditional_path_names_both_files() {
    let tree = [
        ("a/src/lib.rs", "#[cfg_attr(unix, path = \"u.rs\")]\nmod os;"),
        ("a/src/u.rs", ""),
        ("a/src/os.rs", ""),
    ];
    assert_eq!(orphans(&tree), Vec::<String>::new());
}

#[test]
fn an_included_file_is_named() {
    let tree = [("a/src/lib.rs", "include!(\"table.rs\");"), ("a/src/table.rs", "")];
    assert_eq!(orphans(&tree), Vec::<String>::new());
}

#[test]
fn files_of_a_package_outside_the_workspace_are_its_own_affair() {
    let tree =
        [("a/src/lib.rs", ""), ("a/fuzz/Cargo.toml", ""), ("a/fuzz/src/x.rs", ""), ("scripts/y.rs", "")];
    assert_eq!(orphans(&tree), Vec::<String>::new());
}
