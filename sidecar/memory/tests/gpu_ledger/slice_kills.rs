//! A process is killed before every single write of its time-slice operations. A waiter then gets the slice
//! in a later epoch, whether it queued before or after the kill.

use std::time::Duration;

use sluice_memory::SliceFence;
use sluice_memory::gpu_ledger::{Epoch, ParticipantHandle, SliceOrder};

use super::env::{LedgerEnv, LedgerProcess};

const MAX_WRITES: u64 = 20;
const TIMEOUT: Duration = Duration::from_secs(60);
const ORDERS: [SliceOrder; 2] = [SliceOrder::RoundRobin, SliceOrder::Priority { aging_slices: 64 }];

/// The preceding commands and the operation.
const CASES: [(&[&str], &str); 4] = [
    (&[], "request"),
    (&["request"], "cancel"),
    (&["request"], "take_turn"),
    (&["request", "take_turn"], "give_turn"),
];

/// Returns false if the operation has fewer than `n` writes. With `early` the next waiter queues before the
/// kill.
fn kill_at_write(before: &[&str], operation: &str, n: u64, (order, early): (SliceOrder, bool)) -> bool {
    let env = LedgerEnv::new();
    let mut actor = env.spawn_joined("a", 0);
    for command in before {
        actor.ok(command);
    }
    let ask = || -> ParticipantHandle {
        let next = env.open().join("next", 0, 0).unwrap();
        next.slice_queue().request(0).unwrap();
        next
    };
    let waiting = early.then(ask);
    actor.ok(&format!("die {n}"));
    if actor.request(operation).is_some() {
        return false;
    }
    actor.kill();
    let next = waiting.unwrap_or_else(ask);
    let first = next.slice_queue().acquire_within(order, TIMEOUT).unwrap();
    assert!(first.is_some_and(|first| first >= Epoch(1)));
    if before.contains(&"take_turn") {
        assert!(first > Some(Epoch(1)), "an epoch that was had is not had again");
    }
    next.slice_queue().release().unwrap();
    next.slice_queue().request(0).unwrap();
    let second = next.slice_queue().acquire_within(order, TIMEOUT).unwrap();
    assert!(second > first);
    next.slice_queue().release().unwrap();
    check_after_kill(&env, &next, (order, second));
    true
}

/// A new instance of the victim finds an empty queue, and the slice passes back and forth.
fn check_after_kill(env: &LedgerEnv, next: &ParticipantHandle, (order, before): (SliceOrder, Option<Epoch>)) {
    let heir = env.open().join("a", 0, 0).unwrap();
    assert!(!heir.survey().unwrap().iter().any(|one| one.is_waiting || one.has_slice));
    heir.slice_queue().request(0).unwrap();
    next.slice_queue().request(0).unwrap();
    assert_eq!(next.slice_queue().try_acquire(order).unwrap(), None, "the heir asked first");
    let third = heir.slice_queue().acquire_within(order, TIMEOUT).unwrap();
    assert!(third > before);
    heir.slice_queue().release().unwrap();
    assert!(next.slice_queue().acquire_within(order, TIMEOUT).unwrap() > third);
}

#[test]
fn kill_before_any_slice_write_does_not_block_queue() {
    for (before, operation) in CASES {
        for line in ORDERS.into_iter().flat_map(|order| [(order, false), (order, true)]) {
            let writes = (1..MAX_WRITES).take_while(|n| kill_at_write(before, operation, *n, line)).count();
            println!("{operation} {line:?}: {writes} writes");
            assert!(writes >= 1, "{operation} writes something");
        }
    }
}

/// Starts a participant that holds the time slice, is past its deadline and does not run.
fn stopped_holder(env: &LedgerEnv) -> LedgerProcess {
    let mut hung = env.spawn_joined("hung", 0);
    for command in ["request", "take_turn", "promise 1"] {
        hung.ok(command);
    }
    hung.stop();
    hung
}

/// Returns false if a takeover has fewer than `n` writes. With `engine` the engine of the killed participant
/// keeps running.
fn kill_in_takeover(n: u64, engine: bool) -> bool {
    let env = LedgerEnv::new();
    let (mut hung, mut actor) = (stopped_holder(&env), env.spawn_joined("heir", 0));
    actor.ok("request");
    let _engine = engine.then(|| actor.receive_liveness(&env));
    let next = env.open().join("next", 0, 0).unwrap();
    next.slice_queue().request(0).unwrap();
    actor.ok(&format!("die {n}"));
    if actor.request("take_turn").is_some() {
        return false;
    }
    actor.kill();
    let Some(taken) = next.slice_queue().acquire_within(SliceOrder::RoundRobin, TIMEOUT).unwrap() else {
        panic!("no peer takes the time slice after a death before write {n}");
    };
    assert!(taken > Epoch(1), "an epoch that was had is not had again");
    let fence = SliceFence::open(next.liveness()).unwrap().unwrap();
    assert!(fence.is_stale(1) && !fence.is_stale(taken.0));
    hung.resume();
    assert_eq!(hung.ok("held"), "None");
    assert_eq!(hung.request("give_turn").unwrap().unwrap_err(), "SliceTakenOver");
    assert_eq!(next.slice_queue().held(), Some(taken));
    hung.ok("request");
    next.slice_queue().release().unwrap();
    hung.ok("take_turn");
    assert!(fence.is_stale(taken.0));
    true
}

#[test]
fn kill_before_any_takeover_write_does_not_block_queue() {
    for engine in [false, true] {
        let writes = (1..MAX_WRITES).take_while(|n| kill_in_takeover(*n, engine)).count();
        println!("engine {engine}: {writes} writes");
        assert!(writes >= 4, "deadline, slice, ticket, epoch");
    }
}

/// Returns false if the operation has fewer than `n` writes. The holder stops before one, loses the time
/// slice, and continues.
fn take_over_at_write(operation: &str, n: u64) -> bool {
    let env = LedgerEnv::new();
    let [next, third] = ["next", "third"].map(|name| env.open().join(name, 0, 0).unwrap());
    let mut holder = env.spawn_joined("holder", 0);
    for command in ["request", "take_turn", "promise 1", &format!("freeze {n}")] {
        holder.ok(command);
    }
    next.slice_queue().request(0).unwrap();
    holder.send(operation);
    let taken = next.slice_queue().acquire_within(SliceOrder::RoundRobin, TIMEOUT).unwrap().unwrap();
    // The holder may stop after the next waiter has the slice: before the write that wakes waiters.
    let (stopped, answer) = holder.stop_or_answer();
    let answer = answer.unwrap();
    assert!(answer.is_ok() || answer.as_ref().is_err_and(|error| error == "SliceTakenOver"), "{answer:?}");
    assert_eq!(holder.ok("held"), "None");
    assert_eq!(next.slice_queue().held(), Some(taken));
    let of_next = next.slice_queue().holder().unwrap().unwrap();
    assert_eq!((of_next.peer, of_next.overdue), (next.peer(), Duration::ZERO));
    // The handover to the third participant is measured from the next one's release, regardless of later
    // writes of the old holder.
    third.slice_queue().request(0).unwrap();
    let begun = std::time::Instant::now();
    next.slice_queue().release().unwrap();
    assert!(third.slice_queue().acquire_within(SliceOrder::RoundRobin, TIMEOUT).unwrap() > Some(taken));
    assert!(third.slice_queue().handover().is_some_and(|took| took <= begun.elapsed()));
    stopped
}

#[test]
fn holder_taken_over_between_writes_does_not_affect_next_slice() {
    let writes = (1..MAX_WRITES).take_while(|n| take_over_at_write("give_turn", *n)).count();
    assert!(writes >= 3, "when, which epoch, the bell: {writes}");
    // Without the stop before its only write, the holder would keep the slice.
    assert!(take_over_at_write("promise 9000000000000000000", 1));
}
