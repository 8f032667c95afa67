//! A process that is stopped while it holds the guard: others look as ever, and wait for the guard no longer than they say.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use sluice_memory::neighbourhood::{
    EarmarkState, GUARD_PATIENCE, JoinError, LedgerError, Neighbourhood, OpenError, Seat, TurnOrder,
};

use super::stage::{Actor, Stage};

/// Longer than all waits of a test together, even on a slow machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// A participant that stopped in the middle of a reservation.
fn frozen(stage: &Stage) -> Actor {
    let mut actor = stage.joined("frozen", 300);
    actor.ok("freeze 1");
    actor.tell("reserve 100");
    actor.await_stop();
    actor
}

/// What `deed` returns; a panic when it does not.
fn in_time<T: Send + 'static>(what: &str, deed: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, ends) = channel();
    std::thread::spawn(move || done.send(deed()));
    ends.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("{what} waits for a frozen neighbour"))
}

#[test]
fn who_is_frozen_within_the_guard_keeps_nobody_from_looking() {
    let stage = Stage::new();
    let seat = Arc::new(stage.open().join("b", 0, 300).unwrap());
    seat.reserve(50).unwrap();
    let actor = frozen(&stage);
    let looking = seat.clone();
    let (seen, waiters) = in_time("a look", move || (looking.survey().unwrap(), looking.turn().waiters()));
    let told: Vec<_> = seen.iter().map(|p| (p.name.as_str(), p.live, p.held_bytes)).collect();
    assert_eq!(told, [("b", true, 50), ("frozen", true, 0)]);
    assert_eq!((waiters, seat.held_bytes()), (Ok(0), 50));
    seat.release(20);
    assert_eq!(seat.survey().unwrap()[0].held_bytes, 30, "what is released needs no guard");
    drop(actor);
}

#[test]
fn who_is_frozen_within_the_guard_is_waited_for_no_longer_than_is_said_and_named() {
    let stage = Stage::new();
    let ledger = stage.open();
    let seat = Arc::new(ledger.join("b", 0, 300).unwrap());
    let mut actor = frozen(&stage);
    let waited_ms = GUARD_PATIENCE.as_millis() as u64;
    let busy = || LedgerError::Busy { holder: "frozen (record 1)".to_owned(), waited_ms };
    type Deed = fn(&Seat) -> Result<(), LedgerError>;
    let deeds: [(&str, Deed); 6] = [
        ("reserve", |seat| seat.reserve(10)),
        ("clear", |seat| seat.clear().map(drop)),
        ("void", |seat| seat.void(7).map(drop)),
        ("audit", |seat| seat.audit().map(drop)),
        ("request", |seat| seat.turn().request(0)),
        ("earmark", |seat| seat.earmark(&seat.peer(), 0, 0, 7)),
    ];
    for (what, deed) in deeds {
        let seat = seat.clone();
        assert_eq!(in_time(what, move || deed(&seat)), Err(busy()), "{what}");
    }
    let joined = in_time("join", move || ledger.join("c", 0, 100).map(drop));
    assert!(matches!(joined, Err(JoinError::Busy(error)) if error == busy()));
    let (folder, identity) = (stage.folder().to_owned(), stage.identity());
    let opened = in_time("open", move || Neighbourhood::open(&folder, &identity).map(drop));
    assert!(matches!(opened, Err(OpenError::Busy { .. })), "{opened:?}");
    actor.go_on();
    actor.answer().unwrap().unwrap();
    seat.reserve(10).unwrap();
    assert_eq!(seat.audit().unwrap().counted_bytes, 110, "nothing of what was refused is left");
    seat.turn().request(0).unwrap();
    assert!(seat.turn().try_take(TurnOrder::RoundRobin).unwrap().is_some());
}

/// A look is not under the guard, but of a transfer it sees what is so.
#[test]
fn a_look_during_transfers_shows_no_earmark_that_is_settled() {
    const LAST: u64 = 3000;
    let stage = Stage::new();
    let (lender, borrower) = (stage.open().join("a", 0, 0).unwrap(), stage.open().join("b", 0, 0).unwrap());
    let watch = stage.open();
    let settled = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for nonce in 1..=LAST {
                lender.reserve(10).unwrap();
                lender.earmark(&borrower.peer(), 10, 0, nonce).unwrap();
                borrower.accept(&lender.peer(), nonce, 10).unwrap();
                settled.store(nonce, Ordering::SeqCst);
                lender.clear().unwrap();
                borrower.clear().unwrap();
                borrower.release(10);
            }
        });
        while settled.load(Ordering::SeqCst) < LAST {
            let before = settled.load(Ordering::SeqCst);
            for mark in watch.survey().unwrap().into_iter().flat_map(|p| p.earmarks) {
                assert_eq!((mark.to, mark.bytes), (borrower.instance(), 10));
                assert!(mark.state != EarmarkState::Orphaned, "its borrower lives: {mark:?}");
                let waits = mark.state == EarmarkState::Waiting;
                assert!(!waits || mark.nonce > before, "accepted before the look ({before}): {mark:?}");
            }
        }
    });
}
