use sluice_wire::State;
use sluice_wire::state::{Move, OwnerBytes, TenantReport};

use super::*;
use crate::view::Reading;

const START: u64 = 1_700_000_000_000;

fn state(name: &str, kv_bytes: u64) -> State {
    let mut state = State::default();
    (state.tenant.namespace, state.tenant.name) = ("team".into(), name.into());
    state.memory.owners = OwnerBytes { kv_bytes, free_bytes: 1 << 20, ..OwnerBytes::default() };
    state
}

fn add(history: &mut History, at_unix_ms: u64, tenants: &[TenantReport]) {
    let reading = Reading { namespace: "team", name: "gpu", tenants, ..Reading::default() };
    let view = GpuView::of(&reading, at_unix_ms, |_| Some(12.4), |_| None, |_| 0);
    history.add(at_unix_ms, &view, tenants);
}

fn report(state: State) -> TenantReport {
    TenantReport::State(Box::new(state))
}

fn json(history: &History, since: Cursor) -> (serde_json::Value, Cursor) {
    let (part, end) = history.since("team/gpu", since);
    (serde_json::to_value(part).unwrap(), end)
}

#[test]
fn a_viewer_is_sent_the_past_once_and_then_what_is_new() {
    let mut history = History::new(8);
    for second in 0..4 {
        add(
            &mut history,
            START + second * 1000,
            &[report(state("chat", if second < 3 { 4096 } else { 8192 }))],
        );
    }
    let (all, end) = json(&history, Cursor::default());
    assert_eq!(all["start_unix_ms"], START);
    assert_eq!(all["after_ms"], serde_json::json!([0, 1000, "2"]), "each is a second after the one before");
    assert_eq!(all["tenants"]["team/chat"]["kv"], serde_json::json!([4, "2", 8]), "KiB");
    assert_eq!(all["tenants"]["team/chat"]["tokens"], serde_json::json!([12, "3"]));
    assert_eq!(all["tenants"]["team/chat"]["ttft"], serde_json::json!([null, "3"]), "nothing was measured");
    assert!(history.since("team/gpu", end).0.is_empty());
    add(&mut history, START + 4000, &[report(state("chat", 0))]);
    let (new, _) = json(&history, end);
    assert_eq!(new["start_unix_ms"], START + 4000);
    assert_eq!(new["tenants"]["team/chat"]["kv"], serde_json::json!([0]));
}

#[test]
fn new_tenant_has_no_past_and_silent_tenant_keeps_last_values() {
    let mut history = History::new(8);
    let silent =
        TenantReport::Unreachable { namespace: "team".into(), name: "chat".into(), reason: "late".into() };
    add(&mut history, START, &[report(state("chat", 4096))]);
    add(&mut history, START + 1000, &[silent, report(state("code", 1024))]);
    let (all, _) = json(&history, Cursor::default());
    assert_eq!(all["tenants"]["team/chat"]["kv"], serde_json::json!([4, "1"]));
    assert_eq!(all["tenants"]["team/chat"]["tokens"], serde_json::json!([12, null]));
    assert_eq!(all["tenants"]["team/code"]["kv"], serde_json::json!([null, 1]));
}

#[test]
fn history_spans_fifteen_minutes_within_bounds() {
    let mut history = History::new(8);
    for second in 0..2000 {
        let mut state = state("chat", second);
        let moved =
            Move { at_unix_ms: START + second * 1000, reason: "lend".into(), bytes: 1, ..Move::default() };
        state.moves = vec![moved];
        add(&mut history, START + second * 1000, &[report(state)]);
    }
    assert_eq!((history.samples.len(), history.moves().count()), (SAMPLES, 8));
    assert_eq!(history.samples[0].at_unix_ms, START + 1_100_000);
    add(&mut history, START + 9_000_000, &[]);
    assert_eq!((history.samples.len(), history.moves().count()), (1, 0));
}

#[test]
fn repeated_moves_are_logged_once_and_merged_by_reason() {
    let mut history = History::new(8);
    let moved = |at, reason: &str, detail: &str, bytes| {
        let (reason, detail) = (reason.to_owned(), detail.to_owned());
        Move { at_unix_ms: START + at, reason, detail, bytes, ..Move::default() }
    };
    let mut state = state("chat", 0);
    state.moves = vec![moved(1, "lend", "a", 3), moved(2, "lend", "b", 4), moved(2, "plan", "decided", 0)];
    add(&mut history, START + 10, &[report(state.clone())]);
    add(&mut history, START + 20, &[report(state.clone())]);
    state.moves.extend([moved(2, "lend", "c", 5), moved(30, "borrow", "d", 0)]);
    add(&mut history, START + 40, &[report(state)]);
    let moves: Vec<_> =
        history.moves().map(|one| (&*one.reason, &*one.detail, one.count, one.bytes)).collect();
    assert_eq!(moves, [("lend", "b", 2, 7), ("lend", "c", 1, 5), ("borrow", "d", 1, 0)]);
}

#[test]
fn merged_entry_counts_each_move() {
    let mut history = History::new(8);
    let mut state = state("chat", 0);
    state.moves = ["once", "33 times", "layer 3"]
        .map(|detail| Move {
            at_unix_ms: START,
            reason: detail.len().to_string(),
            detail: detail.into(),
            bytes: 8,
            ..Move::default()
        })
        .into();
    state.moves.push(Move { detail: "5 times".into(), ..state.moves[0].clone() });
    add(&mut history, START, &[report(state)]);
    let kept: Vec<_> = history.moves().map(|one| (&*one.detail, one.count, one.bytes)).collect();
    assert_eq!(kept, [("", 6, 16), ("", 33, 8), ("layer 3", 1, 8)]);
}

#[test]
fn an_entry_that_grows_between_two_readings_adds_what_is_new() {
    let mut history = History::new(8);
    let mut state = state("chat", 0);
    let entry = |at, reason: &str, detail: &str, bytes| {
        let (reason, detail) = (reason.to_owned(), detail.to_owned());
        Move { at_unix_ms: START + at, reason, detail, bytes, ..Move::default() }
    };
    let readings = [
        vec![entry(1, "lend", "22 times", 20)],
        vec![entry(5, "lend", "38 times", 36)],
        vec![
            entry(5, "lend", "38 times", 36),
            entry(6, "repay", "once", 2),
            entry(9, "lend", "40 times", 37),
        ],
        vec![entry(12, "lend", "once", 37)],
    ];
    for (at, moves) in (0..).zip(readings) {
        state.moves = moves;
        add(&mut history, START + 20 + at, &[report(state.clone())]);
    }
    let kept: Vec<_> = history.moves().map(|one| (&*one.reason, one.count, one.bytes)).collect();
    let grown = [("lend", 22, 20), ("lend", 16, 16)];
    let others = [("repay", 1, 2), ("lend", 40, 37), ("lend", 1, 37)];
    assert_eq!(kept, [&grown[..], &others[..]].concat(), "an entry with fewer moves is another one");
}

#[test]
fn late_size_updates_same_move_and_is_sent_again() {
    let mut history = History::new(8);
    let mut state = state("chat", 0);
    let entry = |at, reason: &str, detail: &str, bytes| {
        let (reason, detail) = (reason.to_owned(), detail.to_owned());
        Move { at_unix_ms: START + at, reason, detail, bytes, ..Move::default() }
    };
    let mut end = Cursor::default();
    let mut sent = Vec::new();
    // A decision, its bytes once they have moved, and the same of an entry that another one follows.
    let readings = [
        vec![entry(1, "lend", "once", 0)],
        vec![entry(1, "lend", "once", 3)],
        vec![entry(5, "lend", "4 times", 7), entry(6, "borrow", "once", 0)],
        vec![entry(5, "lend", "4 times", 9), entry(6, "borrow", "once", 2)],
        vec![entry(5, "lend", "4 times", 9), entry(6, "borrow", "once", 2)],
    ];
    for (at, moves) in (0..).zip(readings) {
        state.moves = moves;
        add(&mut history, START + 20 + at, &[report(state.clone())]);
        let (part, next) = json(&history, end);
        end = next;
        let one =
            |one: &serde_json::Value| ["number", "count", "bytes"].map(|name| one[name].as_u64().unwrap());
        sent.push(part["moves"].as_array().unwrap().iter().map(one).collect::<Vec<_>>());
    }
    let kept: Vec<_> = history.moves().map(|one| (&*one.reason, one.count, one.bytes)).collect();
    assert_eq!(kept, [("lend", 1, 3), ("lend", 3, 6), ("borrow", 1, 2)], "each byte once");
    let expected: [&[[u64; 3]]; 5] =
        [&[[1, 1, 0]], &[[1, 1, 3]], &[[2, 3, 4], [3, 1, 0]], &[[2, 3, 6], [3, 1, 2]], &[]];
    assert_eq!(sent, expected, "number, count and bytes of what a viewer is sent after each reading");
}

#[test]
fn new_layout_is_described_in_words() {
    let mut history = History::new(8);
    let mut state = state("chat", 0);
    let laid_out = |at, detail: &str| {
        let (reason, detail) = ("remap_own".to_owned(), detail.to_owned());
        Move { at_unix_ms: START + at, reason, detail, bytes: 8, ..Move::default() }
    };
    for (at, detail) in [(1, "alpha 5, beta 1"), (2, "alpha 1, beta 2"), (3, "alpha 0, beta 0")] {
        state.moves.push(laid_out(at, detail));
        add(&mut history, START + at, &[report(state.clone())]);
    }
    let said: Vec<_> = history.moves().map(|one| &*one.detail).collect();
    let one = "1 layer gave its memory to KV";
    assert_eq!(said, ["5 layers gave their memory to KV", one, "all layers are resident"]);
}

#[test]
fn a_series_has_a_figure_at_each_sample_and_nothing_where_it_is_not_known() {
    let mut history = History::sized(3, 8);
    for second in 0..5 {
        let silent = TenantReport::Unreachable {
            namespace: "team".into(),
            name: "chat".into(),
            reason: "no answer".into(),
        };
        let tenant = if second == 3 { silent } else { report(state("chat", 4096)) };
        add(&mut history, START + second * 1000, &[tenant]);
    }
    let series: Vec<_> = history.series("team/chat", Metric::Tokens).collect();
    let expected = [(START + 2000, Some(12)), (START + 3000, None), (START + 4000, Some(12))];
    assert_eq!(series, expected, "the last three samples");
    assert!(history.series("team/gone", Metric::Tokens).all(|(_, value)| value.is_none()));
    assert_eq!(history.start_unix_ms(), Some(START + 2000));
}
