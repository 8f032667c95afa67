//! Journals with one line damaged: every line, every damage, every word.

use std::collections::BTreeSet;

use sluice_policy::params::PolicyName;
use sluice_scheduler::journal::{JournalError, Report, replay};

use crate::journal::{HEADER_LINES, record_load};

/// Damages that may decide nothing, and each does so at least once. All others are found, always.
const WITHOUT_EFFECT: &[(&str, &str)] = &[
    // An engine that asks for no more than is set aside, and its process, are only told.
    ("changed", "attached: activation"),
    ("changed", "attached: pid"),
    // Measures that a decision rests on show in the next one; others are only told.
    ("changed", "done: KV stall"),
    ("changed", "done: layer time"),
    ("changed", "done: stall"),
    ("changed", "done: total time"),
    ("changed", "memory: bytes"),
    ("changed", "memory: duration"),
    // Tokens count when they are looked up or end a request; what else a request says of sampling is the engine's.
    ("changed", "done: token"),
    ("changed", "submit: prompt"),
    ("changed", "submit: sampling"),
    // Nobody else was waiting.
    ("changed", "submit: priority"),
    ("changed", "time"),
    // A second answer is ignored.
    ("doubled", "attached"),
    ("doubled", "done"),
    // A tick may do nothing.
    ("doubled", "tick"),
    ("removed", "tick"),
];

/// A line in pieces: time, name, the event's words, `=`, digest.
fn words(line: &str) -> Vec<&str> {
    line.split(' ').collect()
}

/// What the word at `at` says. Words of lists are counted from the list's length on.
fn role(line: &str, at: usize) -> String {
    let all = words(line);
    match at {
        0 => return "time".into(),
        1 => return "name".into(),
        _ if at + 2 >= all.len() => return ["=", "digest"][at + 2 - all.len()].into(),
        _ => {}
    }
    let (name, at) = (all[1], at - 2);
    let number = |at: usize| all[at + 2].parse::<usize>().unwrap_or(0);
    let fixed: &[&str] = match name {
        "memory" => &["action", "outcome", "bytes", "duration"],
        "submit" => &["id", "most tokens", "priority", "salt"],
        "attached" => &["pid"],
        "done" => &["id", "attempt", "total time"],
        _ => &["no words"],
    };
    if name == "attached" && at > 0 {
        return "attached: activation".into();
    }
    if let Some(role) = fixed.get(at) {
        return format!("{name}: {role}");
    }
    let lists: &[(&str, usize)] = match name {
        "submit" => &[("prompt", 1)],
        "done" => &[("layer time", 1), ("stall", 1), ("KV stall", 1), ("sampled", 3), ("unsampled", 2)],
        _ => &[],
    };
    let mut begin = fixed.len();
    for (list, width) in lists {
        let end = begin + number(begin) * width;
        match at {
            _ if at == begin => return format!("{name}: number of {list}"),
            _ if at <= end && *list == "sampled" => {
                return format!("{name}: {}", ["row", "token", "log-probabilities"][(at - begin - 1) % 3]);
            }
            _ if at <= end => return format!("{name}: {list}"),
            _ => begin = end + 1,
        }
    }
    format!("{name}: sampling")
}

/// A copy of the journal with line `at` replaced by `lines`.
fn with(journal: &[&str], at: usize, taken: usize, lines: &[&str]) -> String {
    let all = [&journal[..at], lines, &journal[at + taken..]].concat();
    all.join("\n") + "\n"
}

/// All journals with line `at` damaged, and what was done to which event or word.
fn damages<'a>(
    journal: &'a [&'a str],
    at: usize,
) -> impl Iterator<Item = (&'static str, String, String)> + 'a {
    let (line, next) = (journal[at], journal[at + 1]);
    let name = || words(line)[1].to_owned();
    let lines = [
        ("removed", name(), with(journal, at, 1, &[])),
        ("doubled", name(), with(journal, at, 1, &[line, line])),
        ("swapped", name(), with(journal, at, 2, &[next, line])),
    ];
    let changed = (0..words(line).len()).map(move |word| {
        let mut all = words(line);
        // Each value comes to each kind of word, for there are many lines.
        let other = ["0", "1", "7", "999", "18446744073709551615"][(at + word) % 5];
        all[word] = if all[word] == other { "3" } else { other };
        ("changed", role(line, word), with(journal, at, 1, &[&all.join(" ")]))
    });
    lines.into_iter().chain(changed)
}

/// The line that an error names.
fn named(result: Result<Report, JournalError>) -> Option<usize> {
    match result {
        Err(
            JournalError::Impossible { line, .. }
            | JournalError::Diverged { line, .. }
            | JournalError::Malformed { line, .. },
        ) => Some(line),
        Ok(_) => None,
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn a_journal_with_any_line_damaged_is_an_error_that_names_a_line_unless_the_damage_decides_nothing() {
    let mut without_effect = BTreeSet::new();
    for policy in [PolicyName::Recompute, PolicyName::Oneiros, PolicyName::Ellm] {
        let journal = record_load(policy, 6, true, 8);
        let lines: Vec<_> = journal.lines().collect();
        for at in HEADER_LINES..lines.len() - 1 {
            for (what, which, text) in damages(&lines, at) {
                match named(replay(text.as_bytes())) {
                    Some(line) => {
                        assert!(line > at, "{policy:?}: line {}, {what}, {which}: found at {line}", at + 1)
                    }
                    None => drop(without_effect.insert((what, which))),
                }
            }
        }
    }
    let allowed: BTreeSet<_> = WITHOUT_EFFECT.iter().map(|(what, at)| (*what, (*at).to_owned())).collect();
    let hidden: Vec<_> = without_effect.difference(&allowed).collect();
    assert!(hidden.is_empty(), "found by nobody: {hidden:?}");
    let stale: Vec<_> = allowed.difference(&without_effect).collect();
    assert!(stale.is_empty(), "are always found today, and need not be allowed: {stale:?}");
}
