//! The clauses of the edge table that are about code rather than dependencies: clocks, sockets, threads.

use super::table::TABLE;
use crate::lint_violation::LintViolation;
use crate::rust_text::test_code::test_ranges;
use crate::rust_text::{blank, line_of, whole_words};
use crate::workspace::Member;

const RULE: &str = "clause";

/// Words that the code of one crate must not contain.
struct Clause {
    name: &'static str,
    words: &'static [&'static str],
    remedy: &'static str,
    /// The files of its binaries are free.
    library_only: bool,
}

const EFFECTS: &[&str] = &[
    "Instant",
    "SystemTime",
    "std::net",
    "UnixDatagram",
    "UnixListener",
    "UnixStream",
    "TcpListener",
    "TcpStream",
];

const CLAUSES: [Clause; 5] = [
    Clause {
        name: "sluice-common",
        words: &["std"],
        remedy: "the crate is core and alloc only, so that the policy can use it",
        library_only: false,
    },
    Clause {
        name: "sluice-policy",
        words: &["std"],
        remedy: "the policy is core and alloc only; time and every other input is an argument",
        library_only: false,
    },
    Clause {
        name: "sluice-ports",
        words: EFFECTS,
        remedy: "time is an argument (ns), bytes travel behind a port",
        library_only: false,
    },
    Clause {
        name: "sluice-scheduler",
        words: EFFECTS,
        remedy: "time is an argument (ns), bytes travel behind a port",
        library_only: false,
    },
    Clause {
        name: "sluice-sim",
        words: &["Instant", "SystemTime"],
        remedy: "the library knows virtual time only; the binary may measure",
        library_only: true,
    },
];

/// Findings in the Rust file `file` (text `source`) of `member`. Code of tests, benches and examples is free.
pub fn check(member: &Member, file: &str, source: &str) -> Vec<LintViolation> {
    let inside = file.strip_prefix(&member.folder).map(|rest| rest.trim_start_matches('/')).unwrap_or(file);
    let of_a_binary = inside == "src/main.rs" || inside.starts_with("src/bin/");
    let Some(clause) = CLAUSES.iter().find(|clause| clause.name == member.name) else { return vec![] };
    let of_tests = !inside.starts_with("src/") || inside.ends_with("/tests.rs") || inside.contains("/tests/");
    if of_tests || (clause.library_only && of_a_binary) {
        return vec![];
    }
    let blanked = blank(source);
    clause.words.iter().flat_map(|word| forbidden(clause, word, file, &blanked)).collect()
}

fn forbidden(clause: &Clause, word: &str, file: &str, blanked: &str) -> Vec<LintViolation> {
    let tests = test_ranges(blanked);
    let places = whole_words(blanked, word).filter(|at| !tests.iter().any(|range| range.contains(at)));
    let finding = |at| {
        LintViolation::new(
            RULE,
            file,
            line_of(blanked, at),
            format!("{} must not use `{word}`", clause.name),
            clause.remedy,
        )
    };
    places.map(finding).collect()
}

/// A crate of the table that stands alone says `#![no_std]` without condition and has no build script.
pub fn check_standalone(member: &Member, root_file: &str, source: &str) -> Vec<LintViolation> {
    if !TABLE.iter().any(|row| row.standalone && row.name == member.name) {
        return vec![];
    }
    let mut findings = Vec::new();
    if !blank(source).lines().any(|line| line.trim() == "#![no_std]") {
        let problem = format!("{} lacks `#![no_std]`", member.name);
        let remedy = "add it, not in a `cfg_attr`: then a call into std does not compile";
        findings.push(LintViolation::new(RULE, root_file, 1, problem, remedy));
    }
    if member.roots.iter().any(|root| root.ends_with("/build.rs")) {
        let problem = format!("{} has a build script", member.name);
        findings.push(LintViolation::new(
            RULE,
            &member.manifest,
            1,
            problem,
            "remove it: the crate must build alone",
        ));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::{check, check_standalone};
    use crate::workspace::Member;

    fn member(name: &str) -> Member {
        Member { name: name.to_owned(), folder: "sidecar/x".to_owned(), ..Member::default() }
    }

    #[test]
    fn a_clock_in_the_scheduler_is_refused_with_its_line() {
        let findings =
            check(&member("sluice-scheduler"), "sidecar/x/src/a.rs", "//! Doc\nuse std::time::Instant;\n");
        assert_eq!((findings.len(), findings[0].line), (1, 2));
        assert_eq!(findings[0].problem, "sluice-scheduler must not use `Instant`");
    }

    #[test]
    fn a_clock_in_a_comment_a_string_or_a_test_is_free() {
        let source =
            "// an Instant\nlet a = \"Instant\";\n#[cfg(test)]\nmod tests { use std::time::Instant; }\n";
        assert!(check(&member("sluice-scheduler"), "sidecar/x/src/a.rs", source).is_empty());
        assert!(
            check(&member("sluice-scheduler"), "sidecar/x/tests/a.rs", "use std::time::Instant;").is_empty()
        );
    }

    #[test]
    fn the_simulator_may_measure_in_its_binary_only() {
        let source = "use std::time::Instant;";
        assert!(check(&member("sluice-sim"), "sidecar/x/src/main.rs", source).is_empty());
        assert_eq!(check(&member("sluice-sim"), "sidecar/x/src/lib.rs", source).len(), 1);
    }

    #[test]
    fn std_in_the_policy_is_refused_and_core_is_not() {
        let found = |source| check(&member("sluice-policy"), "sidecar/x/src/a.rs", source).len();
        assert_eq!(found("extern crate std;"), 1);
        assert_eq!(found("use core::time::Duration; extern crate alloc;"), 0);
        assert_eq!(found("#[cfg(test)]\nextern crate std;"), 0);
    }

    #[test]
    fn the_policy_must_say_no_std_without_condition() {
        let found = |source| check_standalone(&member("sluice-policy"), "sidecar/x/src/lib.rs", source).len();
        assert_eq!(found("//! Doc\n#![no_std]\n"), 0);
        assert_eq!(found("//! #![no_std]\n"), 1);
        assert_eq!(found("#![cfg_attr(not(test), no_std)]\n"), 1);
        assert!(check_standalone(&member("sluice-ports"), "sidecar/x/src/lib.rs", "").is_empty());
    }

    #[test]
    fn the_policy_has_no_build_script() {
        let policy = Member { roots: vec!["sidecar/x/build.rs".to_owned()], ..member("sluice-policy") };
        assert_eq!(check_standalone(&policy, "sidecar/x/src/lib.rs", "#![no_std]").len(), 1);
    }
}
