//! Small types with and without circles of methods.

use super::check_against;
use crate::workspace::Member;

fn problems(allowed: usize, sources: &[(&str, &str)]) -> Vec<String> {
    let member = Member { folder: "a".to_owned(), ..Member::default() };
    let files: Vec<String> = sources.iter().map(|(file, _)| (*file).to_owned()).collect();
    let text = |file: &str| sources.iter().find(|(name, _)| *name == file).map(|(_, text)| *text);
    let findings = check_against(&[("a", "T", allowed)], &[member], &files, text);
    findings.into_iter().map(|finding| finding.problem).collect()
}

const NONE: [String; 0] = [];

const CIRCLE: [(&str, &str); 3] = [
    (
        "a/src/b.rs",
        "struct T<F>(F);\nimpl<'a, F: Fn(u8) -> u8> T<'a, F> where F: Copy { fn b(&self) { self.c() } }",
    ),
    ("a/src/c.rs", "impl fmt::Debug for T<u8> { fn c(&self) -> Option<u8> { self . d (1) } }"),
    (
        "a/src/d.rs",
        "impl T { fn d(&self, x: u8) { if x > 1 { self.b() } } }\nimpl U { fn e(&self) { self.c() } }",
    ),
];

#[test]
fn files_whose_methods_call_each_other_in_a_circle_are_named() {
    let expected = "methods of T call each other across 3 files, 0 are allowed: b.rs, c.rs, d.rs";
    assert_eq!(problems(0, &CIRCLE), [expected]);
    assert_eq!(problems(3, &CIRCLE), NONE);
}

#[test]
fn number_that_has_fallen_is_lowered() {
    let free = [
        ("a/src/b.rs", "struct T;\nimpl T { fn b(&self) { self.c() } }"),
        ("a/src/c.rs", "impl T { fn c(&self) {} }"),
    ];
    assert_eq!(problems(0, &free), NONE);
    assert_eq!(problems(2, &free), ["methods of T call each other across 0 files, 2 are allowed"]);
}

#[test]
fn calls_within_a_file_of_tests_and_of_other_values_are_free() {
    let free = [
        ("a/src/b.rs", "struct T;\nimpl T { fn b(&self) { self.b(); self.other.c() } }"),
        (
            "a/src/c.rs",
            "impl T { fn c(&self) {} }\n#[cfg(test)]\nmod t { impl T { fn d(&self) { self.b() } } }",
        ),
        (
            "a/src/d.rs",
            "fn e(x: impl Fn(u8)) -> impl Iterator<Item = u8> { self.c() }\n// impl T { self.b() }",
        ),
    ];
    assert_eq!(problems(0, &free), NONE);
}

#[test]
fn types_of_one_name_are_kept_apart() {
    let two = [
        ("a/src/b.rs", "struct T;\nimpl T { fn b(&self) { self.c() } }"),
        ("a/src/c.rs", "struct T;\nimpl T { fn c(&self) { self.b() } }"),
        ("a/src/c/d.rs", "impl T { fn d(&self) { self.c() } }"),
    ];
    assert_eq!(problems(0, &two), NONE);
}
