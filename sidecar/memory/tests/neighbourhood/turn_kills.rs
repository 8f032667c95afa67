//! A process dies before every single write of what it does about the turn: the next in line gets it, in a later epoch.

use std::time::Duration;

use sluice_memory::neighbourhood::{Epoch, TurnOrder};

use super::stage::Stage;

const MOST_WRITES: u64 = 20;

/// What comes before the operation, and the operation.
const CASES: [(&[&str], &str); 4] = [
    (&[], "request"),
    (&["request"], "cancel"),
    (&["request"], "take_turn"),
    (&["request", "take_turn"], "give_turn"),
];

/// False when the operation has fewer than `n` writes.
fn die_at(before: &[&str], operation: &str, n: u64) -> bool {
    let stage = Stage::new();
    let mut actor = stage.joined("a", 0);
    for command in before {
        actor.ok(command);
    }
    actor.ok(&format!("die {n}"));
    if actor.ask(operation).is_some() {
        return false;
    }
    actor.kill();
    let next = stage.open().join("next", 0, 0).unwrap();
    next.turn().request(0).unwrap();
    let first = next.turn().take_within(TurnOrder::RoundRobin, Duration::from_secs(60)).unwrap();
    assert!(first.is_some_and(|first| first >= Epoch(1)));
    if before.contains(&"take_turn") {
        assert!(first > Some(Epoch(1)), "an epoch that was had is not had again");
    }
    next.turn().release().unwrap();
    next.turn().request(0).unwrap();
    assert!(next.turn().try_take(TurnOrder::RoundRobin).unwrap() > first);
    true
}

#[test]
fn a_death_before_any_write_about_the_turn_does_not_stop_the_line() {
    for (before, operation) in CASES {
        let writes = (1..MOST_WRITES).take_while(|n| die_at(before, operation, *n)).count();
        println!("{operation}: {writes} writes");
        assert!(writes >= 1, "{operation} writes something");
    }
}
