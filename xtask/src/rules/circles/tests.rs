//! Small crates with and without a circle.

use std::collections::BTreeMap;

use super::check;
use crate::lint_violation::LintViolation;
use crate::workspace::Member;

fn findings(sources: &[(&str, &str)]) -> Vec<LintViolation> {
    let roots = vec!["a/src/lib.rs".to_owned(), "a/tests/main.rs".to_owned()];
    let member = Member { folder: "a".to_owned(), roots, ..Member::default() };
    let texts: BTreeMap<_, _> = sources.iter().copied().collect();
    check(&[member], |file| texts.get(file).copied())
}

fn problems(sources: &[(&str, &str)]) -> Vec<String> {
    findings(sources).into_iter().map(|finding| finding.problem).collect()
}

const NONE: [String; 0] = [];

const TWO: [(&str, &str); 3] = [
    ("a/src/lib.rs", "mod b;\nmod c;"),
    ("a/src/b.rs", "//! b\nuse crate::c::{self, C};\npub struct B(C);\nfn f() { c::g() }"),
    ("a/src/c.rs", "pub struct C;\npub fn g() -> super::b::B {}"),
];

#[test]
fn two_files_that_use_each_other_are_named_with_their_items() {
    let found = findings(&TWO).remove(0);
    assert_eq!((found.file.as_str(), found.line), ("a/src/b.rs", 2));
    assert_eq!(found.problem, "2 files use each other: b.rs uses C, g of c.rs; c.rs uses B of b.rs");
}

#[test]
fn files_that_use_each_other_one_way_pass() {
    let tree = [
        ("a/src/lib.rs", "mod b;\nmod c;\nmod d;"),
        ("a/src/b.rs", "use crate::{c::C, d::D};"),
        ("a/src/c.rs", "use crate::d::D;"),
        ("a/src/d.rs", "use std::fmt::Debug;"),
    ];
    assert_eq!(problems(&tree), NONE);
}

#[test]
fn a_longer_circle_is_one_finding_and_files_outside_it_are_not_named() {
    let tree = [
        ("a/src/lib.rs", "mod b;\nmod c;\nmod d;\nmod e;\npub use e::E;"),
        ("a/src/b.rs", "use crate::c::C;"),
        ("a/src/c.rs", "use crate::d::D;\nuse crate::e::E;"),
        ("a/src/d.rs", "use crate::b::B;"),
        ("a/src/e.rs", ""),
    ];
    let expected = "3 files use each other: b.rs uses C of c.rs; c.rs uses D of d.rs; d.rs uses B of b.rs";
    assert_eq!(problems(&tree), [expected]);
}

#[test]
fn a_parent_that_uses_its_child_must_not_define_what_the_child_uses() {
    let child = ("a/src/b/c.rs", "use super::B;\npub struct C;");
    let root = ("a/src/lib.rs", "mod b;");
    let tree = [root, ("a/src/b.rs", "mod c;\nuse c::C;\npub struct B;"), child];
    assert_eq!(problems(&tree), ["2 files use each other: b.rs uses C of b/c.rs; b/c.rs uses B of b.rs"]);
    let tree = [root, ("a/src/b.rs", "mod c;\npub use c::C;\npub struct B;"), child];
    assert_eq!(problems(&tree), NONE);
    let tree = [root, ("a/src/b.rs", "mod c;\npub use c::C;\npub struct B { c: C }"), child];
    assert_eq!(problems(&tree).len(), 1, "the parent names what it re-exports");
}

#[test]
fn a_re_export_is_followed_to_the_file_that_defines_the_item() {
    let tree = [
        ("a/src/lib.rs", "mod b;\nmod e;"),
        ("a/src/b.rs", "mod c;\nmod d;\npub use c::C;"),
        ("a/src/b/c.rs", "pub use super::d::D as C;"),
        ("a/src/b/d.rs", "use crate::e::E;\npub struct D(E);"),
        ("a/src/e.rs", "pub struct E(crate::b::C);"),
    ];
    assert_eq!(problems(&tree), ["2 files use each other: b/d.rs uses E of e.rs; e.rs uses D of b/d.rs"]);
}

#[test]
fn re_exports_that_name_each_other_end() {
    let tree = [
        ("a/src/lib.rs", "mod b;\nmod c;"),
        ("a/src/b.rs", "pub use crate::c::X;"),
        ("a/src/c.rs", "pub use crate::b::X;\nconst Y: X = 1;"),
    ];
    assert_eq!(problems(&tree), NONE);
}

#[test]
fn code_of_tests_comments_and_strings_tie_nothing() {
    let free =
        "// crate::b::B\n#[cfg(test)]\nmod tests { use crate::b::B; }\nconst S: &str = \"crate::b::B\";";
    let tree = [
        ("a/src/lib.rs", "mod b;\nmod c;\n#[cfg(test)]\nmod t;"),
        ("a/src/b.rs", "use crate::c::C;\n#[cfg(test)]\nmod tests;"),
        ("a/src/b/tests.rs", "use super::B;"),
        ("a/src/c.rs", free),
    ];
    assert_eq!(problems(&tree), NONE);
}

#[test]
fn inline_modules_belong_to_their_file() {
    let tree = [
        ("a/src/lib.rs", "mod b;\nmod c;"),
        ("a/src/b.rs", "pub mod inner { use super::super::c::C;\nuse super::B; }\nstruct B;"),
        ("a/src/c.rs", "use crate::b::inner::I;"),
    ];
    assert_eq!(problems(&tree), ["2 files use each other: b.rs uses C of c.rs; c.rs uses I of b.rs"]);
}
