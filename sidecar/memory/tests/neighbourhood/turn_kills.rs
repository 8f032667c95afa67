//! A process dies before every single write of what it does about the turn: who waits gets it, in a later epoch, whether it
//! stood in line already or came after the death.

use std::time::Duration;

use sluice_memory::neighbourhood::{Epoch, Seat, TurnOrder};

use super::stage::Stage;

const MOST_WRITES: u64 = 20;
const PATIENCE: Duration = Duration::from_secs(60);
const ORDERS: [TurnOrder; 2] = [TurnOrder::RoundRobin, TurnOrder::Priority { aging_turns: 64 }];

/// What comes before the operation, and the operation.
const CASES: [(&[&str], &str); 4] = [
    (&[], "request"),
    (&["request"], "cancel"),
    (&["request"], "take_turn"),
    (&["request", "take_turn"], "give_turn"),
];

/// False when the operation has fewer than `n` writes. `early`: the next in line waits before the death.
fn die_at(before: &[&str], operation: &str, n: u64, (order, early): (TurnOrder, bool)) -> bool {
    let stage = Stage::new();
    let mut actor = stage.joined("a", 0);
    for command in before {
        actor.ok(command);
    }
    let ask = || -> Seat {
        let next = stage.open().join("next", 0, 0).unwrap();
        next.turn().request(0).unwrap();
        next
    };
    let waiter = early.then(ask);
    actor.ok(&format!("die {n}"));
    if actor.ask(operation).is_some() {
        return false;
    }
    actor.kill();
    let next = waiter.unwrap_or_else(ask);
    let first = next.turn().take_within(order, PATIENCE).unwrap();
    assert!(first.is_some_and(|first| first >= Epoch(1)));
    if before.contains(&"take_turn") {
        assert!(first > Some(Epoch(1)), "an epoch that was had is not had again");
    }
    next.turn().release().unwrap();
    next.turn().request(0).unwrap();
    let second = next.turn().take_within(order, PATIENCE).unwrap();
    assert!(second > first);
    next.turn().release().unwrap();
    live_on(&stage, &next, (order, second));
    true
}

/// The next life of the dead stands in line behind nobody, and the turn goes to and fro.
fn live_on(stage: &Stage, next: &Seat, (order, before): (TurnOrder, Option<Epoch>)) {
    let heir = stage.open().join("a", 0, 0).unwrap();
    assert!(!heir.survey().unwrap().iter().any(|one| one.waits || one.has_turn));
    heir.turn().request(0).unwrap();
    next.turn().request(0).unwrap();
    assert_eq!(next.turn().try_take(order).unwrap(), None, "the heir asked first");
    let third = heir.turn().take_within(order, PATIENCE).unwrap();
    assert!(third > before);
    heir.turn().release().unwrap();
    assert!(next.turn().take_within(order, PATIENCE).unwrap() > third);
}

#[test]
fn a_death_before_any_write_about_the_turn_does_not_stop_the_line() {
    for (before, operation) in CASES {
        for line in ORDERS.into_iter().flat_map(|order| [(order, false), (order, true)]) {
            let writes = (1..MOST_WRITES).take_while(|n| die_at(before, operation, *n, line)).count();
            println!("{operation} {line:?}: {writes} writes");
            assert!(writes >= 1, "{operation} writes something");
        }
    }
}
