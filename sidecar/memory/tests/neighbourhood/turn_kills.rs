//! A process dies before every single write of what it does about the turn: who waits gets it, in a later epoch, whether it
//! stood in line already or came after the death.

use std::time::Duration;

use sluice_memory::TurnFence;
use sluice_memory::neighbourhood::{Epoch, Seat, TurnOrder};

use super::stage::{Actor, Stage};

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

/// A participant that has the turn, is past its deadline and does not run.
fn hung(stage: &Stage) -> Actor {
    let mut hung = stage.joined("hung", 0);
    for command in ["request", "take_turn", "promise 1"] {
        hung.ok(command);
    }
    hung.stop();
    hung
}

/// False when a takeover has fewer than `n` writes. `engine`: that of the participant that dies lives on.
fn die_in_a_takeover(n: u64, engine: bool) -> bool {
    let stage = Stage::new();
    let (mut hung, mut actor) = (hung(&stage), stage.joined("heir", 0));
    actor.ok("request");
    let _engine = engine.then(|| actor.lend_liveness(&stage));
    let next = stage.open().join("next", 0, 0).unwrap();
    next.turn().request(0).unwrap();
    actor.ok(&format!("die {n}"));
    if actor.ask("take_turn").is_some() {
        return false;
    }
    actor.kill();
    let Some(taken) = next.turn().take_within(TurnOrder::RoundRobin, PATIENCE).unwrap() else {
        panic!("nobody takes the turn after a death before write {n}");
    };
    assert!(taken > Epoch(1), "an epoch that was had is not had again");
    let fence = TurnFence::open(next.liveness()).unwrap().unwrap();
    assert!(fence.passed(1) && !fence.passed(taken.0));
    hung.go_on();
    assert_eq!(hung.ok("held"), "None");
    assert_eq!(hung.ask("give_turn").unwrap().unwrap_err(), "Overtaken");
    assert_eq!(next.turn().held(), Some(taken));
    hung.ok("request");
    next.turn().release().unwrap();
    hung.ok("take_turn");
    assert!(fence.passed(taken.0));
    true
}

#[test]
fn a_death_before_any_write_of_a_takeover_does_not_stop_the_line() {
    for engine in [false, true] {
        let writes = (1..MOST_WRITES).take_while(|n| die_in_a_takeover(*n, engine)).count();
        println!("engine {engine}: {writes} writes");
        assert!(writes >= 4, "deadline, turn, ticket, epoch");
    }
}

/// False when the operation has fewer than `n` writes. The holder stops before one, loses the turn, and goes on.
fn lose_the_turn_within(operation: &str, n: u64) -> bool {
    let stage = Stage::new();
    let [next, third] = ["next", "third"].map(|name| stage.open().join(name, 0, 0).unwrap());
    let mut holder = stage.joined("holder", 0);
    for command in ["request", "take_turn", "promise 1", &format!("freeze {n}")] {
        holder.ok(command);
    }
    next.turn().request(0).unwrap();
    holder.tell(operation);
    let taken = next.turn().take_within(TurnOrder::RoundRobin, PATIENCE).unwrap().unwrap();
    // It may stop after the next has the turn: before the write that wakes the next.
    let (stopped, answer) = holder.stop_or_answer();
    let answer = answer.unwrap();
    assert!(answer.is_ok() || answer.as_ref().is_err_and(|error| error == "Overtaken"), "{answer:?}");
    assert_eq!(holder.ok("held"), "None");
    assert_eq!(next.turn().held(), Some(taken));
    let of_next = next.turn().holder().unwrap().unwrap();
    assert_eq!((of_next.peer, of_next.overdue), (next.peer(), Duration::ZERO));
    // The hand-over to the third is that of the next, whatever the holder has written since.
    third.turn().request(0).unwrap();
    let begun = std::time::Instant::now();
    next.turn().release().unwrap();
    assert!(third.turn().take_within(TurnOrder::RoundRobin, PATIENCE).unwrap() > Some(taken));
    assert!(third.turn().handover().is_some_and(|took| took <= begun.elapsed()));
    stopped
}

#[test]
fn a_holder_that_loses_its_turn_between_two_of_its_writes_changes_nothing_of_the_next() {
    let writes = (1..MOST_WRITES).take_while(|n| lose_the_turn_within("give_turn", *n)).count();
    assert!(writes >= 3, "when, which epoch, the bell: {writes}");
    // It keeps the turn when it is not stopped before its one write.
    assert!(lose_the_turn_within("promise 9000000000000000000", 1));
}
