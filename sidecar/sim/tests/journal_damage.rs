//! Journals with one damaged line: every line, every kind of damage, every word.

use std::collections::BTreeSet;

use sluice_policy::reclaim::PolicyName;
use sluice_scheduler::journal::{JournalError, ReplayReport, replay};

use crate::gpu::record_peers;
use crate::journal::{HEADER_LINES, record_directed, record_load};

/// Kinds of damage that may be without effect, and each of which is so at least once. All others are always detected.
const WITHOUT_EFFECT: &[(&str, &str)] = &[
    // An engine that needs no more than the reserved activations, and its process id, are only reported.
    ("changed", "attached: activation"),
    ("changed", "attached: pid"),
    // Measurements behind a decision are detected in the next event; others are only reported.
    ("changed", "done: layer time"),
    ("changed", "memory: bytes"),
    ("changed", "memory: duration"),
    // No other request was waiting.
    ("changed", "submit: priority"),
    // Without an objective no tokens are buffered.
    ("changed", "submit: pace"),
    ("changed", "time"),
    // A second engine is ignored.
    ("doubled", "attached"),
    // The gap of a plan is only reported.
    ("changed", "plan: bound"),
    // A plan that is no longer wanted is dropped.
    ("changed", "plan: found"),
    ("changed", "plan: step time"),
    ("doubled", "plan"),
    // A tick may have no effect.
    ("doubled", "tick"),
    ("removed", "tick"),
];

/// The same for directives and plans.
const DIRECTED_WITHOUT_EFFECT: &[(&str, &str)] = &[
    // Nothing was to be lent or moved.
    ("changed", "bounds: cap"),
    // The gap of a plan is only reported.
    ("changed", "plan: bound"),
    // A plan that is no longer wanted is dropped, regardless of its contents.
    ("changed", "plan: admitted"),
    ("changed", "plan: choice"),
    ("changed", "plan: found"),
    ("changed", "plan: id"),
    ("changed", "plan: paused"),
    ("changed", "plan: step time"),
    ("removed", "plan"),
    // Already in force.
    ("doubled", "bounds"),
    ("doubled", "plan"),
    ("doubled", "policy"),
    ("doubled", "sleep"),
];

/// The same for a tenant among peers.
const PEERS_WITHOUT_EFFECT: &[(&str, &str)] = &[
    // The state of peers and terms matters when a peer is asked, and times matter when they expire.
    ("changed", "peer: a word"),
    ("changed", "survey: a word"),
    ("changed", "terms: a word"),
    // A tenant yields only if it holds a time slice.
    ("changed", "slice_requested: a word"),
    ("doubled", "slice_requested"),
    ("removed", "slice_requested"),
    // Known facts change nothing.
    ("doubled", "terms"),
];

/// Events from peers.
const PEER_WORDS: [&str; 5] = ["slice_granted", "slice_requested", "survey", "terms", "peer"];

/// Splits a line into words: time, name, the event's words, `=`, digests of the state and of the outputs.
fn words(line: &str) -> Vec<&str> {
    line.split(' ').collect()
}

/// Returns the role of the word at `at`. Words of lists are counted from the list's length on.
fn role(line: &str, at: usize) -> String {
    let all = words(line);
    match at {
        0 => return "time".into(),
        1 => return "name".into(),
        _ if at + 3 >= all.len() => return ["=", "state", "outputs"][at + 3 - all.len()].into(),
        _ => {}
    }
    let (name, at) = (all[1], at - 2);
    let number = |at: usize| all[at + 2].parse::<usize>().unwrap_or(0);
    if PEER_WORDS.contains(&name) {
        return format!("{name}: a word");
    }
    let fixed: &[&str] = match name {
        "policy" => &["policy"],
        "sleep" => &["order"],
        "bounds" => &["share", "cap"],
        "plan" if all[3] == "0" => &["id", "found", "bound", "paused", "admitted", "number of choices"],
        "plan" => &["id", "found", "step time", "bound", "paused", "admitted", "number of choices"],
        "memory" => &["action", "outcome", "bytes", "duration"],
        "submit" => &["id", "most tokens", "priority", "salt", "pace"],
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
    if name == "plan" {
        return "plan: choice".into();
    }
    let lists: &[(&str, usize)] = match name {
        "submit" => &[("prompt", 1)],
        "done" => &[("layer time", 1), ("stall", 1), ("KV stall", 1), ("sampled", 3), ("failed", 2)],
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

/// Returns a copy of the journal with line `at` replaced by `lines`.
fn with(journal: &[&str], at: usize, taken: usize, lines: &[&str]) -> String {
    let all = [&journal[..at], lines, &journal[at + taken..]].concat();
    all.join("\n") + "\n"
}

/// Returns all journals with line `at` damaged, with the kind of damage and the damaged event or word.
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
        // Over many lines, each value is used for each kind of word.
        let other = ["0", "1", "7", "999", "18446744073709551615"][(at + word) % 5];
        all[word] = if all[word] == other { "3" } else { other };
        ("changed", role(line, word), with(journal, at, 1, &[&all.join(" ")]))
    });
    lines.into_iter().chain(changed)
}

/// Returns the line that an error names.
fn error_line(result: Result<ReplayReport, JournalError>) -> Option<usize> {
    match result {
        Err(
            JournalError::Impossible { line, .. }
            | JournalError::Diverged { line, .. }
            | JournalError::OtherOutputs { line, .. }
            | JournalError::Malformed { line, .. },
        ) => Some(line),
        Ok(_) => None,
        Err(other) => panic!("{other}"),
    }
}

/// Damages the events that `of` selects. Returns the kinds that no replay detects, and those that one does. Panics if
/// one is detected before its line.
fn damaged(what: &str, journal: &str, of: impl Fn(&str) -> bool) -> [Damages; 2] {
    let [mut unseen, mut seen] = [Damages::new(), Damages::new()];
    let lines: Vec<_> = journal.lines().collect();
    for at in (HEADER_LINES..lines.len() - 1).filter(|at| of(words(lines[*at])[1])) {
        for (how, which, text) in damages(&lines, at) {
            let found = error_line(replay(text.as_bytes()));
            if let Some(line) = found {
                assert!(line > at, "{what}: line {}, {how}, {which}: found at {line}", at + 1);
            }
            let side = if found.is_some() { &mut seen } else { &mut unseen };
            side.insert((how, which));
        }
    }
    [unseen, seen]
}

type Damages = BTreeSet<(&'static str, String)>;

fn assert_allowed(unseen: &Damages, allowed: &[(&'static str, &str)]) {
    let allowed: Damages = allowed.iter().map(|(what, at)| (*what, (*at).to_owned())).collect();
    let hidden: Vec<_> = unseen.difference(&allowed).collect();
    assert!(hidden.is_empty(), "found by no check: {hidden:?}");
    let stale: Vec<_> = allowed.difference(unseen).collect();
    assert!(stale.is_empty(), "are always found today, and need not be allowed: {stale:?}");
}

/// Checks that every kind of damage with an effect is detected.
fn assert_detected(seen: &Damages, expected: &[(&'static str, &str)]) {
    let never: Vec<_> =
        expected.iter().filter(|(how, at)| !seen.contains(&(*how, (*at).to_owned()))).collect();
    assert!(never.is_empty(), "are never found: {never:?}");
}

#[test]
fn damaged_line_is_error_with_line_number_unless_it_has_no_effect() {
    let mut unseen = Damages::new();
    for policy in PolicyName::ALL {
        unseen.extend(damaged(policy.name(), &record_load(policy, 6, true, 8), |_| true)[0].clone());
    }
    assert_allowed(&unseen, WITHOUT_EFFECT);
}

#[test]
fn damaged_directive_or_plan_is_error_with_line_number() {
    let of = |event: &str| ["policy", "bounds", "sleep", "plan"].contains(&event);
    let [unseen, seen] = damaged("directed", &record_directed(6, 12), of);
    assert_allowed(&unseen, DIRECTED_WITHOUT_EFFECT);
    let removed = ["policy", "bounds", "sleep"].map(|event| ("removed", event));
    assert_detected(&seen, &[&removed[..], &[("changed", "plan: choice"), ("changed", "plan: id")]].concat());
}

#[test]
fn journal_of_version_15_replays_with_the_former_names_of_its_events() {
    let former = [("slice_granted", "turn"), ("slice_requested", "sought"), ("peer", "letter")];
    for journal in record_peers(24) {
        let older = former.iter().fold(journal.clone(), |text, (now, before)| {
            assert!(text.contains(&format!(" {now} ")), "it has an event `{now}`");
            text.replace(&format!(" {now} "), &format!(" {before} "))
        });
        let refused = replay(older.as_bytes()).expect_err("a name of version 15 in version 16");
        assert!(refused.to_string().contains("is not an event"), "{refused}");
        let older = older.replacen("sluice-journal 16", "sluice-journal 15", 1);
        assert_eq!(replay(older.as_bytes()).unwrap(), replay(journal.as_bytes()).unwrap());
    }
}

#[test]
fn damaged_peer_message_is_error_with_line_number() {
    let [mut unseen, mut seen] = [Damages::new(), Damages::new()];
    for journal in record_peers(24) {
        let [none, some] = damaged("peers", &journal, |event| PEER_WORDS.contains(&event));
        unseen.extend(none);
        seen.extend(some);
    }
    assert_allowed(&unseen, PEERS_WITHOUT_EFFECT);
    let removed = ["slice_granted", "survey", "terms", "peer"].map(|event| ("removed", event));
    let changed = ["slice_granted: a word", "survey: a word", "peer: a word"].map(|word| ("changed", word));
    assert_detected(&seen, &[&removed[..], &changed].concat());
}
