//! A recorded run replays to the same digests, without a backend.

use std::io::Write;
use std::sync::{Arc, Mutex};

use sluice_policy::ids::Nanos;
use sluice_policy::params::Bounds;
use sluice_policy::reclaim::PolicyName;
use sluice_scheduler::journal::{JournalError, Recorder, replay};
use sluice_scheduler::{Event, Sleep};
use sluice_sim::Simulation;
use sluice_sim::simulation::Setup;

use crate::support::{LIMIT, load, setup, with_tier};

/// Recorded journals that every later version must replay.
const KEPT: &[(&str, &str)] = &[
    ("oneiros-short-memory", include_str!("journals/oneiros-short-memory.journal")),
    ("oneiros-short-memory-14", include_str!("journals/oneiros-short-memory-14.journal")),
];

/// Number of lines before the first event.
pub const HEADER_LINES: usize = 5;

#[derive(Clone, Default)]
struct Buffer(Arc<Mutex<Vec<u8>>>);

impl Write for Buffer {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn record(policy: PolicyName, seed: u64, kills: bool) -> String {
    record_load(policy, seed, kills, 16)
}

/// Returns the journal of a run of `requests` requests; with `kills`, the engine is killed before every fifth.
pub fn record_load(policy: PolicyName, seed: u64, kills: bool, requests: u64) -> String {
    record_with(with_tier(setup(policy, 4, 14, seed)), requests, |world, request| {
        if kills && request.is_multiple_of(5) {
            world.kill_engine();
        }
    })
}

/// Returns the journal of a run with every kind of directive: policies, bounds, commands to sleep and to wake.
pub fn record_directed(seed: u64, requests: u64) -> String {
    let setup = with_tier(setup(PolicyName::OrbitFlow, 4, 14, seed));
    let share_chunks = setup.geometry.capacity_chunks;
    record_with(setup, requests, |world, request| {
        let event = match request {
            2 => Event::Policy(PolicyName::FlexGen),
            3 => Event::Bounds(Bounds { share_chunks: share_chunks - 1, remap_cap_permille: 300 }),
            4 => Event::Sleep(Sleep::Ordered),
            5 => Event::Sleep(Sleep::WakeUp),
            6 => Event::Policy(PolicyName::OrbitFlow),
            _ => return,
        };
        world.driver.push(event);
    })
}

fn record_with(setup: Setup, requests: u64, mut before: impl FnMut(&mut Simulation, u64)) -> String {
    let buffer = Buffer::default();
    let seed = setup.seed;
    let mut world = Simulation::new(setup, Some(Recorder::new(Box::new(buffer.clone())))).unwrap();
    for (at, request) in load(requests, seed) {
        world.run_until(Nanos(at));
        before(&mut world, request.id.0);
        world.submit(request);
    }
    assert!(world.run_until_idle(LIMIT));
    drop(world);
    let bytes = buffer.0.lock().unwrap().clone();
    String::from_utf8(bytes).unwrap()
}

#[test]
fn a_recorded_run_replays_to_the_same_digests_under_every_policy() {
    for policy in PolicyName::ALL {
        let journal = record(policy, 3, true);
        let report = replay(journal.as_bytes()).unwrap_or_else(|error| panic!("{policy:?}: {error}"));
        assert_eq!(
            report.events as usize,
            journal.lines().count() - HEADER_LINES,
            "every event was replayed"
        );
    }
}

#[test]
fn kept_journals_still_replay() {
    for (name, journal) in KEPT {
        replay(journal.as_bytes()).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

#[test]
fn a_journal_with_one_event_changed_is_caught_at_that_event() {
    let journal = record(PolicyName::Oneiros, 4, false);
    let line = journal.lines().position(|l| l.contains(" done ")).unwrap();
    let changed: Vec<_> = journal
        .lines()
        .enumerate()
        .map(|(i, l)| if i == line { l.replacen(" done ", " tick ", 1) } else { l.to_owned() })
        .map(|l| if l.contains(" tick ") { shorten(&l) } else { l })
        .collect();
    match replay(changed.join("\n").as_bytes()) {
        Err(JournalError::Diverged { line: at, .. }) => assert!(at > line, "line {at}, changed {}", line + 1),
        other => panic!("{other:?}"),
    }
}

/// Removes the words of an event, because a tick has none.
fn shorten(line: &str) -> String {
    let (time, _) = line.split_once(' ').unwrap();
    let (_, digest) = line.rsplit_once(" = ").unwrap();
    format!("{time} tick  = {digest}")
}

#[test]
fn malformed_journals_are_refused_with_their_line() {
    let journal = record(PolicyName::Recompute, 5, false);
    let lines: Vec<_> = journal.lines().collect();
    for (line, text) in
        [(0, "nonsense"), (1, "config 1 2"), (3, "geometry 1"), (7, "12 submit 18446744073709551615 = 1")]
    {
        let mut broken = lines.clone();
        broken[line] = text;
        match replay(broken.join("\n").as_bytes()) {
            Err(JournalError::Malformed { line: at, .. }) => assert_eq!(at, line + 1),
            other => panic!("line {line}: {other:?}"),
        }
    }
}

#[test]
fn completion_without_action_names_its_line() {
    let journal = record(PolicyName::Oneiros, 6, false);
    let mut lines: Vec<_> = journal.lines().collect();
    let at = lines.iter().position(|line| line.contains(" memory ")).unwrap();
    lines.insert(at, lines[at + 1]);
    match replay(lines.join("\n").as_bytes()) {
        Err(JournalError::Impossible { line, problem }) => {
            assert_eq!(line, at + 1);
            assert!(problem.contains("action 1"), "{problem}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
#[ignore = "writes the kept journal anew, after a deliberate change of a decision"]
fn rewrite_the_kept_journal() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/journals/oneiros-short-memory.journal");
    std::fs::write(path, record(PolicyName::Oneiros, 9, true)).unwrap();
}
