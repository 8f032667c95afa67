//! Tests truncated journals, as a crash leaves them, and the encoding of events.

use sluice_policy::ids::{RowId, StepId};
use sluice_policy::loan_negotiator::{NegotiationPolicy, PeerEvent};
use sluice_policy::peers::Peer;
use sluice_policy::peers::loan_denied::LoanDenied;
use sluice_policy::peers::loans::Nonce;
use sluice_policy::peers::victim::{PeerState, PeerView};
use sluice_ports::compute::{ComputeEvent, FailedSequence, SequenceFailure, StepDone};
use sluice_ports::peers::PeerPortEvent;

use super::*;

/// A recorded journal.
const KEPT: &str = include_str!("../../../sim/tests/journals/oneiros-short-memory.journal");
/// Number of its lines used; enough for several events.
const LINES: usize = 40;

/// Returns the first lines without the final line end, and the offset of the last line.
fn start() -> (String, usize) {
    let text = KEPT.lines().take(LINES).collect::<Vec<_>>().join("\n");
    let last = text.rfind('\n').unwrap() + 1;
    (text, last)
}

#[test]
fn observer_is_called_at_start_and_after_each_event() {
    let (text, _) = start();
    let mut seen = Vec::new();
    let report = replay_with(text.as_bytes(), |now, core| seen.push((now, core.digest()))).unwrap();
    assert_eq!(seen.len() as u64, report.events + 1);
    assert_eq!(seen.last().unwrap().1, report.digest);
    let times: Vec<Nanos> = seen.iter().map(|(now, _)| *now).collect();
    assert!(times.is_sorted() && times.first() < times.last(), "{times:?}");
}

#[test]
fn an_event_without_its_digest_is_replayed_when_it_is_the_last() {
    let (text, last) = start();
    let whole = replay(text.as_bytes()).unwrap();
    assert_eq!(whole.ending, Ending::Whole);
    let digest = last + text[last..].rfind(" = ").unwrap() + " = ".len();
    assert!(text.len() > digest + 5, "there is a digest to cut");
    for cut in digest..text.len() {
        let report = replay(&text.as_bytes()[..cut]).unwrap_or_else(|error| panic!("cut at {cut}: {error}"));
        assert_eq!(
            report,
            ReplayReport { ending: Ending::NoDigest { line: LINES }, ..whole },
            "cut at {cut}"
        );
    }
}

#[test]
fn truncated_last_event_is_skipped_and_reported() {
    let (text, last) = start();
    let before = replay(&text.as_bytes()[..last]).unwrap();
    assert_eq!(before.ending, Ending::Whole);
    let event = last + text[last..].rfind(" = ").unwrap() + " =".len();
    for cut in last + 1..=event {
        let report = replay(&text.as_bytes()[..cut]).unwrap_or_else(|error| panic!("cut at {cut}: {error}"));
        assert_eq!(report, ReplayReport { ending: Ending::Cut { line: LINES }, ..before }, "cut at {cut}");
    }
}

#[test]
fn a_line_without_a_digest_before_the_last_one_is_damage() {
    let (text, _) = start();
    for end in [" = ", ""] {
        let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
        let (body, _) = lines[LINES - 2].rsplit_once(" = ").unwrap();
        lines[LINES - 2] = format!("{body}{end}");
        match replay(lines.join("\n").as_bytes()) {
            Err(JournalError::Malformed { line, .. }) => assert_eq!(line, LINES - 1),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn another_digest_at_a_cut_end_is_still_a_divergence() {
    let (text, last) = start();
    let (body, digest) = text.rsplit_once(" = ").unwrap();
    let other = if digest.starts_with('7') { "8" } else { "7" };
    match replay(format!("{body} = {other}").as_bytes()) {
        Err(JournalError::Diverged { line, .. }) => assert_eq!(line, LINES),
        found => panic!("from {last}: {found:?}"),
    }
}

#[test]
fn other_outputs_in_the_same_state_are_named() {
    let (text, _) = start();
    let (body, outputs) = text.rsplit_once(' ').unwrap();
    let other = outputs.parse::<u64>().unwrap() ^ 1;
    match replay(format!("{body} {other}\n").as_bytes()) {
        Err(JournalError::OtherOutputs { line, found, expected }) => {
            assert_eq!((line, found, expected), (LINES, other ^ 1, other));
        }
        found => panic!("{found:?}"),
    }
}

#[test]
fn panicking_event_is_reported_with_invariant() {
    let line = 12;
    match replay_event(line, || panic!("block {} has two owners", 3)) {
        Err(JournalError::Panicked { line: at, problem }) => {
            assert_eq!((at, problem.as_str()), (line, "block 3 has two owners"));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(replay_event(line, || 5).unwrap(), 5);
}

#[test]
fn sequences_that_failed_are_read_back_with_their_reasons() {
    let failed = vec![
        FailedSequence { row: RowId(1), failure: SequenceFailure::NoCandidate },
        FailedSequence { row: RowId(4), failure: SequenceFailure::Refused("token 9 — beyond".into()) },
        FailedSequence { row: RowId(5), failure: SequenceFailure::Refused(String::new()) },
    ];
    let event = Event::Compute(ComputeEvent::Done(StepDone { failed, ..StepDone::default() }));
    read_back(event);
}

#[test]
fn step_completion_round_trips_with_both_wait_kinds() {
    let done = StepDone {
        layer_ns: vec![5, 6],
        stall_ns: vec![1, 0],
        kv_stall_ns: vec![0, 9],
        ..StepDone::default()
    };
    let event =
        Event::Compute(ComputeEvent::Done(StepDone { id: StepId(7), attempt: 1, total_ns: 30, ..done }));
    read_back(event);
}

#[test]
fn step_of_old_epoch_round_trips() {
    let event = Event::Compute(ComputeEvent::StaleEpoch { id: StepId(7), attempt: 2 });
    read_back(event);
}

#[test]
fn former_names_of_events_are_read_up_to_version_15() {
    let stale = |name: &str, former| parse_event(&format!("5 {name} 7 2"), former);
    let now = stale("stale_epoch", false).unwrap();
    assert_eq!(stale("turn_passed", true).unwrap(), now);
    assert_eq!(stale("turn_passed", false), Err("`turn_passed` is not an event".into()));
    let (text, _) = start();
    let report = replay(text.as_bytes()).unwrap();
    assert_eq!(replay(text.replacen(MAGIC, MAGIC_15, 1).as_bytes()).unwrap(), report);
}

#[test]
fn a_journal_of_another_version_is_refused_by_its_name() {
    let (text, _) = start();
    match replay(text.replacen(MAGIC, "sluice-journal 6", 1).as_bytes()) {
        Err(JournalError::Malformed { line: 1, problem }) => {
            assert!(problem.contains("journal 6"), "{problem}")
        }
        other => panic!("{other:?}"),
    }
}

/// Returns one event for each peer event name.
fn peer_events() -> Vec<PeerPortEvent> {
    let peer = Peer { index: 3, instance: 7 };
    let live =
        PeerState { active: true, queue_position: Some(2), lendable_chunks: 5, ..PeerState::default() };
    let view = PeerView { peer, priority: -1, reachable: true, live: Some(live) };
    vec![
        PeerPortEvent::SliceGranted { epoch: 9 },
        PeerPortEvent::SliceRequested { epoch: 9 },
        PeerPortEvent::SliceTakenOver { epoch: 9 },
        PeerPortEvent::Peer(PeerEvent::Survey(vec![view])),
        PeerPortEvent::Peer(PeerEvent::Terms(NegotiationPolicy {
            priorities: vec![(peer, -2)],
            ..NegotiationPolicy::default()
        })),
        PeerPortEvent::Peer(PeerEvent::Revoked { peer, nonce: Nonce(4), chunks: 6 }),
    ]
}

/// Encodes and decodes the event, checks the result and returns its name.
fn read_back(event: Event) -> &'static str {
    let (name, words) = events::encode(&event);
    let text = words.to_string();
    let mut reader = Reader::new(&text);
    assert_eq!(events::decode(name, &mut reader), Ok(event));
    assert_eq!(reader.end(), Ok(()), "{name}");
    name
}

#[test]
fn peer_events_round_trip() {
    let names: Vec<&str> = peer_events().into_iter().map(|said| read_back(Event::Peer(said))).collect();
    assert_eq!(names, peers::NAMES);
}

#[test]
fn loan_denials_round_trip() {
    let residence = LoanDenied::MinResidence { left_ns: 77 };
    let words = [LoanDenied::Active, residence, LoanDenied::AtCap, LoanDenied::AtFloor, LoanDenied::Nothing];
    let words = words.into_iter().chain([LoanDenied::Busy, LoanDenied::NotTraded]).map(Some);
    for why in words.chain([None]) {
        let refused = PeerEvent::Refused { peer: Peer { index: 3, instance: 7 }, nonce: Nonce(4), why };
        assert_eq!(read_back(Event::Peer(PeerPortEvent::Peer(refused))), "peer");
    }
}
